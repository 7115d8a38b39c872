"""Many runs: started side by side, requeued, and read from their folders."""

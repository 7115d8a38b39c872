"""Many runs: started side by side, put into the queue again, and read."""

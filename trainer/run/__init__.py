"""One run: its folder, checks, training loop, evaluations, stop conditions and final model."""

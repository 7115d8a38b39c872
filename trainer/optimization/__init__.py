"""Learning rate, parameter groups and optimizers."""

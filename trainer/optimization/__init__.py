"""Learning rate, parameter groups, and optimizers that can drop a step."""

"""The command line's verbs: train, sweep, evaluate, export, inspect-order, requeue and doctor."""

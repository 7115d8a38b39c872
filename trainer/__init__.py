"""The run: configuration, data order, engines, one loop, checkpoints, fine-tuning, evaluation, command line."""

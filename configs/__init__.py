"""The run files, model sizes and DeepSpeed files that longmix ships: package data."""

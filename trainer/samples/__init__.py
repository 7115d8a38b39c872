"""The samples of a run: their order, their shards, windows and batches."""

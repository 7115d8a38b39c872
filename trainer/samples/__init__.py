"""The samples of a run: their order, shards, windows and padded batches."""

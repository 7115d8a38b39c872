"""The checkpoints of a run: saved, checked, found and resumed from; and the log of its metrics."""

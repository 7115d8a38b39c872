"""Checkpoints of a run: written, found, resumed; the record of its metrics."""

"""Hugging Face model folders made from a run's checkpoints."""

"""Hugging Face folders from a run's checkpoints."""

"""`./quickstart`: text, pre-training, checkpoint and fine-tuning once, through the commands that a user would give."""

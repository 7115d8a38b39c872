"""The model of a run: built from its fields or loaded from a folder."""

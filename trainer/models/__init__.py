"""The model of a run: its fields checked, and built from them or loaded from a folder."""

"""Answers of a model to new inputs, written in parts: the work of `longmix predict`."""

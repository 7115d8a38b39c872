"""Benchmarks and synthetic tasks in, a data set for each of their splits out."""

"""This process among the others of a run: ranks, launching, signals, and the watchdog."""

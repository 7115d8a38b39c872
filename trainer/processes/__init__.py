"""This process among the ranks of a run: launching, exchanges, signals and the watchdog."""

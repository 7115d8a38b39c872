"""Exit codes of every command."""

FINISHED = 0
OURS = 1
USER_MISTAKE = 2
# EX_TEMPFAIL of sysexits.h: stopped by request, the same command goes on.
INTERRUPTED = 75

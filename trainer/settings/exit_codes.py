"""Exit codes of every command."""

FINISHED = 0
OURS = 1
USER_MISTAKE = 2
# EX_TEMPFAIL of sysexits.h: stopped by request, the same command goes on.
INTERRUPTED = 75
EXPLANATION = (
    "Exit codes: 0 finished, 2 a mistake of yours (one line says which), 75 interrupted (run it again), 1 ours."
)

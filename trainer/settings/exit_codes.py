"""Exit codes of every command."""

FINISHED = 0
# A fault of the machine (errors.MachineFault: one line), or a bug (a traceback).
OURS = 1
USER_MISTAKE = 2
# EX_TEMPFAIL of sysexits.h: stopped by request, the same command goes on.
INTERRUPTED = 75
EXPLANATION = (
    "Exit codes: 0 finished, 2 a mistake of yours (one line says which), 75 interrupted (run it again), "
    "1 a fault of the machine (one line says which) or a bug of ours (a traceback)."
)

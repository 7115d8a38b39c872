#!/usr/bin/env bash
# One task of a step: `task.sh VERB ARGUMENTS...` runs `longmix VERB ARGUMENTS`. Started by run_step in common.sh.

# Slurm signals this shell and its child alike: the shell waits for the child, which saves.
trap 'touch "$LONGMIX_ENDINGS/signalled"' USR1 TERM

if [[ $1 == train || $1 == doctor ]]; then
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
fi
longmix "$@"
code=$?
if [[ $1 == doctor ]]; then
    [[ $code != 0 ]] || touch "$LONGMIX_ENDINGS/sound-$SLURMD_NODENAME"
    exit 0
fi
# 138: ended by USR1 itself, before there was anything to save. 143: ended by TERM, because of another task or scancel.
case $code in
    0 | 143) ending="" ;;
    75 | 138) ending=75 ;;
    2) ending=2 ;;
    *) ending=1 ;;
esac
[[ -z $ending ]] || touch "$LONGMIX_ENDINGS/$ending"
[[ $code != 75 ]] || code=0
exit "$code"

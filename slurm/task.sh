#!/usr/bin/env bash
# One task of a step: `task.sh VERB ARGUMENTS...` runs `longmix VERB ARGUMENTS`. Started by run_step in common.sh.

# Slurm signals this shell and its child alike: the shell waits for the child, which saves.
trap 'touch "$LONGMIX_ENDINGS/signalled"' USR1 TERM

if [[ $1 == train || $1 == doctor ]]; then
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    export LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_NNODES))
fi
# Kernels that Triton and Inductor compile lie on the node's own disk: hundreds of processes would else write to one
# folder of a shared one. In /tmp anybody could have made a folder of that name, and put kernels into it.
caches=${LONGMIX_LOCAL_DISK:-/tmp}/longmix-caches-$(id --user)
if mkdir --mode=700 "$caches" 2>/dev/null || [[ -O $caches && ! -L $caches ]]; then
    export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$caches/triton}
    export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$caches/inductor}
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
# What cannot be noted must not look as if it were done.
[[ -z $ending ]] || touch "$LONGMIX_ENDINGS/$ending" || exit "$code"
[[ $code != 75 ]] || code=0
exit "$code"

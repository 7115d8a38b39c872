#!/usr/bin/env bash
# Turn text into packed data sets on many nodes, which share a disk: an array, each job of which does a share:
#
#   sbatch --array=0-15 [sbatch options] slurm/prepare.sh --source TEXT --output DIR [options of longmix prepare text]
#   sbatch --array=0-63 --cpus-per-task=8 slurm/prepare.sh --source books/ --source wiki.jsonl --output data/mine
#
# The output is that of one job, to the byte, whatever the number of jobs. One process of a job reads, the others encode:
# with more than 16 CPUs a job waits for the reading, so rather make more jobs. Without --array one job does it all.
# Submit from the repository, or set LONGMIX_HOME to it. Paths are relative to the folder you submit from.
# The jobs wait for each other between the stages. One that its time limit ends, or that has heard nothing of another for
# ten minutes (it may wait for a node), puts itself into the queue again. When one fails, the others are cancelled.
# Exit code 75: interrupted; 1 or 2: failed, with the reason in the log. Submit the same command again, with as many jobs:
# what is finished is not done twice.

#SBATCH --job-name=longmix-prepare
#SBATCH --nodes=1
#SBATCH --output=%x-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@30

export LONGMIX_HOME=${LONGMIX_HOME:-${SLURM_SUBMIT_DIR:-$PWD}}
if [[ ! -f $LONGMIX_HOME/slurm/common.sh ]]; then
    echo "longmix: error: no slurm/common.sh in $LONGMIX_HOME: submit from the repository, or export LONGMIX_HOME" >&2
    exit 2
fi
# shellcheck source=slurm/common.sh
source "$LONGMIX_HOME/slurm/common.sh"

[[ $# -ge 1 ]] || fail "name the text: sbatch --array=0-15 slurm/prepare.sh --source TEXT --output DIR"
[[ $SLURM_JOB_NUM_NODES == 1 ]] || fail "prepare.sh uses one node a job, not $SLURM_JOB_NUM_NODES: use --array instead"
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    # Shares are counted from 0, whatever the range of the array.
    place=$(((SLURM_ARRAY_TASK_ID - ${SLURM_ARRAY_TASK_MIN:-0}) / ${SLURM_ARRAY_TASK_STEP:-1}))
    ((place < SLURM_ARRAY_TASK_COUNT)) || fail "prepare.sh needs an array without gaps, such as --array=0-15"
    set -- "$@" --share "$place/$SLURM_ARRAY_TASK_COUNT"
fi
prepare_job 1
# Not those of the whole node, which other shares may have.
[[ " $* " == *" --workers"* ]] || set -- "$@" --workers "$cpus_per_node"
record_environment
run_step 1 prepare text "$@"

#!/usr/bin/env bash
# Many runs, each on one device: every run file with every seed, shared out over the jobs of an array:
#
#   sbatch --array=0-3 [sbatch options] slurm/sweep.sh CONFIG.yaml... [--seeds N] [key=value ...]
#   sbatch --array=0-3 --gpus-per-node=4 --mem=128G slurm/sweep.sh configs/papers/{converter,wavspa}_listops.yaml --seeds 5
#
# A job of the array runs its share of the runs, one at a time on each of its GPUs (CPUs: --parallel). Without --array
# one job runs them all. Submit from the repository, or set LONGMIX_HOME to it. Paths are relative to the folder you
# submit from.
# A job saves ahead of its time limit and puts itself into the queue again, as it does when Slurm takes its node away;
# not when five starts have brought none of its runs a new checkpoint. With sbatch --no-requeue it ends instead.
# Exit code 75: interrupted; 1 or 2: some runs have failed. Submit the same command again, with any number of jobs, once
# these have ended: what is finished is not done twice.

#SBATCH --job-name=longmix-sweep
#SBATCH --nodes=1
#SBATCH --output=%x-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120

export LONGMIX_HOME=${LONGMIX_HOME:-${SLURM_SUBMIT_DIR:-$PWD}}
if [[ ! -f $LONGMIX_HOME/slurm/common.sh ]]; then
    echo "longmix: error: no slurm/common.sh in $LONGMIX_HOME: submit from the repository, or export LONGMIX_HOME" >&2
    exit 2
fi
# shellcheck source=slurm/common.sh
source "$LONGMIX_HOME/slurm/common.sh"

[[ $# -ge 1 ]] || fail "name a run file: sbatch slurm/sweep.sh CONFIG.yaml... [--seeds N] [key=value ...]"
[[ $SLURM_JOB_NUM_NODES == 1 ]] || fail "sweep.sh uses one node a job, not $SLURM_JOB_NUM_NODES: use --array instead"
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    # Shares are counted from 0, whatever the range of the array.
    place=$(((SLURM_ARRAY_TASK_ID - ${SLURM_ARRAY_TASK_MIN:-0}) / ${SLURM_ARRAY_TASK_STEP:-1}))
    ((place < SLURM_ARRAY_TASK_COUNT)) || fail "sweep.sh needs an array without gaps, such as --array=0-3"
    set -- "$@" --share "$place/$SLURM_ARRAY_TASK_COUNT"
fi
prepare_job "${SLURM_GPUS_ON_NODE:-1}"
record_environment
# One task: longmix sweep starts a process for each run itself.
run_step 1 sweep "$@"

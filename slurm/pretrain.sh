#!/usr/bin/env bash
# Pre-train (or go on with) one run on any number of nodes, one task for each device:
#
#   sbatch [sbatch options] slurm/pretrain.sh CONFIG.yaml [key=value ...]
#   sbatch --nodes=2 --gpus-per-node=8 --exclusive --time=24:00:00 slurm/pretrain.sh configs/pretrain_s3attention.yaml
#
# GPU nodes get one task per GPU. CPU nodes get LONGMIX_TASKS_PER_NODE tasks (default 1), and so do nodes whose GPUs Slurm
# does not hand out.
# Submit from the repository, or set LONGMIX_HOME to it. Paths are relative to the folder you submit from.
# The job saves ahead of its time limit and puts itself into the queue again, as it does when Slurm takes its nodes away
# and when the run fails; not when a failure repeats itself at the same step, nor when five starts have brought no new
# checkpoint. To stop it: scancel, or a file STOP in the run folder. With sbatch --no-requeue it ends instead.
# The state of the job is its exit code: 0 finished; 75 interrupted, checkpoint saved: submit the same command again and
# it goes on; 2 a mistake of yours, in one line of the log; 1 a failure of ours, with its reason in the log.

#SBATCH --job-name=longmix-pretrain
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
# All the memory of each node: what Slurm gives by default for a CPU or two seldom holds the ranks of a node. Where jobs
# share nodes, ask for less: sbatch --mem=200G (--mem-per-cpu and --mem-per-gpu are refused beside it).
#SBATCH --mem=0
# Two minutes before the time limit every rank is asked to save and leave. Without "B:" the signal goes to the steps,
# where the ranks are, and not to this script. A run whose checkpoint takes longer needs more: sbatch --signal=USR1@600.
#SBATCH --signal=USR1@120

export LONGMIX_HOME=${LONGMIX_HOME:-${SLURM_SUBMIT_DIR:-$PWD}}
if [[ ! -f $LONGMIX_HOME/slurm/common.sh ]]; then
    echo "longmix: error: no slurm/common.sh in $LONGMIX_HOME: submit from the repository, or export LONGMIX_HOME" >&2
    exit 2
fi
# shellcheck source=slurm/common.sh
source "$LONGMIX_HOME/slurm/common.sh"

[[ $# -ge 1 ]] || fail "name a run file: sbatch slurm/pretrain.sh CONFIG.yaml [key=value ...]"
for word; do
    # `longmix requeue` takes none of these, and would leave the job out of the queue.
    [[ $word != -* ]] ||
        fail "$word is no run file and no key=value; Slurm says how many ranks there are, or LONGMIX_TASKS_PER_NODE=N"
done
tasks_per_node=${LONGMIX_TASKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-${SLURM_NTASKS_PER_NODE:-1}}}
prepare_job "$tasks_per_node"
record_environment
# Mistakes are found here once, before any rank starts; the estimates are for so many ranks on each node. What the machine
# does wrong the ranks meet, too, and after them the job starts again.
LOCAL_WORLD_SIZE="$tasks_per_node" longmix train --check --processes "$((SLURM_JOB_NUM_NODES * tasks_per_node))" "$@" || {
    code=$?
    ((code != 2 && code != 75)) || exit "$code"
}
run_step "$tasks_per_node" train "$@"

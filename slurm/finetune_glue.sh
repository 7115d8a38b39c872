#!/usr/bin/env bash
# Fine-tune a checkpoint on GLUE, on one node with all the GPUs that it is given:
#
#   sbatch [sbatch options] slurm/finetune_glue.sh --model CHECKPOINT --data GLUE --output DIR [finetune options]
#   sbatch --gpus-per-node=4 --exclusive --mem=0 slurm/finetune_glue.sh --model runs/first/model --data glue --output runs/glue
#
# Without --task it runs every task that GLUE holds. Tasks and seeds run side by side, one on each GPU (CPUs: --jobs).
# Submit from the repository, or set LONGMIX_HOME to it. Paths are relative to the folder you submit from.
# Exit code 75: interrupted; submit the same command again, and what is finished is not done twice.

#SBATCH --job-name=longmix-finetune
#SBATCH --nodes=1
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120

export LONGMIX_HOME=${LONGMIX_HOME:-${SLURM_SUBMIT_DIR:-$PWD}}
if [[ ! -f $LONGMIX_HOME/slurm/common.sh ]]; then
    echo "longmix: error: no slurm/common.sh in $LONGMIX_HOME: submit from the repository, or export LONGMIX_HOME" >&2
    exit 2
fi
# shellcheck source=slurm/common.sh
source "$LONGMIX_HOME/slurm/common.sh"

[[ $SLURM_JOB_NUM_NODES == 1 ]] || fail "finetune_glue.sh uses one node, not $SLURM_JOB_NUM_NODES: leave out --nodes"
if [[ " $* " != *" --task "* && " $* " != *" --task="* ]]; then
    set -- --task all "$@"
fi
prepare_job "${SLURM_GPUS_ON_NODE:-1}"
record_environment
# One task: longmix finetune starts a worker for each device itself.
run_step 1 finetune "$@"

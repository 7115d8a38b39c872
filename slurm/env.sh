# shellcheck shell=bash
# The one place for what is special about your cluster; the job scripts source it on the first node, and srun carries
# the environment to all others. Partition, account and the like are sbatch options: give them on the command line, or
# export them where you submit from (SBATCH_PARTITION=gpu, SBATCH_ACCOUNT=..., SBATCH_TIMELIMIT=24:00:00).

# Modules:
# module purge
# module load gcc/12 cuda/12.6

# The Python environment: the repository's own, if it is there. Otherwise put `longmix` on PATH here (or submit from an
# environment that has it: sbatch passes PATH on).
if [[ -d $LONGMIX_HOME/.venv/bin ]]; then
    export PATH=$LONGMIX_HOME/.venv/bin:$PATH
fi

# A container: put a script on PATH that is named longmix and runs it there, such as
#   #!/usr/bin/env bash
#   exec apptainer exec --nv /path/to/image.sif longmix "$@"

# Many nodes: run from their own disks. Pack the environment once on a disk that all nodes see,
#   tar --create --file longmix-env.tar --directory "$LONGMIX_HOME" .venv
# and each job copies it to the nodes that do not have it yet, below LONGMIX_LOCAL_DISK (/tmp).
# LONGMIX_ENVIRONMENT=$LONGMIX_HOME/longmix-env.tar

# Networks: the interface that the nodes reach each other by, where the first one is not it.
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
# export NCCL_IB_HCA=mlx5
# Where the ranks meet, on the first node (this file is read there): if the others do not find it by its host name.
# MASTER_ADDR=$(hostname)-ib0

# Compute nodes without a way out: keep transformers from trying.
# export HF_HUB_OFFLINE=1

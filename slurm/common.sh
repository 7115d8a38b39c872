# shellcheck shell=bash
# What the job scripts share. They source it with LONGMIX_HOME set to the repository.

say() { echo "longmix slurm: $1"; }

# A mistake of the user.
fail() {
    echo "longmix: error: $1" >&2
    exit 2
}

[[ -n ${SLURM_JOB_ID:-} ]] || fail "this is a Slurm job script: start it with sbatch (without Slurm: longmix train)"

# What Slurm says of this job, of an array's this one alone. sbatch takes along what it finds in the environment, which
# is of another job where it is called from within one.
about=$(scontrol --oneliner show job "$SLURM_JOB_ID" | grep "^JobId=$SLURM_JOB_ID ")
if [[ -n $about ]]; then
    # In a shell of salloc nobody has counted the GPUs of a node, and in one of srun the ranks would wait for its CPUs. Of
    # a job that was requeued the flag may be more than 1.
    [[ $about != *" BatchFlag=0 "* ]] ||
        fail "this is a Slurm job script: start it with sbatch (in a shell of salloc or srun, on one node: longmix train)"
    [[ $about == *" ArrayTaskId="* ]] || unset "${!SLURM_ARRAY_@}"
    [[ $about != *" NtasksPerN:B:S:C=0:"* ]] || unset SLURM_NTASKS_PER_NODE
    [[ ! $about =~ \ Restarts=([0-9]+) ]] || SLURM_RESTART_COUNT=${BASH_REMATCH[1]}
fi
# For srun they are options, as another job has left them, or as sbatch was given them for tasks that are not ours: some
# it refuses beside ours, others give a step less than the job has. Each step says what it is to get.
unset {SLURM,SRUN}_CPUS_PER_TASK SLURM_CPUS_PER_GPU SLURM_TRES_PER_TASK SLURM_NTASKS SLURM_NPROCS \
    SLURM_NTASKS_PER_{CORE,GPU,SOCKET} SLURM_GPUS SLURM_GPUS_PER_{NODE,SOCKET,TASK} SLURM_GPU_BIND \
    SLURM_MEM_PER_{CPU,GPU,NODE} "${!SLURM_CPU_BIND@}" SLURM_DISTRIBUTION
# The ranks find each other without MPI: nothing of it needs to be started for them, or to be there.
export SLURM_MPI_TYPE=none

# An outer job may have left them in the environment; env.sh alone says that the ranks meet elsewhere.
unset MASTER_ADDR MASTER_PORT
# shellcheck source=slurm/env.sh
source "$LONGMIX_HOME/slurm/env.sh"
[[ -n ${LONGMIX_ENVIRONMENT:-} ]] || command -v longmix >/dev/null ||
    fail "no longmix command on PATH: install it into $LONGMIX_HOME/.venv, or load your environment in slurm/env.sh"

# What Slurm calls this job. An array has the number of one of its jobs: that number alone would mean all of them.
job=$SLURM_JOB_ID
[[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

# find_gpus: how many GPUs a step has on each node into SLURM_GPUS_ON_NODE. A job alone on its nodes (--exclusive) has all
# that they have. Its steps have those that sbatch was asked for; where it was asked for none, or for some for each task,
# what the step asks for.
step_gpus=()
find_gpus() {
    local counts
    # Without what this shell has of it, lest the tasks inherit that.
    mapfile -t counts < <(env --unset=SLURM_GPUS_ON_NODE srun --export=ALL --nodes="$SLURM_JOB_NUM_NODES" \
        --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 env </dev/null |
        sed -n 's/^SLURM_GPUS_ON_NODE=//p' | sort --numeric-sort --unique)
    ((${#counts[@]} < 2)) ||
        fail "this job has not as many GPUs on each of its nodes (but ${counts[*]}): ask for them with --gpus-per-node"
    if ((${#counts[@]} == 0)) || [[ $about =~ \ TresPerTask=[^\ ]*gpu ]]; then
        step_gpus=(--gres="gpu:$SLURM_GPUS_ON_NODE")
    else
        SLURM_GPUS_ON_NODE=${counts[0]}
    fi
}

# prepare_job WORKERS_PER_NODE: where the ranks meet, and how many threads each worker gets.
prepare_job() {
    [[ $1 =~ ^[1-9][0-9]*$ ]] || fail "LONGMIX_TASKS_PER_NODE is '$1', but must be a number from 1 on"
    MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
    # Below the range that systems give out by themselves, another one for each job that shares the node, with one
    # beside it (look_at_nodes); and another one at each start, as somebody may have taken the last one.
    MASTER_PORT=${MASTER_PORT:-$((10000 + (2 * SLURM_JOB_ID + 5002 * ${SLURM_RESTART_COUNT:-0}) % 20000))}
    # 64(x3),48 means three nodes with 64 and one with 48: the smallest counts.
    cpus_per_node=$(tr ',' '\n' <<<"$SLURM_JOB_CPUS_PER_NODE" | cut -d '(' -f 1 | sort -n | head -n 1)
    if ((cpus_per_node < $1)); then
        say "slow: $1 workers share $cpus_per_node CPUs of each node (sbatch --exclusive gives the job all of them)"
    fi
    given_threads=${OMP_NUM_THREADS:-}
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(share_of_cpus "$1")}
    PYTHONUNBUFFERED=1
    export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS PYTHONUNBUFFERED
    [[ -z ${LONGMIX_LOCAL_DISK:-} ]] || export LONGMIX_LOCAL_DISK
    [[ -z ${LONGMIX_ENVIRONMENT:-} ]] || stage_environment "$LONGMIX_ENVIRONMENT"
}

# stage_environment ARCHIVE: copy an archive of .venv to the disk of each node, unpack it there, and run longmix from it.
# Hundreds of processes would else read thousands of files from a shared disk. A node that has it from an earlier job
# keeps it; the name tells size and time of the archive.
stage_environment() {
    local archive=$1 name folder made
    name=$(stat --format=longmix-%Y-%s "$archive" 2>/dev/null) ||
        fail "LONGMIX_ENVIRONMENT is $archive, which is no file: make it with tar --create --file $archive --directory $LONGMIX_HOME .venv"
    folder=${LONGMIX_LOCAL_DISK:-/tmp}/$name-$(id --user)
    # Other jobs may do the same on the same nodes: each makes one of its own, and the first puts it in place.
    made=$folder.$SLURM_JOB_ID
    if ! on_each_node check "$folder" 2>/dev/null; then
        say "copying $archive to the disks of $SLURM_JOB_NUM_NODES nodes"
        if ! { on_each_node prepare "$folder" "$made" && sbcast --force "$archive" "$made/environment.tar" &&
            on_each_node unpack "$folder" "$made"; }; then
            on_each_node discard "$folder" "$made" || true
            fail "cannot unpack $archive to $folder on every node (above)"
        fi
    fi
    export PATH=$folder/bin:$PATH
}

on_each_node() {
    srun --export=ALL --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
        bash "$LONGMIX_HOME/slurm/stage.sh" "$@" </dev/null
}

# share_of_cpus WORKERS_PER_NODE: CPUs for each, at least one.
share_of_cpus() { echo $((cpus_per_node < $1 ? 1 : cpus_per_node / $1)); }

# Into the log: the job and the machine. Never the environment itself, which may hold secrets.
record_environment() {
    say "job $job, start $((${SLURM_RESTART_COUNT:-0} + 1)), $(date --iso-8601=seconds)"
    scontrol show job "$job"
    longmix doctor || say "longmix doctor found something wrong (above); going on"
}

# run_step TASKS_PER_NODE VERB ARGUMENTS...: `longmix VERB ARGUMENTS` in every task; ends the job script with the run's
# exit code. srun's own code is the highest of all tasks, also of those that it ended because of another one; so task.sh
# leaves how each ended in a folder beside the log, and tells srun of failures only: an interrupted run is none.
run_step() {
    local tasks_per_node=$1 overcommit=() cpus=() code
    shift
    ((tasks_per_node <= cpus_per_node)) || overcommit=(--overcommit)
    # Of runs side by side longmix gives each its share.
    [[ ($1 != sweep && $1 != finetune) || -n $given_threads ]] || unset OMP_NUM_THREADS
    # Each rank goes to the CPUs beside its GPU by itself: Slurm hands out CPUs in another order. Without GPUs each gets
    # its part, where they come out even: a step that needs parts of cores waits for ever.
    if [[ -n ${SLURM_GPUS_ON_NODE:-} || $SLURM_JOB_CPUS_PER_NODE == *,* ]] || ((cpus_per_node % tasks_per_node)); then
        cpus=(--cpu-bind=none)
    else
        cpus=(--cpus-per-task="$((cpus_per_node / tasks_per_node))")
    fi
    LONGMIX_ENDINGS=$(mktemp --directory --tmpdir="$PWD" ".longmix-$SLURM_JOB_ID-XXXX") ||
        fail "cannot write to $PWD: submit from a folder that all nodes can write to"
    export LONGMIX_ENDINGS
    trap 'rm -rf "$LONGMIX_ENDINGS"' EXIT
    # On scancel this shell must outlive the ranks, which save first. What tells this shell alone to end, as
    # `sbatch --signal=B:USR1@120` does, tells them.
    trap : TERM
    trap 'scancel --signal=USR1 "$job"' USR1
    srun --export=ALL --kill-on-bad-exit=1 "${overcommit[@]}" "${cpus[@]}" "${step_gpus[@]}" \
        --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$((SLURM_JOB_NUM_NODES * tasks_per_node))" \
        --ntasks-per-node="$tasks_per_node" bash "$LONGMIX_HOME/slurm/task.sh" "$@" </dev/null &
    # In the background, for a signal waits for what runs in front. It ends the waiting, too, and only that.
    while kill -0 "$!" 2>/dev/null; do
        wait "$!"
    done
    wait "$!"
    # Not in a subshell, which a signal to the whole job would end.
    find_ending "$?"
    if ((code == 1 || code == 75)) && requeue "$code" "$@"; then
        say "exit code $code: this job is in the queue again, and goes on from where it was when it starts"
    elif ((code == 75)); then
        say "interrupted; submit the same command again to go on (exit code 75)"
    elif ((code == 1)); then
        say "failed; the reason is above (exit code 1)"
    fi
    [[ $(squeue --noheader --jobs="$job" --format=%r) != TimeLimit ]] ||
        say "the time limit came before the run had saved: have it told earlier, with sbatch --signal=USR1@600"
    [[ $1 != prepare || ($code != 1 && $code != 2) ]] || cancel_other_shares
    exit "$code"
}

# requeue CODE VERB ARGUMENTS...: put this job, whose run ended with CODE, into the queue again; false if it is not to be.
requeue() {
    local code=$1 verb=$2 allowed starts
    shift 2
    # Requeueing ends the job, and with it the commands below, but for those that do not listen.
    trap '' TERM
    read -r allowed starts < <(
        scontrol --oneliner show job "$job" | sed -n 's/.* Requeue=\([01]\) Restarts=\([0-9]*\) .*/\1 \2/p'
    ) || return 1
    # Otherwise Slurm has done it: preemption, a dead node, `scontrol requeue`.
    if ((starts == ${SLURM_RESTART_COUNT:-0})); then
        # Fine-tuning runs have no measure of how far they have come.
        [[ $verb != finetune && $allowed == 1 ]] || return 1
        if [[ $verb == prepare ]]; then
            # Interrupted, or waiting for a share that waits for a node: it may have this one.
            ((code == 75 && starts < 20)) || return 1
        else
            # What asked itself to stop (STOP, run.max_hours, run.stop_at_step) is to stay so, and a sweep with runs that
            # have failed has tried all the others.
            [[ ($code == 1 && $verb == train) || -e $LONGMIX_ENDINGS/signalled ]] || return 1
        fi
        # Neither after scancel nor after the time limit.
        [[ $(squeue --noheader --jobs="$job" --format=%T) == RUNNING ]] || return 1
        [[ $verb == train ]] || set -- --sweep "$@"
        [[ $verb == prepare ]] || longmix requeue --job "$job" --code "$code" "$@" || return 1
        ((code == 75)) || look_at_nodes
        scontrol requeue "$job" || return 1
        [[ -z ${left_out:-} ]] || scontrol update JobId="$job" ExcNodeList="$left_out" || true
    fi
    # Slurm lets it wait for two minutes, but for a start time that lies ahead when the nodes have been cleaned up.
    scontrol update JobId="$job" StartTime=now+30 || true
}

# cancel_other_shares: the other jobs of this array, which would wait for the share that has failed.
cancel_other_shares() {
    local task others=()
    [[ -n ${SLURM_ARRAY_TASK_ID:-} ]] || return 0
    for ((task = ${SLURM_ARRAY_TASK_MIN:-0}; task <= SLURM_ARRAY_TASK_MAX; task += SLURM_ARRAY_TASK_STEP)); do
        ((task == SLURM_ARRAY_TASK_ID)) || others+=("${SLURM_ARRAY_JOB_ID}_$task")
    done
    say "the other shares are cancelled: mend what failed, and submit the same command again"
    ((${#others[@]} == 0)) || scancel "${others[@]}" || true
}

# look_at_nodes: into left_out those that the job is not to get again: which fail a look of seconds at their memory, their
# arithmetic and their way to the first node (longmix doctor --node), and which it was kept from before.
look_at_nodes() {
    local nodes node bad=()
    left_out=$(scontrol --oneliner show job "$job" | sed -n 's/.* ExcNodeList=\([^ ]*\) .*/\1/p')
    [[ $left_out != "(null)" ]] || left_out=""
    # Where the ranks met, others may still hang.
    MASTER_PORT=$((MASTER_PORT + 1)) srun --export=ALL "${step_gpus[@]}" --nodes="$SLURM_JOB_NUM_NODES" \
        --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --time=5 bash "$LONGMIX_HOME/slurm/task.sh" doctor --node </dev/null || true
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    for node in "${nodes[@]}"; do
        [[ -e $LONGMIX_ENDINGS/sound-$node ]] || bad+=("$node")
    done
    if ((2 * ${#bad[@]} > ${#nodes[@]} || ${#bad[@]} == ${#nodes[@]})); then
        say "${#bad[@]} of ${#nodes[@]} nodes fail longmix doctor --node: none is left out, for what they share may be at fault"
    elif ((${#bad[@]})); then
        left_out=${left_out:+$left_out,}$(IFS=,; echo "${bad[*]}")
        say "left out when the job starts again, for they fail longmix doctor --node: ${bad[*]}"
    fi
}

# find_ending SRUN_CODE: the exit code of the run into $code; the first failure decides it.
find_ending() {
    for code in 2 1 75; do
        [[ ! -e $LONGMIX_ENDINGS/$code ]] || return 0
    done
    code=$(($1 != 0))
}

[[ -z ${SLURM_GPUS_ON_NODE:-} ]] || find_gpus

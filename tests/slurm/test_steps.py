"""Whatever sbatch was asked for, wherever it was called: steps have what the job has (a stub stands for longmix)."""

import subprocess

import pytest

pytestmark = pytest.mark.slow

TOLD = 'echo "rank ${RANK:-none} of ${WORLD_SIZE:-one}, $SLURM_GPUS_ON_NODE GPUs, $SLURM_CPUS_ON_NODE CPUs"\n'


def _ranks(job) -> list[str]:
    assert job.wait() == ("COMPLETED", 0), job.text()
    return sorted(line for line in job.text().splitlines() if line.startswith("rank "))


def test_a_step_has_the_gpus_and_cpus_of_its_job(stub):
    def submit(*options, script="pretrain.sh", **environment):
        return stub(TOLD, "x", script=script, options=("--nodes=1", *options), **environment)

    # All at once. What another option of sbatch says of tasks and GPUs is for other tasks.
    whole = submit("--exclusive")
    half = submit("--exclusive", "--gpus-per-node=1")
    of_tasks = submit("--ntasks-per-node=2", "--gpus-per-task=1")
    of_gpus = submit("--gpus-per-node=2", "--ntasks-per-gpu=1", "--cpus-per-gpu=2")
    sweep = submit("--ntasks-per-node=2", "--gpus-per-task=1", script="sweep.sh")
    uneven = submit("--cpus-per-task=4", LONGMIX_TASKS_PER_NODE="3")

    assert _ranks(whole) == [f"rank {rank} of 2, 2 GPUs, 4 CPUs" for rank in range(2)]
    assert _ranks(half) == ["rank 0 of 1, 1 GPUs, 4 CPUs"]
    assert _ranks(of_tasks) == [f"rank {rank} of 2, 2 GPUs, 2 CPUs" for rank in range(2)]
    assert _ranks(of_gpus) == [f"rank {rank} of 2, 2 GPUs, 4 CPUs" for rank in range(2)]
    assert _ranks(sweep) == ["rank none of one, 2 GPUs, 2 CPUs"]
    assert _ranks(uneven) == [f"rank {rank} of 3,  GPUs, 4 CPUs" for rank in range(3)]


def test_other_numbers_of_gpus_on_other_nodes_are_a_mistake(stub):
    job = stub(TOLD, "x", options=("--nodes=2", "--gpus=3"))
    assert job.wait() == ("FAILED", 2), job.text()
    assert "longmix: error: this job has not as many GPUs on each of its nodes (but 1 2): ask for" in job.text()


def test_what_another_job_has_left_in_the_environment_is_not_this_jobs(stub):
    """sbatch was called within a job, which was an array's, had been started again, and had other tasks."""
    left = {
        "SLURM_ARRAY_JOB_ID": "1",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_ARRAY_TASK_COUNT": "9",
        "SLURM_RESTART_COUNT": "3",
        "SLURM_NTASKS_PER_NODE": "3",
        "SLURM_GPUS_PER_NODE": "2",
        "SLURM_MEM_PER_CPU": "10",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_DISTRIBUTION": "cyclic",
        "SLURM_MPI_TYPE": "missing",
    }
    job = stub(TOLD, "x", options=("--nodes=2", "--mem=1M"), **left)
    assert _ranks(job) == [f"rank {rank} of 2,  GPUs, 1 CPUs" for rank in range(2)]
    assert f"longmix slurm: job {job.number}, start 1," in job.text()
    sweep = stub('echo "rank $*"\n', "x", script="sweep.sh", options=("--nodes=1",), **left)
    assert _ranks(sweep) == ["rank sweep x"]


def test_a_shell_of_an_allocation_is_no_job(slurm, stub, tmp_path):
    """Nobody has counted its GPUs; and the ranks would wait for the CPUs that a shell of srun has."""
    script = tmp_path / "home" / "slurm" / "pretrain.sh"
    environment = {**slurm.environment, "LONGMIX_HOME": str(tmp_path / "home")}
    for command in ("salloc", "srun"):
        done = subprocess.run(
            [command, "--quiet", "--nodes=1", "bash", script, "x"], env=environment, capture_output=True, text=True
        )
        errors = [line for line in done.stderr.splitlines() if line.startswith("longmix: ")]
        assert (done.returncode, len(errors)) == (2, 1), done.stderr
        assert "start it with sbatch (in a shell of salloc or srun, on one node: longmix train)" in errors[0]


def test_a_check_that_the_machine_fails_does_not_keep_the_job_from_starting_again(stub):
    job = stub(TOLD, "x", CHECK="1")
    assert len(_ranks(job)) == 1


def test_a_time_limit_that_came_too_early_is_told(stub, tmp_path):
    told = tmp_path / "home" / ".venv" / "bin" / "squeue"
    told.write_text("#!/usr/bin/env bash\n[[ $* == *%r ]] && echo TimeLimit || echo COMPLETING\n")
    told.chmod(0o755)
    job = stub("exit 75\n", "x")
    assert job.wait() == ("FAILED", 75), job.text()
    assert "the time limit came before the run had saved: have it told earlier, with sbatch --signal=USR1" in job.text()

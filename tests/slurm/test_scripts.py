"""The job scripts: sound shell, and what they do with ranks, signals and exit codes (a stub stands for longmix)."""

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = sorted((REPOSITORY / "slurm").glob("*.sh"))


def test_scripts_are_sound_shell(require_or_skip):
    assert len(SCRIPTS) == 8
    for script in SCRIPTS:
        subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck") is None:
        require_or_skip("slurm", "shellcheck is missing (Debian: apt install shellcheck)")
    done = subprocess.run(
        ["shellcheck", "--external-sources", *SCRIPTS], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", ["pretrain.sh", "finetune_glue.sh", "sweep.sh", "prepare.sh"])
def test_outside_slurm_and_outside_the_repository(script, tmp_path):
    environment = {"PATH": "/usr/bin:/bin"}

    def run(folder):
        done = subprocess.run(
            ["bash", REPOSITORY / "slurm" / script, "x"], cwd=folder, env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stderr

    code, error = run(tmp_path)
    assert code == 2
    assert error.startswith("longmix: error: ")
    assert str(tmp_path) in error and "LONGMIX_HOME" in error
    assert error.count("\n") == 1
    code, error = run(REPOSITORY)
    assert (code, error.count("\n")) == (2, 1)
    assert "sbatch" in error


RANKS = 'echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK on $SLURMD_NODENAME, $MASTER_ADDR:$MASTER_PORT, $*"\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "environment", "per_node"),
    [((), {}, 1), (("--gpus-per-node=2",), {}, 2), (("--exclusive",), {"LONGMIX_TASKS_PER_NODE": "3"}, 3)],
    ids=["one task on each CPU node", "one task for each GPU", "as many as asked for"],
)
def test_ranks(stub, options, environment, per_node):
    job = stub(RANKS, "my run.yaml", "a=1", options=("--nodes=2", *options), **environment)
    assert job.wait() == ("COMPLETED", 0), job.text()
    lines = sorted(line for line in job.text().splitlines() if line.startswith("rank "))
    port = 10000 + 2 * job.number % 20000
    assert lines == [
        f"rank {rank} of {2 * per_node}, {rank % per_node} on longmix-n{rank // per_node + 1}, longmix-n1:{port}, "
        "train my run.yaml a=1"
        for rank in range(2 * per_node)
    ]
    assert f"stub train --check --processes {2 * per_node} my run.yaml a=1" in job.text()
    assert "stub doctor" in job.text() and f"JobId={job.number}" in job.text()
    assert not list(job.log.parent.glob(".longmix-*"))


@pytest.mark.slow
def test_options_that_a_job_would_not_be_requeued_with_are_refused(stub):
    job = stub(RANKS, "run.yaml", "--processes", "4")
    assert job.wait() == ("FAILED", 2), job.text()
    (error,) = (line for line in job.text().splitlines() if "error: " in line)
    assert "--processes is no run file and no key=value" in error and "LONGMIX_TASKS_PER_NODE=N" in error
    assert "stub" not in job.text()


@pytest.mark.slow
def test_the_ranks_meet_where_env_says_and_nowhere_else(stub, tmp_path):
    """An address in the environment that a job is submitted from is another job's."""
    stale = {"MASTER_ADDR": "elsewhere", "MASTER_PORT": "1"}
    job = stub(RANKS, "x", options=("--nodes=2",), **stale)
    assert job.wait() == ("COMPLETED", 0), job.text()
    assert job.text().count(f"longmix-n1:{10000 + 2 * job.number % 20000}") == 2
    with open(tmp_path / "home" / "slurm" / "env.sh", "a") as file:
        file.write("MASTER_ADDR=$SLURMD_NODENAME-ib0\n")
    job = stub(RANKS, "x", options=("--nodes=2",), **stale)
    assert job.wait() == ("COMPLETED", 0), job.text()
    assert job.text().count(f"longmix-n1-ib0:{10000 + 2 * job.number % 20000}") == 2


@pytest.mark.slow
@pytest.mark.full
def test_kernels_are_kept_on_the_nodes_disks(stub, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    caches = disk / f"longmix-caches-{os.getuid()}"
    body = 'echo "caches $TRITON_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR"\n'

    def told(**environment):
        job = stub(body, "x", LONGMIX_LOCAL_DISK=str(disk), **environment)
        assert job.wait() == ("COMPLETED", 0), job.text()
        return next(line for line in job.text().splitlines() if line.startswith("caches"))

    assert told() == f"caches {caches}/triton {caches}/inductor"
    assert caches.stat().st_mode & 0o777 == 0o700
    assert told(TRITON_CACHE_DIR="mine") == f"caches mine {caches}/inductor"
    # A link may lead to somebody else's folder.
    caches.rmdir()
    caches.symlink_to(tmp_path)
    assert told() == "caches  "


@pytest.mark.slow
def test_the_environment_is_copied_to_the_nodes_disks_once(stub, tmp_path):
    """The two nodes have one disk here, so the second finds the folder of the first; a folder of others is refused."""
    local, packed = tmp_path / "local", tmp_path / "packed"
    local.mkdir()
    python = packed / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/usr/bin/env bash\necho "staged $0 $* on $SLURMD_NODENAME"\n')
    python.chmod(0o755)
    archive = tmp_path / "environment.tar"
    subprocess.run(["tar", "--create", "--file", archive, "--directory", packed, ".venv"], check=True)
    with open(tmp_path / "home" / "slurm" / "env.sh", "a") as file:
        file.write(f"LONGMIX_ENVIRONMENT={archive}\nLONGMIX_LOCAL_DISK={local}\n")
    for copies in (1, 0):
        job = stub("exit 1\n", "x", options=("--nodes=1",))
        assert job.wait() == ("COMPLETED", 0), job.text()
        (folder,) = local.glob("longmix-[0-9]*")  # beside the caches of kernels
        assert job.text().count("copying ") == copies
        assert f"staged {folder}/.venv/bin/python -P -m longmix.trainer train x on longmix-n" in job.text()
        assert not (folder / "environment.tar").exists() and folder.stat().st_mode & 0o777 == 0o700
    (folder / "complete").unlink()
    os.chown(folder, 12345, 12345)
    job = stub("exit 1\n", "x", options=("--nodes=1",))
    assert job.wait() == ("FAILED", 2), job.text()
    assert (
        f"longmix: error: {folder} on longmix-n" in job.text() and "is not yours: set LONGMIX_LOCAL_DISK" in job.text()
    )
    archive.unlink()
    job = stub("exit 1\n", "x")
    assert job.wait() == ("FAILED", 2), job.text()
    assert f"LONGMIX_ENVIRONMENT is {archive}, which is no file: make it with tar --create" in job.text()


def test_jobs_that_copy_the_environment_at_once_leave_each_other_s_alone(tmp_path):
    packed = tmp_path / "packed"
    (packed / ".venv").mkdir(parents=True)
    archive = tmp_path / "environment.tar"
    subprocess.run(["tar", "--create", "--file", archive, "--directory", packed, ".venv"], check=True)

    folder = tmp_path / f"longmix-1-{archive.stat().st_size}-0"

    def stage(verb, job):
        command = ["bash", REPOSITORY / "slurm" / "stage.sh", verb, folder, f"{folder}.{job}"]
        return subprocess.run(command, env={**os.environ, "SLURMD_NODENAME": "n1"}).returncode

    def copied(job):
        shutil.copy(archive, f"{folder}.{job}/environment.tar")

    assert stage("check", 1) == 1
    for job in (1, 2):
        assert stage("prepare", job) == 0
        copied(job)
    assert stage("unpack", 1) == 0 == stage("check", 1)
    (folder / "in-use").touch()
    assert stage("prepare", 3) == 0
    copied(3)
    assert stage("unpack", 2) == stage("unpack", 3) == 0
    assert (folder / "in-use").exists() and sorted(tmp_path.glob("longmix-*")) == [folder]
    shutil.rmtree(folder)
    assert stage("prepare", 4) == 0
    Path(f"{folder}.4/environment.tar").write_bytes(archive.read_bytes()[:1024])  # it is still being packed
    assert stage("unpack", 4) == 1 == stage("check", 4)
    assert stage("discard", 4) == 0 and not list(tmp_path.glob("longmix-*"))


@pytest.mark.slow
def test_exit_codes(stub):
    """What the run ends with is what the job ends with; only a failure looks like one."""

    def submit(body, **environment):
        return stub('eval "$BODY"\n', "x", options=("--nodes=2",), BODY=body, **environment)

    # All at once. The first without a signal: it was asked to stop by its user.
    interrupted = submit('sleep "$RANK"; exit 75', REQUEUE="true")
    mistake = submit("exit 0", CHECK="2", REQUEUE="true")
    # The others would wait for ever. A second, so that they run what they do before they are ended.
    failed = submit('[[ $RANK == 1 ]] && { sleep 1; echo "rank 1: broken"; exit 1; }; exec sleep 600')
    late_mistake = submit("[[ $RANK == 1 ]] && { sleep 1; exit 2; }; exec sleep 600", REQUEUE="true")
    killed = submit("[[ $RANK == 1 ]] && { sleep 1; kill -KILL $$; }; exec sleep 600")

    assert interrupted.wait() == ("FAILED", 75), interrupted.text()
    assert "srun: error" not in interrupted.text()
    assert "submit the same command again" in interrupted.text()
    assert mistake.wait() == ("FAILED", 2), mistake.text()
    assert failed.wait(60) == ("FAILED", 1), failed.text()
    assert "rank 1: broken" in failed.text() and "srun: error" in failed.text()
    assert late_mistake.wait(60) == ("FAILED", 2), late_mistake.text()
    assert killed.wait(60) == ("FAILED", 1), killed.text()


SAVES = "trap 'sleep 1; echo saved; exit 75' USR1 TERM; echo ready; while true; do sleep 0.1; done\n"


@pytest.mark.slow
def test_signals_reach_the_ranks_and_wait_for_their_save(stub):
    signalled = stub(SAVES, "x", options=("--nodes=2", "--no-requeue"), REQUEUE="true")
    signalled.wait_for("ready\nready")
    signalled.signal("USR1")
    assert signalled.wait() == ("FAILED", 75), signalled.text()
    assert signalled.text().count("saved") == 2

    cancelled = stub(SAVES, "x", options=("--nodes=2",), REQUEUE="true")
    cancelled.wait_for("ready\nready")
    cancelled.signal()
    assert cancelled.wait()[0] == "CANCELLED"
    # The state is set at once, while the ranks still save.
    deadline = time.monotonic() + 10
    while "submit the same command again" not in cancelled.text():
        assert time.monotonic() < deadline, cancelled.text()
        time.sleep(0.1)
    assert cancelled.text().count("saved") == 2
    assert "stub requeue" not in signalled.text() + cancelled.text()


@pytest.mark.slow
def test_a_signal_to_the_script_alone_is_one_to_the_ranks(stub):
    job = stub(SAVES, "x", options=("--nodes=2", "--no-requeue"))
    job.wait_for("ready\nready")
    subprocess.run(["scancel", "--batch", "--signal=USR1", str(job.number)], env=job.environment, check=True)
    assert job.wait() == ("FAILED", 75), job.text()
    assert job.text().count("saved") == 2 and "submit the same command again" in job.text()


@pytest.mark.slow
def test_what_is_interrupted_or_fails_is_started_again(stub):
    body = (
        f"case ${{SLURM_RESTART_COUNT:-0}} in 1) [[ $RANK == 0 ]] || exit 1;; 2) echo finished; exit 0;; esac\n{SAVES}"
    )
    job = stub(body, "my run.yaml", "a=1", options=("--nodes=2",), REQUEUE="true")
    job.wait_for("ready\nready")
    job.signal("USR1")
    assert 0 < job.start_again() < 60
    assert f"stub requeue --job {job.number} --code 75 my run.yaml a=1" in job.text()
    assert 0 < job.start_again() < 60
    assert f"stub requeue --job {job.number} --code 1 my run.yaml a=1" in job.text()
    assert job.wait() == ("COMPLETED", 0), job.text()
    assert job.text().count("this job is in the queue again") == 2 and job.text().count("finished") == 2
    assert not list(job.log.parent.glob(".longmix-*"))


@pytest.mark.slow
def test_a_node_that_fails_a_look_at_it_is_left_out_by_name(stub):
    """After a failure, not after a signal; and not where most nodes fail, for what they share may be at fault."""
    job = stub("exit 1\n", "x", options=("--nodes=2",), REQUEUE="true", BAD="longmix-n2")
    job.restarts = 1
    job.wait_for("this job is in the queue again")
    assert job.text().count("stub doctor --node") == 2
    assert "left out when the job starts again, for they fail longmix doctor --node: longmix-n2\n" in job.text()
    deadline = time.monotonic() + 60
    while job.fields().get("ExcNodeList") != "longmix-n2":
        assert time.monotonic() < deadline, job.fields()
        time.sleep(0.1)
    job.signal()
    # Of a single node nothing can be told.
    alone = stub("exit 1\n", "x", options=("--nodes=1", "--nodelist=longmix-n2"), REQUEUE="true", BAD="longmix-n2")
    alone.restarts = 1
    alone.wait_for("1 of 1 nodes fail longmix doctor --node: none is left out")
    alone.wait_for("this job is in the queue again")
    assert alone.fields()["ExcNodeList"] == "(null)"
    alone.signal()


@pytest.mark.full
@pytest.mark.slow
def test_what_fails_twice_at_the_same_step_is_not(stub, tmp_path):
    """By the word of the real `longmix requeue`."""
    (tmp_path / "run.yaml").write_text("run: {dir: run}\nmodel: {model_type: s3attention}\ndata: {train: data}\n")
    longmix = shutil.which("longmix", path=Path(sys.executable).parent)
    job = stub("exit 1\n", "run.yaml", "run.seed=1", options=("--nodes=2",), REQUEUE=longmix)
    job.start_again()
    assert job.wait() == ("FAILED", 1), job.text()
    assert "longmix: not started again: it failed 2 times at step 0" in job.text()
    assert job.text().count("this job is in the queue again") == 1


@pytest.mark.full
@pytest.mark.slow
def test_the_jobs_of_an_array_share_a_sweep(stub, slurm, tmp_path):
    """Each run of the sweep is in one share, whatever the range of the array. A job that is interrupted is started
    again, and no other: the last one, whose number is the array's, too."""
    told = tmp_path / "told"
    array = stub(
        f'echo "$*, rank ${{RANK:-none}}" >> "{told}"\n'
        f'case "$* ${{SLURM_RESTART_COUNT:-0}}" in *0/3*) exit 1;; *1/3*) exit 75;; *" 0") {SAVES.strip()};; esac\n',
        *("a.yaml", "b.yaml", "--seeds", "2", "x=1"),
        script="sweep.sh",
        options=("--array=4-8:2", "--output=%a.log"),
        REQUEUE="true",
    )
    failed, stopped, interrupted = (
        dataclasses.replace(array, number=f"{array.number}_{task}", log=tmp_path / f"{task}.log") for task in (4, 6, 8)
    )
    interrupted.wait_for("ready")
    assert failed.wait() == ("FAILED", 1) and stopped.wait() == ("FAILED", 75)
    assert interrupted.fields()["JobId"] == str(array.number)
    interrupted.signal("USR1")
    assert 0 < interrupted.start_again() < 60
    arguments = "a.yaml b.yaml --seeds 2 x=1 --share"
    assert f"stub requeue --job {interrupted.number} --code 75 --sweep {arguments} 2/3" in interrupted.text()
    assert interrupted.wait() == ("COMPLETED", 0), interrupted.text()
    assert f"job {interrupted.number}, start 2," in interrupted.text()
    assert sorted(told.read_text().splitlines()) == [
        f"sweep {arguments} {share}/3, rank none" for share in (0, 1, 2, 2)
    ]
    assert (failed.fields()["Restarts"], stopped.fields()["Restarts"]) == ("0", "0")
    assert "stub requeue" not in failed.text() + stopped.text()


@pytest.mark.full
@pytest.mark.slow
def test_the_jobs_of_an_array_prepare_one_text(stub, slurm, tmp_path):
    """A job that waits in vain for a share without a node leaves its own to it, and comes again."""
    told = tmp_path / "told"
    array = stub(
        f'echo "$*" >> "{told}"\ncase "$* ${{SLURM_RESTART_COUNT:-0}}" in *"--share 0/2 "*" 0") exit 75;; esac\n',
        *("--source", "my text", "--output", "data"),
        script="prepare.sh",
        options=("--array=3-7:4", "--output=%a.log", "--cpus-per-task=2"),
    )
    waits, other = (dataclasses.replace(array, number=f"{array.number}_{n}", log=tmp_path / f"{n}.log") for n in (3, 7))
    assert 0 < waits.start_again() < 60
    assert waits.wait() == ("COMPLETED", 0) and other.wait() == ("COMPLETED", 0), waits.text() + other.text()
    assert sorted(told.read_text().splitlines()) == [
        f"prepare text --source my text --output data --share {share}/2 --workers 2" for share in (0, 0, 1)
    ]
    assert "this job is in the queue again" in waits.text() and "stub requeue" not in waits.text()


@pytest.mark.full
@pytest.mark.slow
def test_a_share_that_fails_takes_the_others_along(stub, tmp_path):
    """Even one that was killed, and could tell nobody: the others would wait for it."""
    array = stub(
        'case "$*" in *"--share 1/3 "*) sleep 1; kill -KILL $$;; esac\nexec sleep 600\n',
        *("--source", "x", "--output", "data"),
        script="prepare.sh",
        options=("--array=0-2", "--output=%a.log"),
    )
    jobs = [dataclasses.replace(array, number=f"{array.number}_{n}", log=tmp_path / f"{n}.log") for n in range(3)]
    assert jobs[1].wait(60) == ("FAILED", 1), jobs[1].text()
    assert "the other shares are cancelled: mend what failed, and submit the same command again" in jobs[1].text()
    assert [job.wait(60)[0] for job in (jobs[0], jobs[2])] == ["CANCELLED", "CANCELLED"]

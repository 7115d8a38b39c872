"""The command as it is started: exit codes, signals, killed processes, and going on afterwards."""

import os
import signal
import time
from pathlib import Path

import pytest


def children_of(pid):
    """Ids of the processes that `pid` has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return sorted(found)


def is_alive(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


LONG = {
    "optim.max_steps": 120,
    "checkpoint.every_steps": 20,
    "eval.every_steps": 50,
    "deepspeed": "zero1",
    "model.hidden_dropout_prob": 0.1,
}


def reached(folder, step):
    """A condition: the run has recorded `step`."""

    def holds():
        path = folder / "metrics.jsonl"
        return path.exists() and f'"kind": "train", "step": {step},' in path.read_text()

    return holds


def assert_same_run(folder, reference, records_of):
    assert records_of(folder) == records_of(reference)
    for name in ("model.safetensors", "config.json"):
        assert (folder / "model" / name).read_bytes() == (reference / "model" / name).read_bytes()


def newest_step(folder):
    return max(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))


@pytest.mark.slow
@pytest.mark.full
def test_stopped_and_killed_again_and_again_it_is_the_same_run(
    longmix, start, run_values, write_run_file, read_metrics, untimed, tmp_path
):
    """Two ranks, with dropout; what torchrun starts, never interrupted, is what the launcher's run is held against."""
    reference, folder = tmp_path / "reference", tmp_path / "run"
    path = write_run_file(tmp_path / "reference.yaml", run_values(reference, "s3attention", **LONG))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2]
    uninterrupted = start(*torchrun, "-m", "longmix.trainer", "train", path)
    path = write_run_file(tmp_path / "run.yaml", run_values(folder, "s3attention", **LONG))

    stopped = longmix("train", path, "--processes", 2)
    stopped.wait_until(reached(folder, 7))
    os.kill(stopped.process.pid, signal.SIGTERM)
    code, output = stopped.wait()
    assert code == 75 and "Traceback" not in output, output
    assert "by a signal; the same command goes on from there" in output
    step = newest_step(folder)
    assert step == max(record["step"] for record in read_metrics(folder)) >= 7

    killed = longmix("train", path, "--processes", 2)
    killed.wait_until(reached(folder, step + 22))
    workers = children_of(killed.process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    code, output = killed.wait(60)
    assert code == 1 and f"going on from step {step}" in output, output
    begun, *told = [line for line in output.splitlines() if line.startswith("longmix: ")]
    assert begun.endswith("loading torch and DeepSpeed")
    assert told[0] in [f"longmix: rank {rank} was killed by SIGKILL" for rank in (0, 1)]
    assert "Traceback" not in output and not any(map(is_alive, workers))
    step = newest_step(folder)

    launched = longmix("train", path, "--processes", 2)
    launched.wait_until(reached(folder, step + 22))
    workers = children_of(launched.process.pid)
    launched.process.kill()
    deadline = time.monotonic() + 20
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) == 2 and not any(map(is_alive, workers))
    launched.wait()
    step = newest_step(folder)
    assert step < 120

    code, output = longmix("train", path, "--processes", 2).wait()
    assert code == 0 and f"going on from step {step}" in output, output
    code, output = uninterrupted.wait()
    assert code == 0, output
    assert_same_run(folder, reference, lambda folder: untimed(read_metrics(folder)))


@pytest.mark.slow
@pytest.mark.full
def test_one_process_stops_and_survives_a_kill(
    train, longmix, run_values, write_run_file, read_metrics, untimed, tmp_path
):
    short = {**LONG, "deepspeed": None}
    folder = tmp_path / "run"
    path = write_run_file(tmp_path / "run.yaml", run_values(folder, "s3attention", **short))
    step = 0
    for number, expected in ((signal.SIGINT, 75), (signal.SIGKILL, -signal.SIGKILL)):
        command = longmix("train", path)
        command.wait_until(reached(folder, step + 5))
        command.process.send_signal(number)
        code, output = command.wait()
        assert code == expected and "Traceback" not in output, output
        step = newest_step(folder)
    assert 0 < step < 120
    code, output = longmix("train", folder).wait()
    assert code == 0, output
    train(tmp_path / "whole", "s3attention", **short)
    assert_same_run(folder, tmp_path / "whole", lambda folder: untimed(read_metrics(folder)))


@pytest.mark.slow
def test_a_signal_during_the_start_interrupts(longmix, run_values, write_run_file, tmp_path):
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run"))
    command = longmix("train", path, "--processes", 2)
    command.wait_until(lambda: len(children_of(command.process.pid)) == 2)
    os.kill(command.process.pid, signal.SIGTERM)
    code, output = command.wait(60)
    assert code == 75 and "Traceback" not in output, output


@pytest.mark.slow
@pytest.mark.full
def test_a_rank_that_fails_alone_ends_the_run_with_its_reason_first(longmix, run_values, write_run_file, tmp_path):
    hook = tmp_path / "hook"
    hook.mkdir()
    # Rank 1 meets an error of ours in its third step, after that of the dry run.
    (hook / "sitecustomize.py").write_text(
        """
import os

if os.environ.get("RANK") == "1":
    from longmix.trainer.engines import accelerate

    steps, whole = [], accelerate.AccelerateEngine.step

    def failing(self, rate):
        steps.append(rate)
        if len(steps) == 4:
            raise ZeroDivisionError("planted")
        return whole(self, rate)

    accelerate.AccelerateEngine.step = failing
"""
    )
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run"))
    search = os.pathsep.join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
    code, output = longmix("train", path, "--processes", 2, PYTHONPATH=search).wait(90)
    assert code == 1, output
    begun, *told = [line for line in output.splitlines() if line.startswith(("longmix:", "Traceback"))]
    assert begun.endswith("loading torch and Accelerate")
    assert told[:2] == ["longmix: rank 1 failed: ZeroDivisionError: planted", "Traceback (most recent call last):"]
    assert told[2:] in ([], ["longmix: rank 0 ends, because another rank has gone"])


@pytest.mark.slow
@pytest.mark.full
def test_mistakes_found_in_the_workers_are_told_once_and_together(longmix, run_values, write_run_file, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 99, "gradient_clipping": 5.0, "zero_optimization": {"stage": 1}}')
    values = run_values(tmp_path / "run", deepspeed=str(file), **{"model.num_attention_heads": 3})
    path = write_run_file(tmp_path / "run.yaml", values)
    code, output = longmix("train", path, "--processes", 2).wait(90)
    assert code == 2 and output.count("longmix: error:") == 1 and "Traceback" not in output, output
    begun, _ = output.strip().splitlines()
    assert begun.endswith("loading torch and DeepSpeed")
    assert "num_attention_heads is 3; allowed: divisors of hidden_size (16)" in output
    assert "train_batch_size is 99" in output and "gradient_clipping is 5.0" in output
    assert not (tmp_path / "run").exists()

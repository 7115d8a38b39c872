"""Real jobs on two nodes: whatever Slurm does to them, a run is as if it were alone; fine-tuning; mistakes."""

import dataclasses
import json
import os
import random
import signal
import subprocess

import pytest

# Whole runs on two nodes; test_scripts.py proves without a run what the scripts do with ranks, signals and exit codes.
pytestmark = [pytest.mark.slow, pytest.mark.full]

RUN_FILE = """\
run: {dir: run}
model: {model_type: s3attention, hidden_size: 16, num_hidden_layers: 2}
data: {train: data/train, eval: data/validation}
batch: {samples: 8, micro_batch: 2}
optim: {max_steps: 200, warmup_steps: 5}
eval: {every_steps: 50, samples: 20}
checkpoint: {every_steps: 1000}
log: {every_steps: 1, tensorboard: false}
"""


def _sentences(count: int) -> list[str]:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 8))) for _ in range(300)]
    return [" ".join(draw.choices(words, k=draw.randint(20, 60))) + "." for _ in range(count)]


@pytest.fixture(scope="module")
def work(tmp_path_factory, slurm):
    """A folder with data, a run file, and `alone`: the run of that file in two processes without Slurm."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "text.txt").write_text("\n\n".join(_sentences(300)))
    (folder / "run.yaml").write_text(RUN_FILE)
    for command in (
        "longmix prepare text --source text.txt --output data --vocab-size 200 --sequence-length 48 --workers 1",
        "longmix train run.yaml run.dir=alone --processes 2",
    ):
        done = subprocess.run(
            command.split(),
            cwd=folder,
            env=slurm.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
    return folder


# What depends on the machine, not on the run.
SPEEDS = ("tokens_per_second", "data_wait_fraction", "mfu", "gpu_memory_gib")


def _records(run) -> list[dict]:
    """The records of a run, without its speed."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in SPEEDS} for record in records]


def _step(run) -> int:
    return _records(run)[-1]["step"]


def _equal(run, reference) -> None:
    """Every record to the last bit, none missing or twice, and the model."""
    assert _records(run) == _records(reference)
    ours, theirs = (folder / "model" / "model.safetensors" for folder in (run, reference))
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_job_goes_on_by_itself_whatever_takes_its_nodes(work, slurm):
    """One job: preempted by a signal, requeued by an administrator, its second node lost. The run is as if alone."""
    run = work / "run"
    job = slurm.submit(work, "pretrain.sh", "run.yaml", options=("--nodes=2",))
    job.wait_for("train 10/200")
    job.signal("USR1")
    # Less than the two minutes that Slurm makes a requeued job wait.
    assert 0 < job.start_again() < 60
    stopped = [_step(run)]
    assert f"stopped at step {stopped[0]}" in job.text() and "this job is in the queue again" in job.text()

    job.wait_for(f"train {stopped[0] + 10}/200")
    job.requeue()
    assert 0 < job.start_again() < 60
    stopped.append(_step(run))
    assert f"stopped at step {stopped[1]}" in job.text()

    job.wait_for(f"train {stopped[1] + 10}/200")
    slurm.lose_node("longmix-n2")
    slurm.report_lost("longmix-n2")
    slurm.start_node("longmix-n2")
    job.start_again()

    assert job.wait() == ("COMPLETED", 0), job.text()
    assert 0 < stopped[0] < stopped[1] < 200
    # The last start has only what was saved before.
    for start, step in enumerate([*stopped, stopped[1]], start=2):
        assert f"job {job.number}, start {start}," in job.text()
        assert f"going on from step {step}\n" in job.text()
    assert job.text().count(f"going on from step {stopped[1]}\n") == 2
    # The log begins with the environment.
    assert "deepspeed" in job.text() and f"JobId={job.number}" in job.text()
    _equal(run, work / "alone")


@pytest.mark.faults
def test_a_job_goes_on_by_itself_after_its_time_limit(work, slurm):
    run = work / "timed"
    options = ("--nodes=2", "--time=2", "--signal=USR1@10")
    job = slurm.submit(work, "pretrain.sh", "run.yaml", "run.dir=timed", options=options)
    job.wait_for("train 10/200")
    # The run would be over long before: it sleeps until Slurm's signal wakes it.
    for rank in slurm.processes(b"\0RANK="):
        os.kill(rank, signal.SIGSTOP)
    assert 0 < job.start_again() < 60
    stopped = _step(run)
    assert f"stopped at step {stopped} by a signal" in job.text()
    assert job.wait() == ("COMPLETED", 0), job.text()
    assert f"going on from step {stopped}\n" in job.text()
    _equal(run, work / "alone")


@pytest.mark.faults
def test_a_job_goes_on_with_the_nodes_that_are_left(work, slurm):
    """Slurm notices by itself that a node is gone; what would run on two goes on with one, as in elastic resume."""
    command = ("run.yaml", "deepspeed=zero0", "checkpoint.every_steps=20")
    subprocess.run(
        ["longmix", "train", *command, "run.dir=alone-zero0", "--processes", "2"],
        cwd=work,
        env=slurm.environment,
        check=True,
        capture_output=True,
    )
    with slurm.silence_allowed(seconds=15):
        job = slurm.submit(work, "pretrain.sh", *command, "run.dir=elastic", options=("--nodes=1-2",))
        job.wait_for("train 30/200")
        slurm.lose_node("longmix-n2")
        job.wait_for("this job is in the queue again")
        job.start_again()
        assert job.wait() == ("COMPLETED", 0), job.text()
    slurm.start_node("longmix-n2")
    assert "going on from step" in job.text()
    assert job.fields()["NodeList"] == "longmix-n1"
    alone, elastic = _records(work / "alone-zero0"), _records(work / "elastic")
    for ours, expected in zip(elastic, alone, strict=True):
        assert ours == pytest.approx(expected, abs=1e-5)


def test_a_wrong_key_is_told_once(work, slurm):
    job = slurm.submit(
        work, "pretrain.sh", "run.yaml", "run.dir=wrong", "optim.learning_rate=1", options=("--nodes=2",)
    )
    assert job.wait() == ("FAILED", 2), job.text()
    errors = [line for line in job.text().splitlines() if "error" in line.lower()]
    assert len(errors) == 1
    assert errors[0].startswith("longmix: error: ") and "learning_rate" in errors[0]
    assert "Traceback" not in job.text()
    assert not (work / "wrong").exists()


def test_finetuning_runs_what_glue_holds(work, slurm):
    """Without --task: the tasks whose files are there; the others are named."""
    (work / "glue" / "CoLA").mkdir(parents=True)
    for name, sentences in (("train", _sentences(40)), ("dev", _sentences(10))):
        rows = [f"x\t{index % 2}\t\t{sentence}" for index, sentence in enumerate(sentences)]
        (work / "glue" / "CoLA" / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    options = "--model alone/model --data glue --output tuned --seeds 1 --epochs 1"
    job = slurm.submit(work, "finetune_glue.sh", *options.split())
    assert job.wait() == ("COMPLETED", 0), job.text()
    results = json.loads((work / "tuned" / "results.json").read_text())
    assert "cola" in json.dumps(results)
    assert "skipping sst2" in job.text()


def test_an_array_prepares_what_one_process_prepares(work, slurm):
    """More shares than can run at once: to the byte."""
    arguments = ("--source", "text.txt", "--output", "shared", "--vocab-size", "200", "--sequence-length", "48")
    options = ("--array=0-2", "--output=prepare-%a.log", "--cpus-per-task=2")
    array = slurm.submit(work, "prepare.sh", *arguments, options=options)
    for index in range(3):
        job = dataclasses.replace(array, number=f"{array.number}_{index}", log=work / f"prepare-{index}.log")
        assert job.wait() == ("COMPLETED", 0), job.text()
    files = {path.relative_to(work / "data") for path in (work / "data").rglob("*")}
    assert {path.relative_to(work / "shared") for path in (work / "shared").rglob("*")} == files
    for name in files:
        assert (work / "data" / name).is_dir() or (work / "data" / name).read_bytes() == (
            work / "shared" / name
        ).read_bytes()

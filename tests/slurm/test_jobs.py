"""Real jobs on two nodes: pre-training equals a run without Slurm, through an interruption; fine-tuning; mistakes."""

import json
import random
import subprocess

import pytest

pytestmark = pytest.mark.slow

RUN_FILE = """\
run: {dir: run}
model: {model_type: s3attention, hidden_size: 16, num_hidden_layers: 2}
data: {train: data/train, eval: data/validation}
batch: {samples: 8, micro_batch: 4}
optim: {max_steps: 50, warmup_steps: 5}
eval: {every_steps: 25, samples: 20}
checkpoint: {every_steps: 1000}
log: {every_steps: 1, tensorboard: false}
"""


def _sentences(count: int) -> list[str]:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 8))) for _ in range(300)]
    return [" ".join(draw.choices(words, k=draw.randint(20, 60))) + "." for _ in range(count)]


@pytest.fixture(scope="module")
def work(tmp_path_factory, slurm):
    """A folder with data, a run file, and `alone`: the run of that file in one process without Slurm."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "text.txt").write_text("\n\n".join(_sentences(300)))
    (folder / "run.yaml").write_text(RUN_FILE)
    for command in (
        "longmix prepare text --source text.txt --output data --vocab-size 200 --sequence-length 48 --workers 1",
        "longmix train run.yaml run.dir=alone",
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


def _records(run) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_pretraining_on_two_nodes_through_an_interruption(work, slurm):
    """USR1 makes the ranks save and the job end with 75; the same command goes on, as if nothing had happened."""
    command = ("pretrain.sh", "run.yaml", "batch.micro_batch=2")
    first = slurm.submit(work, *command, options=("--nodes=2",))
    first.wait_for("eval 0/50")
    first.signal("USR1")
    assert first.wait() == ("FAILED", 75), first.text()
    assert "stopped at step" in first.text()
    assert "submit the same command again" in first.text()
    assert "srun: error" not in first.text() and "Traceback" not in first.text()
    done = _records(work / "run")[-1]["step"]
    assert 0 < done < 50

    second = slurm.submit(work, *command, options=("--nodes=2",))
    assert second.wait() == ("COMPLETED", 0), second.text()
    assert f"going on from step {done}" in second.text()
    assert (work / "run" / "model" / "model.safetensors").exists()
    # The log begins with the environment.
    assert "deepspeed" in first.text() and f"JobId={first.number}" in first.text()

    alone, slurm_run = _records(work / "alone"), _records(work / "run")
    assert [(one["kind"], one["step"]) for one in slurm_run] == [(one["kind"], one["step"]) for one in alone]
    for ours, expected in zip(slurm_run, alone, strict=True):
        assert ours["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert ours.get("samples_seen") == expected.get("samples_seen")


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

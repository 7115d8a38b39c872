"""The README's commands, run as they stand there but shortened, and its tables against the code.

Every line of a ```bash block is run, in order, in one folder that holds the files which the README takes for granted.
Shortening appends arguments (the last word of an option or a run file's key wins). A line of sbatch is checked as the
command that its script runs in the job, without running it: tests/slurm does that.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longmix.modeling import MODEL_TYPES
from longmix.trainer import cli
from longmix.trainer.settings import configuration, reading
from longmix.trainer.settings.run_file import parse_yaml

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

SHORTER = {
    "prepare text": ["--vocab-size", "40", "--sequence-length", "24"],
    "prepare listops": [
        *("--min-length", "5", "--max-length", "40"),
        *("--train-samples", "12", "--validation-samples", "4", "--test-samples", "4"),
    ],
    "prepare probe": ["--samples", "40"],
    "train": [
        *("model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=2"),
        *("model.intermediate_size=32", "model.segments=4", "model.row_landmarks=4", "model.column_landmarks=4"),
        *("batch.samples=4", "batch.micro_batch=2", "optim.max_steps=2", "optim.warmup_steps=1", "eval.samples=4"),
    ],
    "evaluate": [],
    "predict": [],
    "finetune": ["--seeds", "1", "--epochs", "1", "--max-length", "16"],
    "sweep": [],
    "export": [],
    "doctor": [],
}
IN_THE_JOB = {
    "slurm/pretrain.sh": ["train", "--check"],
    "slurm/finetune_glue.sh": ["finetune", "--task", "all"],
    "slurm/sweep.sh": ["sweep"],
    "slurm/prepare.sh": ["prepare", "text"],
}

SENTENCE = "the river runs down to the sea and the boats on it carry stones and wood to the old town"


def commands():
    lines = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def shortened(words):
    """The arguments of `longmix` that a line of the README comes down to."""
    if words[0] == "sbatch":
        script = next(index for index, word in enumerate(words) if not word.startswith("-") and index > 0)
        assert (ROOT / words[script]).is_file()
        words = ["longmix", *IN_THE_JOB[words[script]], *words[script + 1 :]]
    assert words[0] == "longmix", f"the README's {words[0]} is not known to this test"
    verb = " ".join(words[1:3]) if words[1] == "prepare" else words[1]
    return [*words[1:], *SHORTER[verb]]


@pytest.fixture
def folder(tmp_path):
    """What the README takes for granted: the repository's files, articles.txt, and GLUE's CoLA."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    words = SENTENCE.split()
    turned = [words[index:] + words[:index] for index in range(len(words))]
    documents = "\n\n".join(". ".join(" ".join(turned[(n + k) % len(turned)]) for k in range(4)) for n in range(120))
    (tmp_path / "articles.txt").write_text(documents, encoding="utf-8")
    cola = tmp_path / "glue" / "CoLA"
    cola.mkdir(parents=True)
    rows = [f"x\t{n % 2}\t\t{' '.join(turned[n % len(turned)][: 4 + n % 3])}" for n in range(60)]
    (cola / "train.tsv").write_text("\n".join(rows[:40]) + "\n", encoding="utf-8")
    (cola / "dev.tsv").write_text("\n".join(rows[40:]) + "\n", encoding="utf-8")
    return tmp_path


# Several commands in one process, and the processes forked from one that has imported what takes long. The doctor's
# exit code says whether this machine lacks something.
RUNNER = """
import json, os, sys
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed.runtime.zero.muon.muon_optimizer, pandas, transformers
from longmix.trainer.cli import main
from longmix.trainer.finetune import command
from longmix.trainer.run import loop
def run(group):
    for arguments in group:
        code = main(arguments)
        if code and arguments != ["doctor"]:
            sys.exit(f"longmix {' '.join(arguments)} ended with {code}")
for group in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        run(group)
        sys.exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""


def grouped(run):
    """Lists of commands; a process has served once it has been part of a run."""
    groups = [[]]
    for arguments in run:
        groups[-1].append(arguments)
        if arguments[0] in ("train", "finetune", "evaluate") and "--check" not in arguments:
            groups.append([])
    return [group for group in groups if group]


@pytest.mark.full
@pytest.mark.slow
def test_the_commands_run_in_the_order_in_which_they_stand(folder):
    run = []
    for words in commands():
        arguments = shortened(words)
        cli._parse(arguments)
        # Fine-tuning in a job starts from the model of the job before it, which was only checked.
        if words[0] == "longmix" or "--check" in arguments:
            run.append(arguments)
    assert len(run) < len(commands())
    process = subprocess.run(
        [sys.executable, "-c", RUNNER, json.dumps(grouped(run))],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "Traceback" not in process.stderr, process.stderr
    assert "cola" in (folder / "runs" / "articles-glue" / "results.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    script = f"{code}\nprint(type(model).__name__)"
    shown = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=300)
    assert shown.stdout.strip() == "S3AttentionForMaskedLM", shown.stderr


def test_the_table_names_every_key_of_the_run_file_with_its_default():
    shown = {}
    table = README[README.index("| key | default |") :].partition("\n\n")[0]
    for line in re.findall(r"^\| (`[a-z].*)$", table, re.MULTILINE):
        cells = [cell.strip() for cell in line.split("|")]
        names = re.findall(r"`([^`]+)`", cells[0])
        # A list's commas are not those between two defaults.
        defaults = re.split(r", (?![^\[{]*[\]}])", cells[1]) if len(names) > 1 else [cells[1]]
        shown.update(zip(names, defaults, strict=True))
    for name in ("extends", "model.model_type", "model.from", "model.*"):
        assert shown.pop(name)
    small = {"run": {"dir": "DIR"}, "model": {"model_type": "bert"}, "data": {"train": "DIR"}}
    values = configuration.flatten(reading.from_dict(small, "test").to_dict())
    assert set(shown) == set(values) - {"model.model_type"}
    wrong = {
        name: text
        for name, text in shown.items()
        if text not in ("needed", "by longmix") and read_value(text) != values[name]
    }
    assert not wrong


def test_every_mixer_is_named():
    papers = re.findall(r"^\| \[`(\w+)`\]\(modeling/\1\) \|", README, re.MULTILINE)
    (row,) = re.findall(r"^\| `model\.model_type` \|.*$", README, re.MULTILINE)
    assert sorted(papers) == sorted(MODEL_TYPES)
    assert set(MODEL_TYPES) <= set(re.findall(r"`([^`]+)`", row))


def read_value(text):
    return parse_yaml(text, "README.md")


def test_the_torch_for_old_cards_is_the_one_that_is_tested():
    pinned = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"cu126 torch==([\d.]*\d)", README) == pinned


def test_every_file_that_the_readme_links_is_there():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target

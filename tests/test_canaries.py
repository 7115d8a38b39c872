"""The user's files under every name that longmix uses: each command refuses in one line, or leaves them as they are."""

import shutil
from pathlib import Path

import pytest
import yaml

from longmix.data_prep.files import LOCK
from longmix.data_prep.made_files import RECORD
from longmix.trainer.cli import main
from longmix.trainer.quickstart import command as quickstart

STORED = Path(__file__).parent / "stored" / "ce0a594"
# In the output; each holds a text of the user's.
NAMES = [
    *("config.json", "model.safetensors", "README.md", "objective.json", "tokenizer.model", "tokenizer_config.json"),
    *("config.yaml", "metrics.jsonl", "STOP", "SAVE", "requeue.json", "failure.json", "sweep.json", "seed-0.log"),
    *("model/weights", "checkpoints/best.pt", "checkpoints/latest", "checkpoints/.step-00000001.tmp/weights"),
    *(
        "heartbeats/alarm",
        "heartbeats/notes",
        "stacks/rank-00000.txt",
        "tensorboard/events",
        "wandb/notes",
        "seed-0/config.yaml",
    ),
    *("manifest.json", "shard-00000.parquet", "prepare.json", "train/shard-00000.parquet", "validation/manifest.json"),
    *("test/notes", "tokenizer/tokenizer.json", ".blocks/train-000000.json", ".model/weights", "speed/notes"),
    *("job.json", "result.json", "results.json", "results.md", "predictions/dev.json", "submission/CoLA.tsv"),
    *("custom/data/prepared.json", "custom/data/train/notes", "custom/seed-0/notes", "custom/seed-0/job.json"),
    *("report.md", "report.csv", "report.json", "report.html", "quickstart.json", "pretrain.yaml", "about.json"),
    *("embedded/about.json", "text/part.json", "data/prepare.json", "pretrain/config.yaml", "notes.txt", "slurm-1.out"),
    *(".longmix.json", ".longmix-files.json"),
]
# Beside the output, as longmix calls what it is writing there, or once did.
BESIDE = [".out.7.new/thesis", ".out.7.old/thesis", ".out.tmp/thesis", ".out.new/thesis", "out.log", ".model/thesis"]
COMMANDS = {
    "export": ("export", "runs/deepspeed", "--output", "out"),
    "train": ("train", "run.yaml", "run.dir=out"),
    "sweep": ("sweep", "run.yaml", "--seeds", "1"),
    "prepare text": ("prepare", "text", "--source", "task/train.tsv", "--output", "out", "--workers", "1"),
    "prepare listops": ("prepare", "listops", "--output", "out", "--train", "4", "--validation", "2", "--test", "2"),
    "finetune": (
        *("finetune", "--model", "model", "--task", "custom", "--data", "task", "--text-columns", "text"),
        *("--label-column", "label", "--output", "out", "--seeds", "1", "--epochs", "1"),
    ),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what the commands read, and the user's files beside their output `out`."""
    for name in ("runs", "data", "task"):
        shutil.copytree(STORED / name, tmp_path / name, symlinks=True)
    shutil.copytree(STORED / "runs/deepspeed/checkpoints/step-00000002/model", tmp_path / "model")
    values = yaml.safe_load((tmp_path / "runs" / "accelerate" / "config.yaml").read_text())
    values["run"] = {"dir": "out"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    plant(tmp_path, BESIDE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plant(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the user's {name}\n")


def run(capsys, *arguments):
    """(exit code, the lines that say what is wrong)."""
    capsys.readouterr()
    code = main(list(arguments))
    return code, [line for line in capsys.readouterr().err.splitlines() if "error:" in line or "Traceback" in line]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_whole_tree_is_refused_in_one_line_and_stays(place, capsys, command, contents):
    plant(place / "out", NAMES)
    before = contents(place)
    code, lines = run(capsys, *COMMANDS[command])
    assert code == 2 and len(lines) == 1 and "out" in lines[0], lines
    assert contents(place) == before


@pytest.mark.parametrize("command", ["export", "prepare text", "prepare listops"])
@pytest.mark.full
def test_each_name_alone_is_refused(place, capsys, command, contents):
    for name in NAMES:
        plant(place / "out", [name])
        before = contents(place)
        code, lines = run(capsys, *COMMANDS[command])
        # Tasks make their splits beside a hidden file.
        assert (code, len(lines)) in [(2, 1), *([(0, 0)] if command == "prepare listops" and name[0] == "." else [])], (
            name
        )
        assert {path: data for path, data in contents(place).items() if path in before} == before, name
        assert code == 0 or contents(place) == before, name
        shutil.rmtree(place / "out")


# In the order in which fine-tuning comes to them.
@pytest.mark.parametrize(
    "name",
    [
        "results.json",
        "results.md",
        "custom/data/prepared.json",
        "custom/data/train/notes",
        "custom/data/tokenizer/notes.txt",
        "custom/seed-0/notes",
        "custom/seed-0.log",
    ],
)
@pytest.mark.full
def test_fine_tuning_refuses_each_name_that_it_writes(place, capsys, name, contents):
    plant(place / "out", [name])
    before = contents(place)
    code, lines = run(capsys, *COMMANDS["finetune"], *(("--jobs", "2", "--seeds", "2") if name.endswith("log") else ()))
    assert code == 2 and len(lines) == 1 and f"out/{Path(name).parts[0]}" in lines[0], lines
    assert {path: data for path, data in contents(place).items() if path in before} == before


@pytest.mark.parametrize("name", ["seed-0.log", "sweep.json", "seed-0/config.yaml", "seed-0/model/weights"])
def test_a_sweep_refuses_each_name_that_it_writes(place, capsys, name, contents):
    plant(place / "out", [name])
    before = contents(place)
    code, lines = run(capsys, *COMMANDS["sweep"])
    assert code == 2 and len(lines) == 1 and "out/s" in lines[0], lines
    assert contents(place) == before


def test_a_quickstart_refuses_each_name(place, capsys, contents):
    for name in NAMES:
        plant(place / "out", [name])
        before = contents(place / "out")
        assert quickstart.main(["--output", "out"]) == 2, name
        assert capsys.readouterr().err.count("\n") == 1, name
        assert contents(place / "out") == before, name
        shutil.rmtree(place / "out")


@pytest.mark.full
def test_a_run_leaves_all_that_is_none_of_its_own(place, capsys, contents):
    own = {
        "config",
        "metrics",
        "model",
        "checkpoints",
        "heartbeats",
        "stacks",
        "tensorboard",
        "wandb",
        "STOP",
        "SAVE",
        "requeue",
    }
    names = [name for name in NAMES if Path(name).parts[0].split(".")[0] not in {*own, "failure", "manifest"}]
    assert len(names) > 30
    plant(place / "out", names)
    before = contents(place / "out")
    beside = contents(place)
    for _ in range(2):
        code, lines = run(capsys, *COMMANDS["train"], "run.stop_at_step=null")
        assert code == 0, lines
        assert {path: data for path, data in contents(place / "out").items() if path in before} == before
        assert {path: data for path, data in contents(place).items() if path in beside} == beside
    assert (place / "out" / LOCK).is_file() and (place / "out" / "model" / "config.json").is_file()


@pytest.mark.full
def test_a_report_leaves_all_that_is_none_of_its_own(place, capsys, contents):
    reports = [name for name in NAMES if name.startswith(("report.", RECORD))]
    assert run(capsys, *COMMANDS["train"], "run.stop_at_step=null", "run.dir=finished")[0] == 0
    for name in reports:
        plant(place / "out", [name])
        before = contents(place)
        code, lines = run(capsys, "report", "finished", "--output", "out")
        assert code == 2 and len(lines) == 1, lines
        assert contents(place) == before
        shutil.rmtree(place / "out")
    plant(place / "out", [name for name in NAMES if name not in reports])
    before = contents(place)
    for _ in range(2):
        assert run(capsys, "report", "finished", "--output", "out")[0] == 0
        assert {path: data for path, data in contents(place).items() if path in before} == before

"""Every task with every row of the comparison trains two steps at small size, or is refused with a reason told here."""

import argparse
import datetime
import itertools
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModel

from longmix.data_prep.command import add_prepare_parser
from longmix.data_prep.errors import UserError
from longmix.modeling import MODEL_TYPES
from longmix.trainer.models.field_check import field_mistakes
from longmix.trainer.models.sizes import count_parameters
from longmix.trainer.run import loop
from longmix.trainer.run.setup import prepare as set_up
from longmix.trainer.settings import reading
from longmix.trainer.settings.objectives import OBJECTIVES
from longmix.trainer.settings.run_file import read_settings

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
FRAGMENTS = {"labelled", "mlm", "pretraining"}  # of configs/tasks, that are no task
TASKS = sorted({path.stem for path in CONFIGS.glob("tasks/*.yaml")} - FRAGMENTS)
ROWS = sorted(path.stem for path in CONFIGS.glob("mixer/*.yaml"))
PAPERS = sorted(CONFIGS.glob("papers/*.yaml"))
WITH_DATA = [*(CONFIGS / "tasks" / f"{task}.yaml" for task in TASKS), *PAPERS]

# What cannot be, and what the refusal says. docs/tasks.md has the same table.
_SMOOTHED = "the Fourier convolution wraps around and the column attention sums over the whole sequence"
_BOTH_SIDES = "its attention looks to both sides of a position"
REFUSED = {
    ("clm", "converter"): "a unitary matrix that is lower triangular is diagonal",
    ("clm", "s3attention"): _SMOOTHED,
    ("clm", "wavspa"): "coefficients mix what is before and after a position",
    **{("clm", row): _BOTH_SIDES for row in ("performer", "linear", "windowed")},
    ("clm", "linformer"): "its projections mix the keys and values of all N positions",
    ("clm", "fnet"): "fnet has no AutoModelForCausalLM",
    ("retrieval", "fnet"): "fnet has no AutoModelForSequencePairClassification",
    ("forecasting", "fnet"): "fnet has no AutoModelForTimeSeriesPrediction",
    **{(task, "fnet"): "fnet reads tokens" for task in ("adding", "patches", "points")},
}

SMALL = {
    "model.hidden_size": 16,
    "model.num_hidden_layers": 1,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 32,
    "batch.samples": 4,
    "batch.micro_batch": 4,
    "optim.max_steps": 2,
    "optim.warmup_steps": 1,
    "eval.every_steps": 2,
    "checkpoint.every_steps": 2,
    "log.every_steps": 1,
    "log.tensorboard": False,
    "deepspeed": None,
}


FEW = ("--train-samples", "12", "--validation-samples", "4", "--test-samples", "4")
_WORDS = ["a", "fine", "film", "and", "dull", "one", "with", "long", "scenes", "in", "the", "rain", "by", "night"]


def prepare(*arguments):
    parser = argparse.ArgumentParser()
    add_prepare_parser(parser.add_subparsers())
    parsed = parser.parse_args(["prepare", *map(str, arguments)])
    assert parsed.run(parsed) == 0


def _texts(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(_WORDS, k=draw.randint(4, 20))) for _ in range(count)]


def _write_table(path, *columns, header):
    lines = ["\t".join(row) for row in zip(*columns, strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def _reviews(folder):
    return _write_table(folder / "reviews.tsv", ["bad", "good"] * 20, _texts(40, 1), header="label\ttext")


def _images(folder, *shape):
    generator = np.random.default_rng(0)
    options = []
    for split, count in (("train", 30), ("test", 6)):
        np.save(folder / f"{split}.npy", generator.integers(0, 256, (count, *shape), dtype=np.uint8))
        np.save(folder / f"{split}_labels.npy", np.arange(count) % 3)
        options += [f"--{split}", folder / f"{split}.npy", folder / f"{split}_labels.npy"]
    return options


def _series(folder):
    path = folder / "series.csv"
    first = datetime.date(2020, 1, 1)
    rows = [f"{first + datetime.timedelta(days=day)},{np.sin(day)},{day % 7}" for day in range(12 * 28)]
    path.write_text("\n".join(["date,wave,week", *rows]) + "\n", encoding="utf-8")
    return path


def _sequences(folder):
    draw = random.Random(2)
    sequences = ["".join(draw.choices("ACGT", k=draw.randint(10, 40))) for _ in range(40)]
    return _write_table(folder / "dna.tsv", ["0", "1"] * 20, sequences, header="label\tsequence")


def _pairs(folder):
    columns = ["same", "other"] * 20, _texts(40, 3), _texts(40, 4)
    return _write_table(folder / "pairs.tsv", *columns, header="label\ttext1\ttext2")


def _articles(folder):
    options = []
    for option, count, seed in (("source", 200, 5), ("validation", 20, 6), ("test", 20, 7)):
        path = folder / f"{option}.txt"
        path.write_text("\n\n".join(_texts(count, seed)), encoding="utf-8")
        options += [f"--{option}", path]
    return options


def arguments_of(task, folder):
    """Of `longmix prepare` for a file of configs/tasks, without --output; `folder` takes the source files."""
    return {
        "listops": lambda: ("listops", "--min-length", "5", "--max-length", "40", *FEW),
        "text_bytes": lambda: ("text-bytes", "--source", _reviews(folder), "--length", "64"),
        "text_bytes_1000": lambda: ("text-bytes", "--source", _reviews(folder), "--length", "32"),
        "retrieval": lambda: ("retrieval", "--source", _pairs(folder), "--length", "48"),
        "image": lambda: ("image", *_images(folder, 8, 8)),
        "image_noise": lambda: ("image", *_images(folder, 8, 8), "--noise", "8"),
        "pathfinder": lambda: ("pathfinder", "--path-length", "6", "--samples", "16"),
        "adding": lambda: ("adding", "--length", "40", *FEW),
        "temporal_order": lambda: ("temporal-order", "--length", "40", *FEW),
        "lego": lambda: ("lego", "--tested-variables", "untrained", *FEW),
        "documents": lambda: ("documents", "--source", _reviews(folder), "--length", "64"),
        "dna": lambda: ("dna", "--source", _sequences(folder), "--length", "32"),
        "forecasting": lambda: ("forecasting", "--source", _series(folder)),
        "patches": lambda: ("patches", *_images(folder, 8, 8, 3), "--patch-size", "2", "--coordinates"),
        "points": lambda: ("points", "--samples", "40", "--points", "8", "12"),
        "clm": lambda: ("text", *_articles(folder), "--vocab-size", "40", "--sequence-length", "32"),
    }[task]()


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """data_of(task) -> the changes of a run file that name its data, made once."""
    made = {}

    def make(task):
        if task not in made:
            folder = tmp_path_factory.mktemp(task)
            prepare(*arguments_of(task, folder), "--output", folder / "data")
            splits = {"train": "train", "eval": "validation", "test": "test"}
            made[task] = {f"data.{key}": str(folder / "data" / name) for key, name in splits.items()}
        return made[task]

    return make


def load(paths, changes):
    overrides = [f"{key}={yaml.safe_dump(value).splitlines()[0]}" for key, value in changes.items()]
    return reading.load([str(path) for path in paths], overrides, field_mistakes)


def pairs():
    """Every task with every row; by default each task with two rows and each row with three tasks, and what is
    refused."""
    parameters = []
    for (task_number, task), (row_number, row) in itertools.product(enumerate(TASKS), enumerate(ROWS)):
        is_chosen = (task_number - row_number) % 5 == 0 or (task, row) in REFUSED
        marks = [] if is_chosen else [pytest.mark.full]
        parameters.append(pytest.param(task, row, id=f"{task}-{row}", marks=marks))
    return parameters


@pytest.mark.parametrize(("task", "row"), pairs())
def test_a_task_with_a_mixer(task, row, tmp_path, data_of, world, read_metrics):
    files = CONFIGS / "tasks" / f"{task}.yaml", CONFIGS / "mixer" / f"{row}.yaml"
    changes = {**SMALL, **data_of(task), "run.dir": str(tmp_path / "run")}
    if row == "fnet":
        del changes["model.num_attention_heads"]
    if task == "forecasting":
        changes |= {"objective.input_length": 12, "objective.horizon": 4}
    checked = load(files, changes)
    if (task, row) in REFUSED:
        with pytest.raises(UserError, match=re.escape(REFUSED[task, row])):
            loop.train(checked, world)
        assert not (tmp_path / "run" / "checkpoints").exists()
        return
    assert loop.train(checked, world).code == 0
    assert [record["step"] for record in read_metrics(tmp_path / "run", "train")] == [1, 2]
    # Chosen on the validation split; the test split is read once, at the end.
    best = checked.checkpoint.best.metric
    assert all(best in record for record in read_metrics(tmp_path / "run", "eval"))
    (record,) = read_metrics(tmp_path / "run", "test")
    assert best in record
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_papers_recipe_fits_its_task_at_full_size(path, data_of):
    alone = load([path], {"deepspeed": None})
    assert alone.run.dir == f"runs/papers/{path.stem}"
    task = Path(read_settings([str(path)], []).origin["objective.name"]).stem
    changes = {**data_of(task), "model.max_position_embeddings": 32768, "deepspeed": None}
    if task == "forecasting":
        changes |= {"objective.input_length": 12, "objective.horizon": 4}
    prepared = set_up(load([path], changes), 1, torch.device("cpu"))
    named = {key: value for key, value in alone.model.items() if key != "model_type"}
    assert {key: getattr(prepared.model_configuration, key) for key in named} == named
    # The head says what the file reproduces, and where it differs.
    head = path.read_text(encoding="utf-8").split("extends:")[0]
    assert re.search(r"table|section", head) and re.search(r"differ", head)


@pytest.mark.parametrize("path", WITH_DATA, ids=lambda path: path.stem)
def test_a_checkpoint_is_chosen_on_the_validation_split_and_the_test_split_read_once(path):
    values = read_settings([str(path)], []).values
    splits = {key: Path(place) for key, place in values["data"].items()}
    assert {key: place.name for key, place in splits.items()} == {
        "train": "train",
        "eval": "validation",
        "test": "test",
    }
    assert len({place.parent for place in splits.values()}) == 1
    assert values["checkpoint"]["best"]["metric"] in OBJECTIVES[values["objective"]["name"]].figures


def cells_of(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_documentation_has_what_is_refused_and_every_file():
    text = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    sections = {part.split("\n", 1)[0]: part for part in text.split("\n## ")}
    shown = {}
    for line in re.findall(r"^\| `.*$", sections["What is refused"], re.MULTILINE):
        tasks, rows, reason = cells_of(line)
        shown |= {(task, row): reason for task in re.findall(r"`(\w+)`", tasks) for row in re.findall(r"`(\w+)`", rows)}
    assert shown == REFUSED
    assert {task for task, _ in REFUSED} <= set(TASKS) and {row for _, row in REFUSED} <= set(ROWS)
    assert first_cells(sections["# The papers' experiments as run files"]) == set(TASKS)
    assert first_cells(sections["Mixers"]) == set(ROWS) >= set(MODEL_TYPES)
    papers = set()
    for line in re.findall(r"^\| [A-Z].*$", sections["The papers' own hyper-parameters"], re.MULTILINE):
        names = re.findall(r"`(\w+)`", cells_of(line)[2])
        papers |= {f"{names[0].split('_')[0]}{name}" if name.startswith("_") else name for name in names}
    assert papers == {path.stem for path in PAPERS}


def first_cells(section):
    lines = re.findall(r"^\| `.*$", section, re.MULTILINE)
    return {name for line in lines for name in re.findall(r"`(\w+)`", cells_of(line)[0])}


def test_run_files_that_the_readme_names_are_there():
    named = re.findall(r"configs/\w+/\w+\.yaml", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(named) > 10 and all((ROOT / name).is_file() for name in named)


# At 1024 positions. Linformer's projections are as many again: they are what it is.
@pytest.mark.parametrize("row", sorted(set(ROWS) - {"linformer"}))
def test_the_rows_have_as_many_parameters(row):
    assert 0.9 < parameters(row) / parameters("transformer") < 1.1


def parameters(row):
    """Those outside the embeddings."""
    fields = read_settings([str(CONFIGS / "mixer" / f"{row}.yaml")], []).values["model"]
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(**fields, vocab_size=260, max_position_embeddings=1024))
    return count_parameters(model)[1]

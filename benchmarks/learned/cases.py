"""The runs of benchmarks/learning.py: one case for each cell of its tables, each a command of longmix."""

import functools
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longmix.data_prep.files import write_json, write_text
from longmix.data_prep.shards import LIST_INT32, write_dataset
from longmix.modeling import MODEL_TYPES
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings.run_file import parse_yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
CONTROL = "no mixing"
DISTANCES = (4, 16, 64, 256)
# Of the probes, of the grid's chosen points, and of all other trials of the recipe but its five seeds.
TWO_SEEDS = (0, 1)
TASKS = ("copy", "lookup")
RECORD = "learning.json"


@dataclass(frozen=True)
class Recipe:
    """Length of the longest sample, samples of a step, steps."""

    length: int
    batch: int
    steps: int


# The same for every mixer: the farther the answer, the longer the samples, and the more steps the transformer needs; at
# distances 4 and 16 of copying, as many as Converter needs.
RECIPES = {
    ("copy", 4): Recipe(16, 32, 800),
    ("copy", 16): Recipe(34, 32, 1200),
    ("copy", 64): Recipe(112, 16, 600),
    ("copy", 256): Recipe(352, 8, 850),
    ("lookup", 4): Recipe(24, 32, 300),
    ("lookup", 16): Recipe(40, 32, 300),
    ("lookup", 64): Recipe(112, 16, 400),
    ("lookup", 256): Recipe(352, 8, 350),
}
# What a mixer needs beside the fields of its file in configs/model/: FLT to tell left from right, without neighbours,
# for the estimate is what is looked at; Converter to tell distances apart, which takes several heads together;
# S3Attention a smoother that is there from the first step.
PROBE_FIELDS = {
    "converter": {"num_attention_heads": 16, "smallest_angle_range": 0.1, "largest_angle_range": 0.5},
    "flt": {"directional": True, "frequency_sampling": "stratified", "exact_reach": 0},
    "s3attention": {"spectrum_initialization": "unit_gain"},
}
# About 2 million tokens of English to train on, and a few held out; every one is seen once.
TEXT_BYTES = 7_400_000
TEXT_LENGTH = 128
TEXT_VOCABULARY = 4000
SINGLE = ("deepspeed=null", "log.tensorboard=false", "log.every_steps=20", "checkpoint.keep=1")


@dataclass(frozen=True)
class Case:
    """A run of `longmix train` and its place in the tables.

    Args:
        table: copy | lookup, or that of a trial (recipe_cases.table_of).
        row: model type, or CONTROL.
        distance: of a probe; 0 for text.
        folder: run folder.
        arguments: of `longmix train`.
        variant: what tells runs of one row apart, in words; empty where there is one.
    """

    table: str
    row: str
    distance: int
    folder: Path
    arguments: tuple[str, ...]
    variant: str = ""

    @property
    def name(self) -> str:
        place = f"{self.table} {self.distance}, {self.row}" if self.distance else f"{self.table}, {self.row}"
        return f"{place}, {self.variant}" if self.variant else place

    def record(self) -> dict | None:
        """The record of the run if it has finished with these arguments."""
        path = self.folder / RECORD
        if not path.is_file():
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if found["arguments"] == list(self.arguments) else None

    def finish(self, figures: dict) -> None:
        """Note the run's figures: from here on it counts as finished."""
        write_json(self.folder / RECORD, {"arguments": list(self.arguments), **figures})


def probe_commands(work: Path) -> list[list[str]]:
    """`longmix prepare` for every task and distance."""
    return [
        [
            *("prepare", "probe", "--task", task, "--distance", str(distance)),
            *("--length", str(recipe.length), "--samples", str(recipe.batch * recipe.steps)),
            *("--output", str(probe_folder(work, task, distance))),
        ]
        for (task, distance), recipe in RECIPES.items()
    ]


def probe_folder(work: Path, task: str, distance: int) -> Path:
    return work / "data" / f"{task}-{distance}"


def text_folder(work: Path) -> Path:
    return work / "data" / "text"


def control_folder(work: Path, task: str, distance: int) -> Path:
    return work / "data" / f"{task}-{distance}-alone"


def write_control(work: Path, task: str, distance: int) -> None:
    """The same probe with every token a document of its own, for the control: a transformer then sees no other."""
    folder, target = probe_folder(work, task, distance), control_folder(work, task, distance)
    for split in ("train", "validation"):
        if (target / split / "manifest.json").is_file():
            continue
        dataset = ShardedDataset(folder / split)
        samples = (
            {**sample, "document_starts": np.arange(len(sample["input_ids"]))}
            for sample in dataset.read(np.arange(len(dataset)))
        )
        fields = {name: value for name, value in vars(dataset.manifest).items() if name not in _REWRITTEN}
        columns = {**dataset.manifest.columns, "document_starts": LIST_INT32}
        write_dataset(target / split, samples, columns, **{**fields, "packing": "documents"})


_REWRITTEN = ("columns", "samples", "tokens", "shards", "packing")


def probe_cases(work: Path) -> list[Case]:
    """Every mixer, and the control, on every probe: all of them with the first seed, then with the second."""
    cases = []
    for seed, (task, distance) in itertools.product(TWO_SEEDS, RECIPES):
        recipe = RECIPES[task, distance]
        for row in (CONTROL, *MODEL_TYPES):
            data = (control_folder if row == CONTROL else probe_folder)(work, task, distance)
            model_type = "transformer" if row == CONTROL else row
            folder = work / "runs" / f"{task}-{distance}" / f"{row.replace(' ', '-')}-seed-{seed}"
            fields = {"model_type": model_type, **PROBE_FIELDS.get(row, {})}
            arguments = (
                *map(str, probe_files(model_type)),
                *(f"model.{name}={json.dumps(value)}" for name, value in fields.items()),
                *(f"data.train={data / 'train'}", f"data.eval={data / 'validation'}", f"run.dir={folder}"),
                f"run.seed={seed}",
                *(f"batch.samples={recipe.batch}", f"batch.micro_batch={recipe.batch}"),
                *(f"optim.max_steps={recipe.steps}", f"checkpoint.every_steps={recipe.steps}"),
                *(f"eval.every_steps={recipe.steps}", "eval.samples=400", "precision=fp32", *SINGLE),
            )
            cases.append(Case(task, row, distance, folder, arguments, f"seed {seed}"))
    return cases


def probe_files(model_type: str) -> tuple[Path, Path]:
    """Run files of its models."""
    return model_file(model_type), CONFIGS / "probe.yaml"


def text_command(work: Path, corpus: Path) -> list[str]:
    """`longmix prepare` for the beginning of a text file, whose lines stay whole: one document a row, for all alike."""
    source = work / "data" / "corpus.txt"
    write_part(corpus, source, 0, TEXT_BYTES)
    return [
        *("prepare", "text", "--source", str(source), "--output", str(text_folder(work))),
        *("--vocab-size", str(TEXT_VOCABULARY), "--sequence-length", str(TEXT_LENGTH)),
        *("--packing", "one-per-row", "--workers", "1"),
    ]


def write_part(corpus: Path, target: Path, first: int, size: int) -> None:
    """About `size` bytes of a text file from byte `first` on, into `target`, unless it is there.

    Lines stay whole: one that began before `first` is left out, and the one that is begun at the end is read through.
    """
    if target.is_file():
        return
    with open(corpus, "rb") as stream:
        if first > 0:
            stream.seek(first - 1)
            stream.readline()
        text = stream.read(max(0, first + size - stream.tell())) + stream.readline()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text.decode())


@functools.cache
def half_the_layers(model_type: str) -> str:
    """The change of `longmix train` that halves the layers of a type's `tiny` file."""
    file = model_file(model_type)
    layers = parse_yaml(file.read_text(encoding="utf-8"), str(file))["model"]["num_hidden_layers"]
    return f"model.num_hidden_layers={layers // 2}"


def model_file(model_type: str) -> Path:
    return CONFIGS / "model" / f"{model_type}_tiny.yaml"

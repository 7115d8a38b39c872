"""The corpus, and the tasks as folders that `longmix finetune` reads."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commands
import numpy as np
from glue_table.budget import BATCH, LARGEST_VOCABULARY, LENGTH, Budget

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import make_folder, write_json, write_text
from longmix.data_prep.manifest import Manifest
from longmix.trainer.finetune.readers import Examples, read_tsv
from longmix.trainer.finetune.sources import MissingTask, load_task
from longmix.trainer.finetune.tasks import TASKS as GLUE
from longmix.trainer.finetune.tasks import custom_task
from longmix.trainer.objectives.neighbour_bigram import NeighbourBigram, most_frequent, positions
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.quickstart.text import take_text
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings.sections import ObjectiveSection

# English of this vocabulary has 4.1 to 4.4 bytes a token; what is too much is not read.
BYTES_PER_TOKEN = 4.8
# A unigram vocabulary needs text to choose from.
BYTES_PER_PIECE = 200
# What a vocabulary of all languages' tokens takes of its words; 1.5 is that of English at this size.
TOKENS_PER_WORD = 1.5
# Of what is read of a file, as much again is held out, behind a gap of the same size in which a document can end.
HELD_OUT = 0.01
SHUFFLE = 0
EVALUATED_SHARE = 0.15
LABELS = ("0", "1")
BIGRAM = "interpolated bigram"


@dataclass(frozen=True)
class Task:
    """A column of the table.

    Attributes:
        title: with its examples.
        metric: of `longmix finetune`.
        epochs: of the few examples that there are.
        words: of `longmix finetune`, that name the task.
    """

    title: str
    metric: str
    epochs: int
    words: tuple[str, ...]


TASKS = {
    "sst2": Task("SST-2, {labels:,} labels", "accuracy", 10, ("--task", "sst2")),
    "imdb": Task(
        "IMDb, {labels:,} labels",
        "accuracy",
        5,
        ("--task", "custom", "--text-columns", "text", "--label-column", "label"),
    ),
    "cola": Task("CoLA", "matthews", 5, ("--task", "cola")),
}


# -----------------------------------------------------------------------------
# The corpus.


def corpus(work: Path, sources: list[Path], tokens: int | None, jobs: int) -> Path:
    """The prepared data sets of the beginnings of `sources`, of each as many bytes where it has them.

    Rates are chosen on `validation`, a share of their documents; `test`, by which nothing is chosen, is of the text
    behind them, and is there where every source has more than is read.

    Args:
        sources: .txt, .jsonl, or .tsv with a header and a column `text`; one prepared folder is taken as it is.
        tokens: that shall be there; None: all.
    """
    if len(sources) == 1 and (sources[0] / "train" / "manifest.json").is_file():
        return sources[0]
    folder = work / "data" / "corpus"
    shares = _shares([path.stat().st_size for path in sources], None if tokens is None else tokens * BYTES_PER_TOKEN)
    parts = [
        _beginning(path, share, work / "data" / f"text-{number}")
        for number, (path, share) in enumerate(zip(sources, shares, strict=True))
    ]
    held_out = [path for _, path in parts if path is not None]
    vocabulary = min(LARGEST_VOCABULARY, max(300, sum(shares) // BYTES_PER_PIECE))
    commands.longmix(
        [
            *("prepare", "text", "--output", str(folder)),
            *(word for path, _ in parts for word in ("--source", str(path))),
            *(word for path in held_out if len(held_out) == len(parts) for word in ("--test", str(path))),
            *("--uncased", "--vocab-size", str(vocabulary), "--sequence-length", str(LENGTH)),
            *("--packing", "one-per-row", "--workers", str(jobs)),
        ],
        work / "prepare.log",
    )
    return folder


def shown(folder: Path) -> str:
    """The split of a corpus whose figures are shown."""
    return "test" if (folder / "test" / "manifest.json").is_file() else "validation"


def _shares(sizes: list[int], wanted: float | None) -> list[int]:
    """Bytes to take of every file: equal parts of what is wanted, and of a short file's part the others take more."""
    if wanted is None or wanted >= sum(sizes):
        return sizes
    shares, left, files = [0] * len(sizes), wanted, len(sizes)
    for number in sorted(range(len(sizes)), key=lambda one: sizes[one]):
        shares[number] = min(sizes[number], int(left / files))
        left, files = left - shares[number], files - 1
    return shares


def _beginning(path: Path, size: int, folder: Path) -> tuple[Path, Path | None]:
    """Files with the first `size` bytes of a source, whole lines or records, and with those that are held out; None:
    it has not so much."""
    if path.suffix == ".tsv":
        name, texts = "records.jsonl", _reviews(path, is_labelled=False).first
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        return _divided(lines, size, folder, name)
    text = take_text(str(path), int(size * (1 + 2 * HELD_OUT)), folder / "taken")
    if not text.is_copy:
        return path, None
    (taken,) = text.sources
    with open(taken, encoding="utf-8") as lines:
        return _divided(lines, size, folder, taken.name)


def _divided(lines: Iterable[str], size: int, folder: Path, name: str) -> tuple[Path, Path | None]:
    """Write the lines of the first `size` bytes, and those behind the gap."""
    train, held_out = folder / name, folder / f"held-out-{name}"
    if not train.is_file():
        gap, end = size * (1 + HELD_OUT), size * (1 + 2 * HELD_OUT)
        read, first, second = 0, [], []
        for line in lines:
            if read < size:
                first.append(line)
            elif gap <= read < end:
                second.append(line)
            read += len(line.encode())
            if read >= end:
                break
        make_folder(folder)
        if second:
            write_text(held_out, "".join(second))
        write_text(train, "".join(first))
    return train, held_out if held_out.is_file() else None


def _reviews(path: Path, is_labelled: bool) -> Examples:
    """A headed TSV file with the columns `text` and `label`; line breaks in HTML, as IMDb has them, become spaces.

    Raises:
        UserError: no such column, another label.
    """
    found = read_tsv(path, custom_task(("text",), "label", LABELS), test=not is_labelled)
    found.first = [text.replace("<br />", " ") for text in found.first]
    return found


def count_baselines(folder: Path, work: Path) -> dict[str, dict[str, float]]:
    """Figures of counting at the very positions that the models are evaluated at; they are the same in every run."""

    def count() -> dict[str, dict[str, float]]:
        train, held_out = (ShardedDataset(folder / split) for split in ("train", shown(folder)))
        masker = make_objective(ObjectiveSection(mask_probability=EVALUATED_SHARE), 0, train.manifest, None).masker
        bigram = NeighbourBigram(train, np.arange(len(train)), masker)
        where = positions(held_out, np.arange(len(held_out)), masker, is_training=False)
        return {**most_frequent(bigram, where), BIGRAM: bigram.evaluate(where)}

    return kept(work / "baselines.json", count)


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """What `make` returned when it was first asked for: it stays in a JSON file."""
    if not path.is_file():
        write_json(path, make())
    return json.loads(path.read_text(encoding="utf-8"))


def tokens_of_a_sample(folder: Path) -> float:
    manifest = Manifest.load(folder / "train")
    return manifest.tokens / manifest.samples


def validation_tokens(folder: Path) -> int:
    return Manifest.load(folder / "validation").tokens


# -----------------------------------------------------------------------------
# The tasks. Of few labels, the training examples are the first of one shuffled order, for all rows alike.


def tasks(work: Path, budget: Budget, glue: Path | None, imdb: Path | None) -> dict[str, dict[str, int]]:
    """Make the folders of the tasks that there are; name -> {"examples", "reported", "tokens" of a pass over each}."""
    made = {}
    for name in TASKS:
        source = imdb if name == "imdb" else glue
        if source is None:
            continue
        path = task_folder(work, name) / "about.json"
        if not path.is_file():
            read = _imdb(source, budget) if name == "imdb" else _glue(source, name, budget)
            if read is None:
                continue
            _write(name, *read, task_folder(work, name))
        made[name] = json.loads(path.read_text(encoding="utf-8"))
    return made


def task_folder(work: Path, name: str) -> Path:
    return work / "data" / name


def _glue(folder: Path, name: str, budget: Budget) -> tuple[Examples, Examples] | None:
    try:
        found = load_task(str(folder), GLUE[name])
    except MissingTask:
        return None
    train = found.train.select(_drawn(len(found.train), budget.labels)) if name == "sst2" else found.train
    return train, found.dev["dev"]


def _imdb(folder: Path, budget: Budget) -> tuple[Examples, Examples]:
    """Reviews of `train.tsv`, and as the reported split some of `test.tsv`; columns `label` and `text`.

    Raises:
        UserError: no test reviews but those that are passed over, or what `_reviews` raises.
    """
    train, test = (_reviews(folder / file, is_labelled=True) for file in ("train.tsv", "test.tsv"))
    reported = _drawn(len(test), budget.passed_over + budget.reported)[budget.passed_over :]
    if not reported:
        raise UserError(
            f"{folder / 'test.tsv'} has {len(test):,} reviews, and the first {budget.passed_over:,} of their shuffled "
            "order are passed over: give all of IMDb's test reviews"
        )
    return train.select(_drawn(len(train), budget.labels)), test.select(reported)


def _drawn(available: int, wanted: int) -> list[int]:
    order = list(range(available))
    random.Random(SHUFFLE).shuffle(order)
    return order[:wanted]


def _write(name: str, train: Examples, dev: Examples, folder: Path) -> None:
    task = GLUE.get(name)
    place = folder / task.folder if task is not None else folder
    make_folder(place)
    for file, examples in (("train.tsv", train), ("dev.tsv", dev)):
        pairs = zip(examples.first, examples.labels, strict=True)
        if task is not None and task.headerless_columns is not None:
            lines = [f"-\t{LABELS[label]}\t\t{text}" for text, label in pairs]
        else:
            column = "text" if task is None else task.text_columns[0]
            lines = [f"{column}\tlabel", *(f"{text}\t{LABELS[label]}" for text, label in pairs)]
        write_text(place / file, "\n".join(lines) + "\n")
    about = {
        "examples": len(train),
        "reported": len(dev),
        "train_tokens": _padded_tokens(train),
        "reported_tokens": _padded_tokens(dev),
    }
    write_json(folder / "about.json", about)


def _padded_tokens(examples: Examples) -> int:
    """About how many positions one pass has: rows of a batch are as long as the longest of them."""
    lengths = sorted(min(LENGTH, int(TOKENS_PER_WORD * len(text.split())) + 2) for text in examples.first)
    # Batches are drawn at random: the longest of a batch lies near the end of the sorted ones.
    return len(lengths) * lengths[min(len(lengths) - 1, int(len(lengths) * BATCH / (BATCH + 1)))]

"""The data of a pack: a prepared corpus with its tokenizer, and GLUE's small tasks."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from commands import longmix

from longmix.data_prep.errors import UserError
from longmix.data_prep.tasks.embedded import Embedded, write_embedded
from longmix.trainer.finetune.sources import NOTE, MissingTask, load_task
from longmix.trainer.finetune.tasks import TASKS
from longmix.trainer.quickstart.text import MEGABYTE, take_text

# Parts of the data set that `longmix prepare text` makes which a run reads.
_PARTS = ("tokenizer", "train", "validation")
_LARGEST_VOCABULARY = 32000
# A unigram vocabulary needs text to choose from.
_BYTES_PER_PIECE = 200
# QQP, MNLI and QNLI have more.
_MOST_EXAMPLES = 100_000


def embedded(work: Path) -> Embedded:
    """The text and the task that need no network: what ./quickstart takes, too."""
    return write_embedded(work / "embedded")


def prepare(sources: Sequence[str], megabytes: float, sequence_length: int, folder: Path, work: Path) -> str:
    """Make `folder` the data set of the first `megabytes` of texts, in `longmix prepare text`'s layout.

    Each sample holds one document, as every mixer takes them.

    Args:
        sources: paths of texts, as for `longmix prepare text --source`.
        sequence_length: tokens of a full sample.

    Returns:
        What was left out, or "".

    Raises:
        UserError: a text is missing or empty, or too small to be prepared.
    """
    parts, notes, left = [], [], int(megabytes * MEGABYTE)
    for number, source in enumerate(sources):
        if left <= 0:
            notes.append(f"nothing of {source}")
            continue
        text = take_text(source, left, work / f"text-{number}")
        parts += text.sources
        notes += [f"{text.note} of {source}"] * bool(text.note)
        left -= text.bytes
    size = int(megabytes * MEGABYTE) - left
    data, log = work / "data", work / "prepare.log"
    longmix(
        [
            *("prepare", "text", "--output", str(data)),
            *(word for part in parts for word in ("--source", str(part))),
            *("--vocab-size", str(min(_LARGEST_VOCABULARY, max(300, size // _BYTES_PER_PIECE)))),
            *("--sequence-length", str(sequence_length), "--packing", "one-per-row"),
        ],
        log,
    )
    folder.mkdir()
    for name in _PARTS:
        shutil.move(data / name, folder / name)
    return ", ".join(notes)


def take_glue(source: str, folder: Path) -> list[str]:
    """Copy to `folder` the files of those of GLUE's tasks in the folder `source` that are small and whole.

    Returns:
        Their names.

    Raises:
        UserError: there is none, or a file is damaged.
    """
    taken = []
    for name, task in TASKS.items():
        try:
            data = load_task(source, task)
        except MissingTask:
            continue
        if len(data.train) > _MOST_EXAMPLES:
            continue
        place = Path(data.source)
        files = ["train.tsv", *(split.file for split in (*task.dev, *task.test)), NOTE]
        paths = [place / file for file in files if (place / file).is_file()]
        paths += sorted(place.glob("*.parquet"))
        (folder / task.folder).mkdir(parents=True)
        for path in paths:
            shutil.copyfile(path, folder / task.folder / path.name)
        taken.append(name)
    if not taken:
        raise UserError(f"--glue {source} holds none of GLUE's small tasks: name the folder of CoLA, RTE, SST-2, ...")
    return taken

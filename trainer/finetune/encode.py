"""A task's examples as data sets that the training loop reads: train, selection, and each dev and test split."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep import made_folders
from longmix.data_prep.errors import UserError
from longmix.data_prep.files import make_folder, sha256_of_folder, write_json
from longmix.data_prep.made_files import refuse_other_json
from longmix.data_prep.made_folders import new_folder, put_in_place
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shards import LIST_INT32, SCALAR_FLOAT32, SCALAR_INT64, write_dataset
from longmix.data_prep.state_files import read_or_none
from longmix.data_prep.tokenizer import TOKENIZER_FILES, call, encode, required_ids

from ..models.loading import has_tokenizer, load_checkpoint_tokenizer, load_config
from ..models.positions import longest_input
from ..samples.label_scale import LabelScale
from .readers import LARGEST_VALUE, Examples
from .sources import TaskData
from .tally import Tally
from .tasks import Task

SELECTION_SHARE = 0.1
SELECTION_LIMIT = 2000
SELECTION_SEED = 0
SMALLEST_TRAIN = 10
DEFAULT_LENGTH = 128  # as in BERT's own GLUE runs
LONGEST = 2**20  # of models that bound it nowhere
SHORTEST = 8
BATCH = 1000  # texts per tokenizer call
FORMAT = 2  # raise it when the same examples are to be encoded anew
RECORD = "prepared.json"
TOKENIZER, SELECTION = "tokenizer", "selection"
# Fields of a tally, and their names in RECORD.
_COUNTS = {"full": "full_samples", "tokens": "tokens", "unknown": "unknown_tokens"}


# -----------------------------------------------------------------------------
# Tokens. Our tokenizers and those of other authors are called in two ways, for one layout: `[CLS] a [SEP] b [SEP]`.


@dataclass(frozen=True)
class Encoder:
    """A tokenizer with the length and the inputs that the model takes.

    `literal` marks our SentencePiece tokenizers, which read "[MASK]" in a text as letters; any other tokenizer is
    called as its authors meant it. `limit` is the longest `max_length` that the model takes.
    """

    tokenizer: Any
    max_length: int
    limit: int
    token_types: bool
    literal: bool
    vocab_size: int

    def encode(self, first: list[str], second: list[str] | None) -> Iterator[dict[str, list[int]]]:
        """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, at most `max_length` tokens, the longer text cut first.

        Raises UserError for ids that the model's vocabulary lacks.
        """
        for start in range(0, len(first), BATCH):
            part_a = first[start : start + BATCH]
            part_b = None if second is None else second[start : start + BATCH]
            for sample in self._own(part_a, part_b) if self.literal else self._other(part_a, part_b):
                refuse_unknown_ids(sample["input_ids"], self.tokenizer, self.vocab_size)
                yield sample

    def _own(self, first: list[str], second: list[str] | None) -> Iterator[dict[str, list[int]]]:
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        encoded_a = encode(self.tokenizer, first)
        encoded_b = [None] * len(first) if second is None else encode(self.tokenizer, second)
        for a, b in zip(encoded_a, encoded_b, strict=True):
            if b is None:
                head, tail = [cls, *a[: self.max_length - 2], sep], []
            else:
                kept_a, kept_b = longest_first(len(a), len(b), self.max_length - 3)
                head, tail = [cls, *a[:kept_a], sep], [*b[:kept_b], sep]
            sample = {"input_ids": head + tail}
            if self.token_types:
                sample["token_type_ids"] = [0] * len(head) + [1] * len(tail)
            yield sample

    def _other(self, first: list[str], second: list[str] | None) -> Iterator[dict[str, list[int]]]:
        encoded = call(
            self.tokenizer,
            first,
            second,
            truncation="longest_first" if second is not None else True,
            max_length=self.max_length,
            return_token_type_ids=self.token_types,
            return_attention_mask=False,
        )
        names = ("input_ids", "token_type_ids") if self.token_types else ("input_ids",)
        for row in range(len(first)):
            yield {name: encoded[name][row] for name in names}

    def notes(self, tally: Tally, what: str) -> list[str]:
        """What is to be told of examples that have been encoded; `what` they are."""
        return tally.notes(what, self.max_length, self.limit)


def refuse_unknown_ids(ids: list[int], tokenizer: Any, vocab_size: int) -> None:
    """Raise UserError for an id that a model's vocabulary lacks."""
    if (highest := max(ids, default=0)) >= vocab_size:
        raise UserError(
            f"the tokenizer in {tokenizer.name_or_path} has the id {highest} for "
            f"{tokenizer.convert_ids_to_tokens(highest)!r}, but the model's vocabulary ends at {vocab_size - 1}: copy "
            "the files of one checkpoint, or save the tokenizer with its model again"
        )


def longest_first(length_a: int, length_b: int, room: int) -> tuple[int, int]:
    """Lengths after cutting the longer one down, then both alike, until they fit in `room`."""
    if length_a + length_b <= room:
        return length_a, length_b
    half = room // 2
    if length_a <= half:
        return length_a, room - length_a
    if length_b <= half:
        return room - length_b, length_b
    return room - half, half


def load_encoder(checkpoint: str, max_length: int | None, default: int = DEFAULT_LENGTH) -> Encoder:
    """The tokenizer of a checkpoint (a folder or a hub name) and what its model takes; at most `default` tokens unless
    told otherwise.

    Raises UserError: no model configuration or no tokenizer there, one without [CLS] and [SEP], or a length that the
    model lacks.
    """
    config = load_config(checkpoint)
    if not has_tokenizer(checkpoint):
        raise UserError(
            f"{checkpoint} holds no tokenizer: a model of texts needs its files (tokenizer_config.json and others) "
            "beside config.json, and one of prepared data without texts reads the folders of such data"
        )
    tokenizer = load_checkpoint_tokenizer(checkpoint)
    if tokenizer.pad_token_id is None:
        raise UserError(f"{checkpoint}: its tokenizer has no pad token; only encoders' tokenizers can be used")
    literal = type(tokenizer).__name__ == "SentencePieceBackend" and tokenizer.special_tokens_pattern == "cls_sep"
    if literal:
        required_ids(tokenizer, checkpoint)
    limit = min(tokenizer.model_max_length, longest_input(config) or tokenizer.model_max_length)
    if max_length is None:
        max_length = min(default, limit)
    if not SHORTEST <= max_length <= limit:
        raise UserError(f"--max-length is {max_length}, but {checkpoint} takes {SHORTEST} to {limit} tokens")
    return Encoder(
        tokenizer=tokenizer,
        max_length=max_length,
        limit=limit,
        token_types=(getattr(config, "type_vocab_size", 0) or 0) > 1,
        literal=literal,
        vocab_size=getattr(config, "vocab_size", len(tokenizer)),  # CANINE hashes characters
    )


# -----------------------------------------------------------------------------
# Data sets. Tasks are written in the trainer's own format, so that the training loop reads them like any other data.


@dataclass(frozen=True)
class EncodedTask:
    """Folders of one task's data sets: `train`, `selection`, and one for each name in `dev` and `test`.

    `tally`: of the training examples, as far as the version that encoded them has counted.
    """

    task: Task
    folder: Path
    fingerprint: str
    dev: tuple[str, ...]
    test: tuple[str, ...]
    train_samples: int
    notes: tuple[str, ...]
    tally: Tally = field(default_factory=Tally)


def encode_task(data: TaskData, encoder: Encoder, folder: Path, tokenizer_folder: Path) -> EncodedTask:
    """Write `folder/train`, `folder/selection`, and one data set for each dev and test split; keep what is up to date.

    `tokenizer_folder` holds the encoder's tokenizer, saved before.

    Raises UserError when the training data are too few for a selection split.
    """
    tokenizer_hash = sha256_of_folder(tokenizer_folder)
    train_rows, selection_rows = selection_split(data.train, data.task)
    record = folder / RECORD
    refuse_other_json(record, "fingerprint", *_COUNTS.values())
    kept, scale = read_or_none(record, dict[str, str]) or {}, None
    fingerprint = _fingerprint(data, encoder, tokenizer_hash)
    # What an earlier version has begun keeps the labels of its regression as they are.
    if data.task.regression and kept.get("fingerprint") != fingerprint:
        scale = LabelScale.of(data.train.select(train_rows).labels)
        fingerprint = _fingerprint(data, encoder, tokenizer_hash, scale)
    encoded = EncodedTask(
        data.task, folder, fingerprint, tuple(data.dev), tuple(data.test), len(train_rows), tuple(data.notes)
    )
    if kept.get("fingerprint") == fingerprint:
        counts = {name: kept.get(key, "") for name, key in _COUNTS.items()}
        tally = Tally(len(data.train), **{name: int(count) for name, count in counts.items() if count.isdecimal()})
        return replace(encoded, tally=tally)
    record.unlink(missing_ok=True)
    # A copy: a data set names no tokenizer but one beside it.
    make_folder(folder)
    with new_folder(folder / TOKENIZER) as temporary:
        shutil.copytree(tokenizer_folder, temporary, dirs_exist_ok=True)
        put_in_place(temporary, folder / TOKENIZER, made_folders.TOKENIZER, _earlier_tokenizer)
    rule = (
        f"{len(selection_rows)} of {len(data.train)} training examples, drawn with seed {SELECTION_SEED}"
        f"{'' if data.task.regression else ', stratified by class'}"
    )
    parts = {
        "train": (data.train.select(train_rows), f"training file without the selection split ({rule})"),
        SELECTION: (data.train.select(selection_rows), rule),
    }
    parts |= {name: (part, "given dev file, for the reported figures only") for name, part in data.dev.items()}
    parts |= {name: (part, "given test file") for name, part in data.test.items()}
    special = [encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id, encoder.tokenizer.pad_token_id]
    tally = Tally()

    def counted(name: str, examples: Examples) -> Iterator[dict[str, Any]]:
        for sample in _samples(examples, encoder, scale):
            if name in ("train", SELECTION):
                tally.add(sample["input_ids"], encoder.tokenizer, encoder.max_length)
            yield sample

    for name, (examples, split_rule) in parts.items():
        write_dataset(
            folder / name,
            counted(name, examples),
            _columns(examples, encoder, data.task),
            split=name,
            split_rule=split_rule,
            vocab_size=encoder.vocab_size,
            pad_token_id=encoder.tokenizer.pad_token_id,
            mask_token_id=encoder.tokenizer.mask_token_id,
            special_token_ids=sorted({token for token in special if token is not None}),
            tokenizer={"path": f"../{TOKENIZER}", "sha256": tokenizer_hash},
            sequence_length=encoder.max_length,
            num_labels=len(data.task.label_names) or None,
            label_names=list(data.task.label_names) or None,
            report={
                "task": data.task.name,
                "source": data.source,
                "text_columns": list(data.task.text_columns),
                "label_column": data.task.label_column,
                "indices": examples.indices,
                **({} if scale is None else scale.report()),
            },
        )
    counts = asdict(tally)
    write_json(record, {"fingerprint": fingerprint, **{key: str(counts[name]) for name, key in _COUNTS.items()}})
    return replace(encoded, tally=tally)


def encoded_classes(folder: Path) -> list[str]:
    """The class names of what `encode_task` has written into `folder`, in their order; none where it has not."""
    try:
        return Manifest.load(folder / "train").label_names or []
    except UserError:
        return []


def _earlier_tokenizer(folder: Path, names: list[str]) -> str | None:
    """The first file that is no tokenizer's (`made_folders.Earlier`)."""
    return next((name for name in names if not TOKENIZER_FILES.fullmatch(name)), None)


# -----------------------------------------------------------------------------
# The selection split. The dev set is reported, so it must not choose the checkpoint: held-out training data do.


def selection_split(train: Examples, task: Task) -> tuple[list[int], list[int]]:
    """Rows to train on and rows that choose the checkpoint: a tenth, at most 2,000, with every class in its share, and
    at least one of each class that has several.

    Raises UserError below 10 examples.
    """
    if len(train) < SMALLEST_TRAIN:
        raise UserError(f"{task.name}: {len(train)} training examples; at least {SMALLEST_TRAIN} are needed")
    share = min(SELECTION_SHARE, SELECTION_LIMIT / len(train))
    generator = np.random.default_rng(SELECTION_SEED)
    labels = np.zeros(len(train), dtype=int) if task.regression else np.asarray(train.labels)
    chosen = []
    for value in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == value))
        # A class with a single example stays in training.
        chosen.extend(rows[: max(1, round(share * len(rows))) if len(rows) > 1 else 0].tolist())
    if not chosen:
        raise UserError(
            f"{task.name}: every class occurs once in the training examples, so none can be learnt"
            f"{'; if labels are numbers, give --regression' if task.custom else ''}"
        )
    held_out = set(chosen)
    return [row for row in range(len(train)) if row not in held_out], sorted(held_out)


# -----------------------------------------------------------------------------
# The samples that are written, and the fingerprint by which a later command knows that they need no new encoding.


def _columns(examples: Examples, encoder: Encoder, task: Task) -> dict[str, dict[str, Any]]:
    columns = {"input_ids": LIST_INT32}
    if encoder.token_types:
        columns["token_type_ids"] = LIST_INT32
    if examples.labels is not None:
        columns["labels"] = SCALAR_FLOAT32 if task.regression else SCALAR_INT64
    return columns


def _samples(examples: Examples, encoder: Encoder, scale: LabelScale | None) -> Iterator[dict[str, Any]]:
    for row, sample in enumerate(encoder.encode(examples.first, examples.second)):
        if examples.labels is not None:
            label = examples.labels[row]
            sample["labels"] = label if scale is None else scale.standardised(label)
            if abs(sample["labels"]) > LARGEST_VALUE:
                raise UserError(
                    f"example {row + 1}: its label {label:g} lies {abs(sample['labels']):.0e} standard deviations from "
                    f"the mean {scale.mean:g} of those that are trained on, too far for a number in fp32"
                )
        yield sample


def _fingerprint(data: TaskData, encoder: Encoder, tokenizer_hash: str, scale: LabelScale | None = None) -> str:
    """A hash of everything that the written data sets depend on."""
    settings = [FORMAT, data.task.name, list(data.task.label_names), tokenizer_hash]
    settings += [encoder.max_length, encoder.token_types, encoder.vocab_size]
    settings += [] if scale is None else [scale.report()]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for name, part in {"train": data.train, **data.dev, **data.test}.items():
        digest.update(json.dumps([name, part.first, part.second, part.labels, part.indices]).encode())
    return digest.hexdigest()

"""A task's folder: a data set for each split, made by one command, no sample in two of them.

Test, validation and train are written in this order. A sample whose inputs stand in a split that was written before is
left out of the later one, and counted in the manifest's report: published splits do share samples. A pair of inputs
(`input_ids`, `input_ids_b`) and the pair turned around are the same inputs. The report of a classification also counts
the samples of each class, which tells a reader when accuracy alone would mislead.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import VOLUMES_OWN, locked
from longmix.data_prep.made_folders import remove_made
from longmix.data_prep.manifest import FILE_NAME, Manifest
from longmix.data_prep.manifest_fields import ONE_PER_ROW
from longmix.data_prep.shards import SCALAR_INT64, earlier_dataset, write_dataset
from longmix.data_prep.split_names import SPLITS, TEST, TRAIN, VALIDATION

_WRITTEN = (TEST, VALIDATION, TRAIN)
# Where a label stands in a chain of reasoning, from 0: the accuracy of each place is told apart.
LABEL_PLACES = "label_places"
_ANSWERS = ("labels", LABEL_PLACES)
# What a sample is compared by instead of its inputs, where it has such an entry: e.g. an image before noise was added.
# It is not written.
COMPARED = "compared"
_NO_INPUTS = (*_ANSWERS, COMPARED)
# In a split's report: the length of its longest sample.
_LONGEST = "longest"
_SECOND = "_b"  # ends the names of the columns of a pair's second input
_SHOWN_CLASSES = 10
LONGEST_SAMPLE = 1 << 17  # hundreds of samples lie in memory at a time

# Ids of tasks without a tokenizer: padding and mask are no values of the data, which begin at FIRST_VALUE.
PADDING, MASK, FIRST_VALUE = 0, 1, 2
SPECIAL = (PADDING, MASK)
# What the manifest of such a task says of them; vocab_size is the task's own.
TOKEN_FIELDS = {"pad_token_id": PADDING, "mask_token_id": MASK, "special_token_ids": list(SPECIAL)}


@dataclass(frozen=True)
class Split:
    """Samples of a split.

    Args:
        samples: makes an iterator over them, the same each time.
        rule: how they were chosen, for the manifest.
        too_short: how many examples of its files were left out, for they hold too little.
    """

    samples: Callable[[], Iterable[Mapping[str, Any]]]
    rule: str
    too_short: int = 0


def write_task(
    output: str | Path,
    settings: Mapping[str, Any],
    columns: Mapping[str, Mapping[str, Any]],
    splits: Mapping[str, Split],
    **manifest_fields: Any,
) -> dict[str, Manifest]:
    """Write `output/SPLIT` for each split; returns their manifests.

    A folder that the same settings have made is left as it is, an unfinished one is finished. If that ends with a
    UserError (the data are refused, or can no longer be read), no split stays, nor what an earlier run had finished:
    they would be in the way of the corrected command. Any other end, Ctrl-C too, keeps the splits that are finished.

    Args:
        settings: all that the samples are a function of, in JSON's types: the task, its options, a format number to
            raise when the same options are to give other samples, the SHA-256 of files that were read.
        columns: of the manifest.
        splits: some of SPLITS.
        manifest_fields: more of `Manifest`: vocab_size, sequence_length, num_labels, ...

    Raises:
        UserError: `output` holds anything else, cannot be written, or is being written by another process; a split has
            no samples.
    """
    assert set(splits) <= set(SPLITS)
    output = Path(output)
    settings = dict(settings)
    tolerance = manifest_fields.get("tolerance")  # manifests of older versions lack it
    refuse_others(output, lambda manifest: manifest.report.get("task") == settings and manifest.tolerance == tolerance)
    with locked(output):
        if all((output / name / FILE_NAME).is_file() for name in splits):
            return {name: Manifest.load(output / name) for name in splits}
        try:
            manifests = _write_splits(output, settings, columns, splits, manifest_fields)
        except UserError:
            for name in splits:
                remove_made(output / name, earlier_dataset)
            raise
    return {name: manifests[name] for name in splits}


def _write_splits(
    output: Path,
    settings: Mapping[str, Any],
    columns: Mapping[str, Mapping[str, Any]],
    splits: Mapping[str, Split],
    manifest_fields: Mapping[str, Any],
) -> dict[str, Manifest]:
    manifests = {}
    seen: set[bytes] = set()
    is_classification = columns.get("labels") == SCALAR_INT64 and manifest_fields.get("num_labels") is not None
    classes = manifest_fields["num_labels"] if is_classification else None
    for name in (name for name in _WRITTEN if name in splits):
        report = {"task": settings, "left_out": 0}
        report |= {"too_short": splits[name].too_short} if splits[name].too_short else {}
        distinct = _Distinct(name, splits[name].samples(), seen, report, classes)
        if (output / name / FILE_NAME).is_file():
            manifests[name] = Manifest.load(output / name)
            for _ in distinct:
                pass
        else:
            manifests[name] = write_dataset(
                output / name,
                distinct,
                columns,
                split=name,
                split_rule=splits[name].rule,
                packing=ONE_PER_ROW,
                report=distinct.report,
                **manifest_fields,
            )
        seen |= distinct.digests
    return manifests


def kept_in(split: str, splits: Mapping[str, Split]) -> Iterator[Mapping[str, Any]]:
    """The samples of one of `splits` that `write_task` would write: for figures (a mean, a vocabulary) of these alone.

    Raises:
        UserError: there are none.
    """
    seen: set[bytes] = set()
    for name in _WRITTEN[: _WRITTEN.index(split)]:
        if name in splits:
            others = _Distinct(name, splits[name].samples(), seen, {"left_out": 0})
            for _ in others:
                pass
            seen |= others.digests
    yield from _Distinct(split, splits[split].samples(), seen, {"left_out": 0})


def check_seed(seed: int) -> None:
    """Raises `UserError` if numpy takes no such seed."""
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed is {seed}, but must be at least 0 and below 2^63")


# -----------------------------------------------------------------------------
# What a user is told, before and after.


def describe(manifests: Mapping[str, Manifest], output: str | Path) -> Iterator[str]:
    """One line for each split, and where they are, for the console."""
    for split, manifest in manifests.items():
        parts = [f"{manifest.samples:,} samples"]
        if manifest.tokens is not None:
            parts.append(f"{manifest.tokens:,} tokens")
        # An older longmix noted the limit alone.
        parts.append(f"at most {manifest.report.get(_LONGEST, manifest.sequence_length)} each")
        line = f"{split}: {', '.join(parts)}"
        if manifest.num_labels is not None:
            line += f"; {manifest.num_labels} classes"
            line += _class_sizes(manifest)
        left_out = manifest.report.get("left_out", 0)
        if left_out:
            line += f"; {left_out:,} left out that stand in another split too"
        too_short = manifest.report.get("too_short", 0)
        if too_short:
            line += f"; {too_short:,} of its files left out, which hold too little text"
        yield line
    yield where_written(manifests, output)


def where_written(manifests: Mapping[str, Manifest], output: str | Path) -> str:
    """The last line for the console."""
    return f"written to {output}: {', '.join(f'{name}/' for name in manifests)}"


def _class_sizes(manifest: Manifest) -> str:
    """The number of samples of each class, for the console; empty where the report does not tell."""
    counts = manifest.report.get("class_counts", [])
    if not counts:
        return ""
    if len(counts) > _SHOWN_CLASSES:
        return f" of {min(counts):,} to {max(counts):,} samples"
    names = manifest.label_names or range(len(counts))
    return " (" + ", ".join(f"{name}: {count:,}" for name, count in zip(names, counts, strict=True)) + ")"


def refuse_others(output: Path, is_ours: Callable[[Manifest], bool]) -> None:
    """Raise UserError unless `output` is new, empty, or holds nothing but splits that `is_ours` accepts."""
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file: choose another folder")
    if not output.exists():
        return
    for path in output.iterdir():
        # What starts with a dot is left from an interrupted run, the other is every new ext4 volume's.
        if path.name.startswith(".") or path.name == VOLUMES_OWN:
            continue
        if not (path.name in SPLITS and (path / FILE_NAME).is_file() and is_ours(Manifest.load(path))):
            raise UserError(f"{output} already holds other data ({path.name}): choose another folder, or empty it")


# -----------------------------------------------------------------------------
# No sample in two splits: published splits do share samples, and a model would be tested on what it has learnt.


class _Distinct:
    """Passes on the samples whose inputs are not in `seen`, and counts the others in `report`, which also gets the
    length of the longest of them.

    With a number of `classes` the report also gets `class_counts`: how many of each were passed on, by label.

    Attributes:
        digests: of the inputs that were passed on.
    """

    def __init__(
        self,
        split: str,
        samples: Iterable[Mapping[str, Any]],
        seen: set[bytes],
        report: dict[str, Any],
        classes: int | None = None,
    ):
        self.report, self.digests = report, set()
        self._split, self._samples, self._seen = split, samples, seen
        self._counts_classes = classes is not None
        if classes is not None:
            report["class_counts"] = [0] * classes

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for sample in self._samples:
            digest = _digest({COMPARED: sample[COMPARED]} if COMPARED in sample else sample)
            if digest in self._seen:
                self.report["left_out"] += 1
                continue
            self.digests.add(digest)
            inputs = (value for name, value in sample.items() if name not in _NO_INPUTS)
            sizes = (len(value) for value in inputs if hasattr(value, "__len__"))
            self.report[_LONGEST] = max([self.report.get(_LONGEST, 0), *sizes])
            if self._counts_classes:
                self.report["class_counts"][int(sample["labels"])] += 1
            yield {name: value for name, value in sample.items() if name != COMPARED}
        if not self.digests:
            left_out = f" ({self.report['left_out']} stand in another split)" if self.report["left_out"] else ""
            raise UserError(f"nothing is left for the split {self._split}{left_out}: give more samples, or other files")


def _digest(sample: Mapping[str, Any]) -> bytes:
    """The digest of a sample without its labels; which side of a pair is the first does not matter."""
    first, second = [], []
    for name in (name for name in sample if name not in _ANSWERS):
        value = np.asarray(sample[name])
        digest = hashlib.blake2b(f"{name.removesuffix(_SECOND)} {value.shape} ".encode(), digest_size=16)
        digest.update(value.astype(np.float64 if value.dtype.kind == "f" else np.int64).tobytes())
        (second if name.endswith(_SECOND) else first).append(digest.digest())
    sides = [hashlib.blake2b(b"".join(sorted(side)), digest_size=16).digest() for side in (first, second) if side]
    return hashlib.blake2b(b"".join(sorted(sides)), digest_size=16).digest()

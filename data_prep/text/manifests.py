"""The end of a preparation: blocks, in their order, become shards, and what was counted becomes the manifests."""

import dataclasses
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import sha256_of_folder
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import SAMPLES_PER_SHARD
from longmix.data_prep.text import blocks
from longmix.data_prep.text.encoding import Blocks, Encoder
from longmix.data_prep.text.first_look import HELD_OUT_RULE, LEFT_OUT_RULE, SPLIT_RULE, TRAINING_RULE
from longmix.data_prep.text.held_out import HeldOut
from longmix.data_prep.text.reading import Reader
from longmix.data_prep.text.state import TextSettings

Totals = dict[str, dict[str, int]]


def totals_of(figures: Blocks, splits: tuple[str, ...]) -> Totals:
    """The sums of the blocks' figures of each split. Raises `UserError` if a split is empty."""
    totals = {
        split: {name: sum(block[name] for block in figures.get(split, {}).values()) for name in blocks.FIGURES}
        for split in splits
    }
    for split, total in totals.items():
        if not total["samples"]:
            raise UserError(f"the {split} split is empty: no token is left of its documents; give more text")
    return totals


def shard_members(figures: dict[int, dict[str, Any]]) -> Iterator[list[int]]:
    """Runs of neighbouring blocks that make a shard of SAMPLES_PER_SHARD samples, or more by less than the last block.

    That is little more, but where documents are long for their samples: 2,048 of 18 KB make a block, and thus a shard,
    of nearly 300,000 samples of 32 tokens. Blocks stay whole, so that shards are those that earlier versions made.
    """
    members: deque[int] = deque()
    samples = 0
    for index in sorted(figures):
        members.append(index)
        samples += figures[index]["samples"]
        if samples >= SAMPLES_PER_SHARD:
            yield list(members)
            members.clear()
            samples = 0
    if samples:
        yield list(members)


def write_manifests(
    folder: Path,
    settings: TextSettings,
    threshold: int,
    encoder: Encoder,
    reader: Reader,
    held_out: HeldOut | None,
    totals: Totals,
    shards: dict[str, list[dict[str, Any]]],
) -> dict[str, Manifest]:
    """Write the manifests of all splits, whose shards are there; `reader` has read all sources."""
    report = _report(settings, reader, held_out, totals)
    tokenizer_hash = sha256_of_folder(folder / "tokenizer")
    manifests = {
        split: Manifest(
            split=split,
            split_rule=_split_rule(settings, threshold),
            samples=totals[split]["samples"],
            tokens=totals[split]["tokens"],
            words=totals[split]["words"],
            columns=blocks.COLUMNS,
            vocab_size=len(encoder.tokenizer),
            pad_token_id=encoder.ids["pad"],
            mask_token_id=encoder.ids["mask"],
            special_token_ids=sorted(encoder.tokenizer.all_special_ids),
            tokenizer={"path": "../tokenizer", "sha256": tokenizer_hash},
            sequence_length=settings.sequence_length,
            packing=settings.packing,
            shards=shards[split],
            report=report,
        )
        for split in settings.splits
    }
    for split, manifest in manifests.items():
        manifest.save(folder / split)
    return manifests


def _split_rule(settings: TextSettings, threshold: int) -> str:
    whole = [HELD_OUT_RULE.format(split=split) for split in ("validation", "test") if getattr(settings, split)]
    cut = [SPLIT_RULE.format(threshold=threshold), *([LEFT_OUT_RULE] if settings.test else [])]
    return "; ".join([*([TRAINING_RULE] if settings.validation else cut), *whole])


def _report(settings: TextSettings, reader: Reader, held_out: HeldOut | None, totals: Totals) -> dict[str, Any]:
    splits = {}
    for split, total in totals.items():
        capacity = total["samples"] * settings.sequence_length
        ends = total["documents"] - total["empty_documents"]
        kept = total["tokens"] - total["samples"] - ends  # without [CLS] and [SEP]
        splits[split] = {
            **total,
            "tokens_kept": kept / total["document_tokens"],
            "padding": 1 - total["tokens"] / capacity,
            "bytes_per_token": total["bytes"] / total["document_tokens"],
            "unknown": total["unknown_tokens"] / total["document_tokens"],
        }
    report = {
        "sources": [
            {"source": source.name, "files": len(source.parts), **dataclasses.asdict(count)}
            for source, count in zip(reader.sources, reader.counts, strict=True)
        ],
        "splits": splits,
    }
    if held_out is not None:
        left_out = {name: sum(counts[name] for counts in reader.left_out) for name in reader.left_out[0]}
        report["held_out"] = {"left_out": left_out, "validation_in_test": held_out.validation_in_test}
        # Told, and trained on all the same: which of them are leaks, only a reader can say.
        report["held_out"]["overlapping"] = held_out.overlapping
    return report

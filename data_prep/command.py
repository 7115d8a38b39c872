"""`longmix prepare`: its arguments, and the report as a table."""

import argparse
import sys
from pathlib import Path
from typing import Any

from longmix.data_prep.tasks import (
    dna,
    document_classes,
    forecasting,
    lego,
    listops,
    long_range,
    points,
    retrieval,
    text_bytes,
)
from longmix.data_prep.tasks.images import image, patches, pathfinder
from longmix.data_prep.tasks.probe import BOTH, DIRECTIONS, TASKS, ProbeSettings, prepare_probe
from longmix.data_prep.tasks.task_folder import describe
from longmix.data_prep.text.documents import FORMS
from longmix.data_prep.text.packing import DOCUMENTS, ONE_PER_ROW
from longmix.data_prep.text.prepare import DEFAULT_VOCABULARY, Prepared, prepare_text
from longmix.data_prep.text.state import TextSettings

_DESCRIPTION = """\
Turn text into a tokenizer and packed data sets for pre-training.

DIR gets train/ and validation/ (Parquet shards and a manifest; split by document, 1 % validation, more of a small
corpus) and tokenizer/ (a SentencePiece unigram model behind a Hugging Face tokenizer, trained on train/'s documents).

A source is a UTF-8 text file, a .jsonl or .parquet file, a folder (all files below it, sorted), or a data set of the
Hugging Face hub, which is streamed: hub:NAME, hub:NAME:SPLIT, hub:NAME:SPLIT:COLUMN (hub:NAME@CONFIGURATION:... where
the data set has several). Data sets that need a script of their own are refused.

Official splits: with --validation, validation/ is the text given there, whole, and all of --source is training text;
--test makes test/ in the same way. A folder that holds them side by side (wiki.train.tokens, wiki.test.tokens) is
refused as a source: they would be pooled. A document of --source that also stands there is left out, and counted: one
with the same text (letters and digits compared, in one case) or, where text is cut at ' = Title = ' headings, the same
title. Not noticed are changed text without the same title, and a part of a document.

An interrupted run goes on after its last finished block when the same command is given again. The output is the same,
to the byte, whatever the number of workers.
"""
_EXAMPLES = """\
examples:
  longmix prepare text --source articles.txt --output data/articles
  longmix prepare text --source books/ --source notes.jsonl --column body --output data/mine --vocab-size 16000
  longmix prepare text --source hub:wikimedia/wikipedia@20231101.en --output data/wikipedia --sequence-length 1024
  longmix prepare text --source wiki.train.raw --validation wiki.valid.raw --test wiki.test.raw --output data/wikitext
"""

_PROBE_DESCRIPTION = """\
Make a synthetic task that asks one thing of a model: does it find what stands at a given distance?

copy: the class of each position is the token DISTANCE to its left, or right (positions without one have no label).
lookup: four pairs of a key and a value; DISTANCE away stand the four keys again, in another order, as queries, whose
classes are the values. Nothing else has a label.

DIR gets train/ and validation/ (a tenth as many samples), for runs with objective.name=token_classification. Samples
have different lengths, up to --length. Of --direction both, half of the samples look to the left and half to the
right, and their token types (0, 1) say which.
"""
_PROBE_EXAMPLES = """\
example:
  longmix prepare probe --task copy --distance 16 --output data/copy-16
  longmix train configs/probe.yaml data.train=data/copy-16/train data.eval=data/copy-16/validation run.dir=runs/copy-16
"""


def add_prepare_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the verb `prepare` to what `ArgumentParser.add_subparsers` returned; returns its parser.

    `arguments.run` of the parsed arguments is the function that does the work and returns the exit code.
    """
    prepare = subparsers.add_parser("prepare", help="make data sets", description="Make data sets.")
    kinds = prepare.add_subparsers(title="kinds of data", dest="kind", required=True, metavar="KIND")
    text = kinds.add_parser(
        "text",
        help="text into a tokenizer and packed data sets for masked language modelling",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = text.add_argument
    add("--source", action="append", required=True, metavar="PATH|hub:NAME", help="where the text is; repeatable")
    add("--output", required=True, metavar="DIR", help="folder to make; empty, new, or of the same interrupted command")
    for split in ("validation", "test"):
        add(f"--{split}", action="append", default=[], metavar="PATH|hub:NAME", help=f"text of {split}/; repeatable")
    add("--column", default="text", help="key or column that holds the text of JSON lines and Parquet (default: text)")
    add("--tokenizer", metavar="DIR", help="use this tokenizer (a Hugging Face folder) and train none")
    add("--vocab-size", type=int, metavar="N", help=f"pieces of a new tokenizer (default: {DEFAULT_VOCABULARY})")
    add("--uncased", action="store_true", help="a new tokenizer folds upper and lower case")
    add("--sequence-length", type=int, default=512, metavar="N", help="tokens of a full sample (default: 512)")
    add(
        "--documents",
        metavar="RULE",
        help=f"what a document is: {FORMS} (each line that the expression matches begins one). Default: records of "
        "JSON lines, Parquet and the hub; text is cut at blank lines, or at ' = Title = ' headings where it has them",
    )
    add(
        "--packing",
        choices=(DOCUMENTS, ONE_PER_ROW),
        default=DOCUMENTS,
        help="documents: fill each sample with as many as fit (default). one-per-row: each sample holds (a piece of) "
        "one document, for mixers that cannot keep packed documents apart",
    )
    add("--workers", type=int, metavar="N", help="processes that encode and pack (default: one per processor)")
    text.set_defaults(run=run_text)
    _add_probe(kinds)
    long_range.add_adding_parser(kinds)
    dna.add_parser(kinds)
    document_classes.add_parser(kinds)
    forecasting.add_parser(kinds)
    image.add_parser(kinds)
    lego.add_parser(kinds)
    listops.add_parser(kinds)
    patches.add_parser(kinds)
    pathfinder.add_parser(kinds)
    points.add_parser(kinds)
    retrieval.add_parser(kinds)
    long_range.add_temporal_order_parser(kinds)
    text_bytes.add_parser(kinds)
    return prepare


def _add_probe(kinds: Any) -> None:
    probe = kinds.add_parser(
        "probe",
        help="synthetic tasks: copy what stands at a distance, or look it up",
        description=_PROBE_DESCRIPTION,
        epilog=_PROBE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = probe.add_argument
    add("--task", required=True, choices=TASKS, help="what is asked")
    add("--distance", required=True, type=int, metavar="N", help="how far away the answer stands, in tokens")
    add("--output", required=True, metavar="DIR", help="folder to make; empty, new, or of the same command")
    add("--direction", choices=DIRECTIONS, default=BOTH, help="where the answer stands (default: both)")
    add("--length", type=int, metavar="N", help="tokens of the longest sample (default: twice what the task needs)")
    add("--samples", type=int, default=20000, metavar="N", help="samples to train on (default: 20000)")
    add("--seed", type=int, default=0, metavar="N", help="another one gives other samples (default: 0)")
    probe.set_defaults(run=run_probe)


def run_probe(arguments: argparse.Namespace) -> int:
    """Make the data set that the parsed arguments ask for, print what it holds, return the exit code.

    Raises `UserError`.
    """
    settings = ProbeSettings(
        task=arguments.task,
        distance=arguments.distance,
        direction=arguments.direction,
        length=arguments.length,
        samples=arguments.samples,
        seed=arguments.seed,
    )
    print("\n".join(describe(prepare_probe(settings, arguments.output))))
    return 0


def run_text(arguments: argparse.Namespace) -> int:
    """Do what the parsed arguments ask, print the report, return the exit code. Raises `UserError`."""
    settings = TextSettings(
        source=tuple(arguments.source),
        column=arguments.column,
        tokenizer=arguments.tokenizer,
        vocab_size=arguments.vocab_size,
        sequence_length=arguments.sequence_length,
        uncased=arguments.uncased,
        documents=arguments.documents,
        packing=arguments.packing,
        validation=tuple(arguments.validation),
        test=tuple(arguments.test),
    )
    prepared = prepare_text(
        settings,
        arguments.output,
        workers=arguments.workers,
        show_progress=sys.stderr.isatty(),
        notify=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(format_report(prepared, arguments.output))
    return 0


def format_report(prepared: Prepared, output: str | Path) -> str:
    """The report of a prepared folder as a small table."""
    report = prepared.train.report
    lines = []
    if prepared.was_there:
        lines.append(f"{output} was prepared before with the same settings; nothing to do.")
    lines.append("source")
    for source in report["sources"]:
        files = f"{source['files']} files, " if source["files"] > 1 else ""
        blank = f", {source['blank']:,} blank left out" if source["blank"] else ""
        lines.append(
            f"  {source['source']}: {files}{source['documents']:,} documents, {source['bytes'] / 1e6:,.1f} MB, "
            f"told apart by {' and '.join(source['rules'])}{blank}"
        )
    if "held_out" in report:
        left_out = report["held_out"]["left_out"]
        lines.append(
            f"left out of training, since they stand in held-out text: {sum(left_out.values()):,} documents "
            f"({left_out['same_text']:,} by their text, {left_out['same_title']:,} by their title)"
        )
        if shared := report["held_out"]["validation_in_test"]:
            lines.append(f"validation holds {shared:,} documents that also stand in test: they were left there")
    rows = [
        ("documents", "documents", "{:,}"),
        ("samples", "samples", "{:,}"),
        ("tokens, special ones included", "tokens", "{:,}"),
        ("tokens of the text", "document_tokens", "{:,}"),
        ("of these kept", "tokens_kept", "{:.2%}"),
        ("of these unknown", "unknown", "{:.2%}"),
        ("bytes per token", "bytes_per_token", "{:.2f}"),
        ("padding that the packing will cause", "padding", "{:.2%}"),
    ]
    splits = report["splits"]
    lines.append(f"{'':<38}" + "".join(f"{name:>16}" for name in splits))
    for label, key, form in rows:
        lines.append(f"  {label:<36}" + "".join(f"{form.format(figures[key]):>16}" for figures in splits.values()))
    lines.append(
        f"vocabulary {prepared.train.vocab_size:,}, sequence length {prepared.train.sequence_length}, "
        f"packing {prepared.train.packing}"
    )
    lines.append(f"written to {output}: {''.join(f'{name}/, ' for name in splits)}tokenizer/")
    return "\n".join(lines)

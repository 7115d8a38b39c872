"""`longmix prepare text`: its options, and its report as a table."""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from longmix.data_prep.errors import printable
from longmix.data_prep.manifest_fields import DOCUMENTS, ONE_PER_ROW
from longmix.data_prep.options import given_options
from longmix.data_prep.text.documents import FORMS
from longmix.data_prep.text.sources import FORMATS
from longmix.data_prep.text.state import TextSettings

if TYPE_CHECKING:
    from longmix.data_prep.text.prepare import Prepared

_DESCRIPTION = """\
Turn text into a tokenizer and packed data sets for pre-training.

DIR gets train/ and validation/ (Parquet shards and a manifest; split by document, 1 % validation, more of a small
corpus) and tokenizer/ (a SentencePiece unigram model behind a Hugging Face tokenizer, trained on train/'s documents).

A source is a UTF-8 text file, a file of JSON lines, CSV, TSV or Parquet (told by its name, or text, JSON lines and
Parquet by content; what each source was taken for is printed), a folder (all files below it, sorted), or a data set of
the Hugging Face hub, which is streamed: hub:NAME, hub:NAME:SPLIT, hub:NAME:SPLIT:COLUMN (hub:NAME@CONFIGURATION:...
where the data set has several).
Data sets that need a script of their own are refused.
Text, JSON lines, CSV and TSV may be compressed with gzip, zstd, bzip2 or xz (articles.jsonl.zst): they are unpacked as
they are read, and the output is that of the unpacked files. The first bytes of all files are looked at before any is
read: what cannot be read is told at once. Files without a byte are passed over.

Official splits: with --validation, validation/ is the text given there, whole, and all of --source is training text;
--test makes test/ in the same way. A folder that holds them side by side (wiki.train.tokens, wiki.test.tokens) is
refused as a source: they would be pooled. A document of --source that also stands there is left out, and counted: one
with the same text (letters and digits compared, in one case) or, where text is cut at ' = Title = ' headings, the same
title. Documents that share passages with held-out text are counted and kept: those of which one of the stretches of
13 words, one behind the other, stands there, and those of which most do. So every shared passage of 25 words is
noticed; shorter ones may not be, nor changed wording, nor text without spaces between its words.

An interrupted run goes on after its last finished block when the same command is given again. The output is the same,
to the byte, whatever the number of workers, and of shares: with --share I/N many hosts that see the same files prepare
one text. All N are started at about the same time; they wait for each other between counting, encoding and writing, and
one of which nothing is heard for ten minutes is waited for no longer (exit code 75: start all shares again).
"""
_EXAMPLES = """\
examples:
  longmix prepare text --source articles.txt --output data/articles
  longmix prepare text --source books/ --source notes.jsonl --column body --output data/mine --vocab-size 16000
  longmix prepare text --source hub:wikimedia/wikipedia@20231101.en --output data/wikipedia --sequence-length 1024
  longmix prepare text --source wiki.train.raw --validation wiki.valid.raw --test wiki.test.raw --output data/wikitext
  longmix prepare text --source books/ --output data/books --share 2/16   (and 15 others)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare text`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    add("--source", action="append", required=True, metavar="PATH|hub:NAME", help="where the text is; repeatable")
    for split in ("validation", "test"):
        add(f"--{split}", action="append", default=[], metavar="PATH|hub:NAME", help=f"text of {split}/; repeatable")
    add("--column", default="text", help="key or column of the text, but of plain text (default: text)")
    add(
        "--format",
        choices=FORMATS,
        help="what all files are read as (default: each as its name says, .jsonl, .parquet, .csv or .tsv, or else its "
        "content)",
    )
    add("--tokenizer", metavar="DIR", help="use this tokenizer (a Hugging Face folder) and train none")
    add(
        "--vocab-size",
        type=int,
        metavar="N",
        help="pieces of a new tokenizer (default: by the size of the text, 1 for 350 bytes, 300 to 32000)",
    )
    add("--uncased", action="store_true", help="a new tokenizer folds upper and lower case")
    add("--sequence-length", type=int, default=512, metavar="N", help="tokens of a full sample (default: 512)")
    add(
        "--documents",
        metavar="RULE",
        help=f"what a document is: {FORMS} (each line that the expression matches begins one; record: each line of a "
        "text). Default: records of JSON lines, tables, Parquet and the hub; text is cut at blank lines, or at "
        "' = Title = ' headings where it has them",
    )
    add(
        "--packing",
        choices=(DOCUMENTS, ONE_PER_ROW),
        default=DOCUMENTS,
        help="documents: fill each sample with as many as fit (default). one-per-row: each sample holds (a piece of) "
        "one document, for mixers that cannot keep packed documents apart",
    )
    add("--workers", type=int, metavar="N", help="processes that encode and pack (default: one per processor)")
    add(
        "--share",
        metavar="I/N",
        help="do part I, from 0, of N: the command with each of them, on hosts that share a disk, makes what one host "
        "makes without it, to the byte (Slurm: slurm/prepare.sh)",
    )
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    from longmix.data_prep.text.prepare import prepare_text  # here: the options alone need no library

    prepare = prepare_text
    if arguments.share is not None:
        from longmix.data_prep.text.shares import Share
        from longmix.data_prep.text.sharing import prepare_share

        prepare = partial(prepare_share, share=Share.parse(arguments.share))
    prepared = prepare(
        TextSettings(**given_options(arguments, TextSettings)),
        arguments.output,
        workers=arguments.workers,
        show_progress=sys.stderr.isatty(),
        notify=lambda line: print(printable(line), file=sys.stderr, flush=True),
    )
    if prepared is None:
        return iter([f"share {arguments.share} of {arguments.output} is done"])
    return _report(prepared, arguments.output)


def _report(prepared: "Prepared", output: str) -> Iterator[str]:
    """The lines of a small table: what a prepared folder holds."""
    report = prepared.train.report
    if prepared.was_there:
        yield f"{output} was prepared before with the same settings; nothing to do."
    yield "source"
    for source in report["sources"]:
        files = f"{source['files']} files, " if source["files"] > 1 else ""
        blank = f", {source['blank']:,} blank left out" if source["blank"] else ""
        yield (
            f"  {source['source']}: {files}{source['documents']:,} documents, {source['bytes'] / 1e6:,.1f} MB, "
            f"told apart by {' and '.join(source['rules'])}{blank}"
        )
        if "kinds" in source:  # not in what an older longmix made
            yield f"    read as {' and '.join(source['kinds'])}, the first begins {source['begins']!r}"
    if "held_out" in report:
        left_out = report["held_out"]["left_out"]
        yield (
            f"left out of training, since they stand in held-out text: {sum(left_out.values()):,} documents "
            f"({left_out['same_text']:,} by their text, {left_out['same_title']:,} by their title)"
        )
        # An older longmix looked for whole documents alone.
        overlapping = report["held_out"].get("overlapping", {"some": 0})
        if overlapping["some"]:
            some, most, words = (overlapping[name] for name in ("some", "most", "words"))
            yield (
                f"of those trained on, {some:,} share {words} words in a row with held-out text, {most:,} of them most "
                "of their words: they were left there"
            )
        if shared := report["held_out"]["validation_in_test"]:
            yield f"validation holds {shared:,} documents that also stand in test: they were left there"
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
    yield f"{'':<38}" + "".join(f"{name:>16}" for name in splits)
    for label, key, form in rows:
        yield f"  {label:<36}" + "".join(f"{form.format(figures[key]):>16}" for figures in splits.values())
    yield (
        f"vocabulary {prepared.train.vocab_size:,}, sequence length {prepared.train.sequence_length}, "
        f"packing {prepared.train.packing}"
    )
    yield f"written to {output}: {''.join(f'{name}/, ' for name in splits)}tokenizer/"

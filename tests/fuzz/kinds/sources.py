"""What longmix prepare reads: text, tables, series, arrays, genes."""

import os
from pathlib import Path

from .. import mutations, results
from ..attack import Attack, Workshop
from .shards import change_table

SPLITS = ("train", "validation", "test")
SIZES = "--vocab-size 45 --sequence-length 24 --workers 1"
ARRAYS = "--train sources/train.npy sources/train_labels.npy --test sources/test.npy sources/test_labels.npy"
# What follows `prepare`, and what it reads.
COMMANDS = (
    (f"text --source text.txt {SIZES}", ["text.txt"]),
    (f"text --source corpus.jsonl {SIZES}", ["corpus.jsonl"]),
    (f"text --source sources/corpus.parquet {SIZES}", ["sources/corpus.parquet"]),
    (f"text --source text.txt --validation corpus.jsonl {SIZES}", ["text.txt", "corpus.jsonl"]),
    ("forecasting --source sources/series.csv", ["sources/series.csv"]),
    ("text-bytes --source sources/reviews", ["sources/reviews"]),
    ("text-bytes --source sources/tables", ["sources/tables"]),
    ("documents --source sources/reviews", ["sources/reviews"]),
    ("dna --source sources/dna", ["sources/dna"]),
    ("dna --source sources/Bos.fa --source sources/Mus.fa", ["sources/Bos.fa", "sources/Mus.fa"]),
    ("retrieval --source sources/pairs", ["sources/pairs"]),
    ("points --train sources/train.npz --test sources/test.npz", ["sources/train.npz", "sources/test.npz"]),
    (f"patches {ARRAYS} --patch-size 4", ["sources"]),
    (f"image {ARRAYS}", ["sources"]),
)


def make(shop: Workshop) -> Attack:
    draw = shop.draw
    line, read = draw.choice(COMMANDS)
    words = line.split()
    shop.take("sources", "text.txt", "corpus.jsonl")
    path = draw.choice(shop.files(*read, suffix=".npy" if ARRAYS in line else ""))
    if path.suffix == ".parquet" and draw.random() < 0.7:
        what = change_table(shop, path)
    elif path.suffix in (".npy", ".npz") and draw.random() < 0.7:
        what = _array(shop, path)
    elif path.suffix in (".txt", ".tsv", ".csv", ".fa") and draw.random() < 0.6:
        what = _lines(shop, path)
    else:
        what = mutations.file_changed(draw, path, shop.canaries)
        if what.endswith(": sparse"):
            # Text of any size is read, which would take the time that it takes.
            os.truncate(path, 2**20)
    names = SPLITS[:2] if words[0] == "text" else SPLITS
    return Attack(["prepare", *words, "--output", "made"], what, results.data_sets("made", names=names), ("made",))


def _lines(shop: Workshop, path: Path) -> str:
    """Another line, or another field of one, or a line a thousand times."""
    draw = shop.draw
    lines = path.read_bytes().split(b"\n")
    number = draw.randrange(len(lines))
    new = draw.choice(
        [*mutations.TEXTS, "nan", "1e999", "2020-13-01", "9999999-01-01 00:00:00", "1e400", ">", "a" * 200_000]
    )
    separator = {".tsv": b"\t", ".csv": b","}.get(path.suffix, b"\0")
    fields = lines[number].split(separator)
    fields[draw.randrange(len(fields))] = new.encode(draw.choice(("utf-8", "utf-16", "latin-1")), errors="replace")
    kind = draw.randrange(5)
    if kind == 0:
        lines[number : number + 1] = [lines[number]] * draw.choice((0, 2, 1000))
        path.write_bytes(b"\n".join(lines))
        return f"{path.name}: line {number + 1} again or not"
    if kind == 1:
        fields *= 2
    lines[number] = separator.join(fields)
    path.write_bytes(b"\n".join(lines))
    return f"{path.name}, line {number + 1}: {lines[number][:60]!a}"


def _array(shop: Workshop, path: Path) -> str:
    """Another array: type, shape, values; objects would be pickles."""
    import numpy as np

    draw = shop.draw
    array = np.load(path)
    archive = None
    if path.suffix == ".npz":
        archive = dict(array)
        name = draw.choice(list(archive))
        array = archive[name]
    kind = draw.choice(("type", "shape", "values", "pickle", "empty", "header", "order", "missing", "huge"))
    if kind == "type":
        with np.errstate(all="ignore"):
            array = array.astype(draw.choice(("f2", "f8", "i1", "u8", "S3", "U3", "?", "c8", ">i4", "M8[s]")))
    elif kind == "shape":
        array = draw.choice((array[None], array.reshape(-1), array[:0], array[:1], array[..., None], np.array(1)))
    elif kind == "values":
        array = array.astype("f8") if array.dtype.kind == "f" else array.copy()
        array.reshape(-1)[draw.randrange(array.size)] = (
            draw.choice((float("nan"), float("inf"), -1e300))
            if array.dtype.kind == "f"
            else draw.choice((0, 127, 255 if array.dtype == np.uint8 else -1))
        )
    elif kind == "pickle":
        array = np.array([mutations.Bomb(shop.canaries)] * 3, dtype=object)
    elif kind == "empty":
        array = np.zeros(0, array.dtype)
    elif kind == "order":
        array = np.asfortranarray(array)
    elif kind in ("header", "huge") and archive is None:
        content = path.read_bytes()
        shape = b"(20,99999999999)," if kind == "huge" else b"(-1, 8, 8, 3), "
        start = content.index(b"'shape': ") + 9
        end = content.index(b")", start) + 2
        header = content[:start] + shape + content[end:]
        path.write_bytes(header)
        return f"{path.name}: a header of {shape!a}"
    if archive is None:
        np.save(path, array)
        return f"{path.name}: {kind}"
    archive[name] = array
    if kind == "missing":
        del archive[name]
    np.savez(path, **archive)
    return f"{path.name}: {kind} of {name}"

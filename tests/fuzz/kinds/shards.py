"""Parquet shards: damaged, and others that the manifest was made to fit."""

import hashlib
import json

from .. import mutations, results
from ..attack import Attack, Workshop


def make(shop: Workshop) -> Attack:
    shop.take("data", "run.yaml", "run")
    folder = shop.work / "data" / shop.draw.choice(("train", "train", "validation"))
    path = folder / "shard-00000.parquet"
    if shop.draw.random() < 0.4:
        return reader(shop, mutations.file_changed(shop.draw, path, shop.canaries), is_same=True)
    what = change_table(shop, path)
    rewrite(folder)
    return reader(shop, f"{folder.name}: {what}, and a manifest that fits", is_same=False)


def reader(shop: Workshop, what: str, is_same: bool) -> Attack:
    """A command that reads data sets. With `is_same` it ends as the undisturbed one if it ends well."""
    verb = shop.draw.choice(("train", "train", "check", "evaluate", "inspect"))
    if verb == "train":
        check = results.trained("fresh", "run" if is_same else None)
        return Attack(["train", "run.yaml", "run.dir=fresh"], what, check, ("fresh",))
    if verb == "check":
        return Attack(["train", "run.yaml", "--check"], what, results.says("this run file is valid\n$"))
    if verb == "evaluate":
        check = results.printed("evaluated.txt") if is_same else results.figures
        return Attack(["evaluate", "run/model", "--data", "data/validation"], what, check)
    check = results.printed("order.txt") if is_same else results.says(r"^step 2 of 2: places 4 to 7")
    return Attack(["inspect-order", "run.yaml", "--step", "2"], what, check)


def rewrite(folder) -> None:
    """Let the manifest say that the shard which is there is the one that was written."""
    path, manifest = folder / "shard-00000.parquet", folder / "manifest.json"
    values = json.loads(manifest.read_text())
    content = path.read_bytes()
    values["shards"][0].update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    manifest.write_text(json.dumps(values))


def change_table(shop: Workshop, path) -> str:
    """Write another table in the place of a Parquet file: types, values, columns, rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw, table = shop.draw, pq.read_table(path)
    name = draw.choice(table.column_names)
    index, count = table.column_names.index(name), table.num_rows
    kind = draw.choice(
        ("type", "type", "type", "value", "value", "drop", "add", "rename", "rows", "null", "groups", "order", "bytes")
    )
    options = {}
    if kind == "type":
        described, column = draw.choice(list(columns(draw, table.column(index), count).items()))
        table, what = table.set_column(index, name, column), f"{name} as {described}"
    elif kind == "value":
        rows = table.column(index).to_pylist()
        where = draw.randrange(count)
        old = rows[where]
        value = draw.choice((-1, 0, 44, 45, 2**31 - 1, -(2**31)))
        rows[where] = [*old[:-1], value] if isinstance(old, list) else value if isinstance(old, (int, float)) else old
        if isinstance(old, list) and draw.random() < 0.4:
            rows[where] = draw.choice(([], old * 20, old[:1], old[1:]))
        try:
            column = pa.array(rows, table.schema.field(index).type)
        except pa.ArrowInvalid:
            column = table.column(index)
        table, what = table.set_column(index, name, column), f"row {where} of {name} is {str(rows[where])[:60]}"
    elif kind == "drop":
        table, what = table.drop([name]), f"without {name}"
    elif kind == "add":
        added = draw.choice(("labels", "values", "text", "input_ids_b", "\x1b[31m", name))
        table, what = table.append_column(added, table.column(index)), f"{added!a} beside {name}"
    elif kind == "rename":
        renamed = draw.choice(mutations.TEXTS).encode(errors="replace").decode()
        table = table.rename_columns([renamed if other == name else other for other in table.column_names])
        what = f"{name} is called {renamed!a}"
    elif kind == "rows":
        table = draw.choice((table.slice(0, 0), table.slice(1), pa.concat_tables([table, table])))
        what = f"{table.num_rows} rows for {count}"
    elif kind == "null":
        table = table.set_column(index, name, pa.nulls(count, table.schema.field(index).type))
        what = f"{name} without a value"
    elif kind == "groups":
        options = draw.choice(
            ({"row_group_size": 1}, {"compression": "zstd"}, {"use_dictionary": False}, {"version": "1.0"})
        )
        what = f"written with {options}"
    elif kind == "order":
        table, what = table.select(table.column_names[::-1]), "columns in the other order"
    else:
        content, what = mutations.bytes_changed(draw, path.read_bytes(), shop.canaries)
        path.write_bytes(content)
        return f"{path.name}: {what}"
    pq.write_table(table, path, **options)
    return f"{path.name}: {what}"


def columns(draw, column, count: int) -> dict:
    """{what it is: a column of another type} with as many rows."""
    import decimal

    import pyarrow as pa

    moments = [draw.choice((0, 2**62, -(2**62), 2**63 - 1))] * count
    return {
        "texts": pa.array([draw.choice(mutations.TEXTS).encode(errors="replace").decode()] * count),
        "bytes": pa.array([b"\xff\xfe"] * count, pa.binary()),
        "whole numbers": pa.array([draw.choice((0, 1, -1, 2**63 - 1))] * count, pa.int64()),
        "floats": pa.array([draw.choice((0.5, 1.0, float("nan"), float("inf"), 1e300))] * count),
        "booleans": pa.array([True] * count),
        "moments out of range": pa.array(moments, pa.timestamp(draw.choice(("s", "ns", "ms")))),
        "days": pa.array([2**31 - 1] * count, pa.date32()),
        "spans": pa.array([2**63 - 1] * count, pa.duration("s")),
        "maps": pa.array([{"a": 1}] * count),
        "lists": pa.array([[1, 2]] * count),
        "lists of lists": pa.array([[[1]], [[2, 3]]] * (count // 2) + [[]] * (count % 2)),
        "lists of texts": pa.array([["a", None]] * count),
        "decimals": pa.array([decimal.Decimal("1.50")] * count),
        "nothing": pa.nulls(count),
        "a dictionary": pa.array(["a"] * count).dictionary_encode(),
    }

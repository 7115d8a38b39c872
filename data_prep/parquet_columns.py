"""Columns of Parquet files and Arrow tables from outside: their types are checked before a value is read."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, reason_of
from longmix.data_prep.files import require_input

TEXT, CLASS, WHOLE_NUMBER, NUMBER = "text", "text or whole numbers", "whole numbers", "numbers"
_SHOWN_COLUMNS = 20


def check_columns(schema: Any, wanted: Mapping[str, str], place: str, advice: str) -> None:
    """Check the columns of an Arrow schema.

    Args:
        wanted: {column: TEXT, CLASS, WHOLE_NUMBER or NUMBER}.
        place, advice: begin and end a message.

    Raises:
        UserError: there is no such column, or more than one, or one of another type. One without any value has none.
    """
    try:
        names = schema.names
    except UnicodeDecodeError:
        raise UserError(f"{place}: the name of a column is not UTF-8: {advice}") from None
    for name, kind in wanted.items():
        if names.count(name) != 1:
            what = "no column" if name not in names else "more than one column"
            held = ", ".join(repr(other[:60]) for other in names[:_SHOWN_COLUMNS]) or "none"
            raise UserError(f"{place}: there is {what} {name!r}; it has {held}: {advice}")
        type_ = schema.field(name).type
        if not _is(type_, kind):
            raise UserError(f"{place}: column {name!r} holds {str(type_)[:60]}, expected {kind}: {advice}")


def _is(type_: Any, kind: str) -> bool:
    from pyarrow import types

    if types.is_dictionary(type_):
        type_ = type_.value_type
    is_text = types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    is_whole = types.is_integer(type_)
    return (
        types.is_null(type_)
        or {
            TEXT: is_text,
            CLASS: is_text or is_whole or types.is_boolean(type_),
            WHOLE_NUMBER: is_whole,
            NUMBER: is_whole or types.is_floating(type_),
        }[kind]
    )


def values_of(column: Any, name: str, place: str, first: int) -> list[Any]:
    """The values of a column, or of a part of it that begins with row `first`.

    Raises:
        UserError: with the row, for a text that is not UTF-8.
    """
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        for row, value in enumerate(column, start=first):
            try:
                value.as_py()
            except UnicodeDecodeError:
                raise UserError(f"{place}, row {row}: {name!r} holds bytes that are not UTF-8") from None
        raise


def parquet_file(path: str | Path, **options: Any) -> Any:
    """pyarrow's ParquetFile of a local file; by itself it takes a colon in a relative path for that of a URL."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(Path(path).absolute(), **options)


def read_rows(path: Path, wanted: Mapping[str, str], advice: str, batch_size: int) -> Iterator[tuple[str, list[Any]]]:
    """The place of each row of a Parquet file, counted from 1, and its values in the order of `wanted`.

    Raises:
        UserError: as `check_columns` and `values_of`; and a file that is damaged, encrypted, or no Parquet.
    """
    import pyarrow as pa

    number = 0
    require_input(path)
    try:
        with parquet_file(path) as file:
            check_columns(file.schema_arrow, wanted, str(path), advice)
            for batch in file.iter_batches(batch_size=batch_size, columns=list(wanted)):
                columns = [values_of(batch.column(name), name, str(path), number + 1) for name in wanted]
                for values in zip(*columns, strict=True):
                    number += 1
                    yield f"{path}, row {number}", list(values)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {reason_of(error)}") from None

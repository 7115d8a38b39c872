"""Texts with a class, or pairs of them, from TSV, Parquet, and folders that hold a folder for each class.

TSV is raw: tabs between the fields, no quoting, so a double quote is a letter like any other; the first line names the
columns. A byte order mark is dropped, and so are carriage returns at the ends of lines where the header has one.
Everything is read a row, or a file, at a time.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import files_below
from longmix.data_prep.parquet_columns import CLASS, TEXT, read_rows
from longmix.kernels.common.safe_files import open_input

LARGEST_TEXT = 1 << 26  # bytes of a line of TSV, or of a text file
DIGEST_BYTES = 16
PARQUET, TSV = ".parquet", ".tsv"
_PARQUET_BATCH = 64
_ADVICE = "name the column with its option, or other files"


class Example(NamedTuple):
    """One labelled text, or pair of texts.

    Attributes:
        texts: one or two; a reader of very long ones may have cut them.
        label: the class, as the file writes it.
        size: characters of the shortest of the uncut texts.
        digest: of the uncut texts, the same for a pair and the pair turned around.
        place: where it stands, for messages.
    """

    texts: tuple[str, ...]
    label: str
    size: int
    digest: bytes
    place: str


@dataclass(frozen=True)
class Layout:
    """How a task's files are laid out.

    Args:
        label: column of TSV and Parquet with the class: text or whole numbers.
        texts: columns with the one text, or the two.
        headerless: names of the columns of a TSV file without a header; it is read so if its first line has as many
            fields, none of which is `label`, and begins with one of `headerless_labels`.
        headerless_labels: {label as such a file writes it: the class}.
        suffixes: of the files in a class's folder.
        class_per_file: a file with such a suffix, beside or instead of the classes' folders, is a class by its name.
        clean: (a text of a table, its place for messages) -> the text as the task takes it; by default as it is.
        read_file: a file of a class -> its texts, as examples without a label; by default one text file, one text.
        ignored: folders that hold no class.
    """

    label: str
    texts: tuple[str, ...]
    headerless: tuple[str, ...] = ()
    headerless_labels: tuple[tuple[str, str], ...] = ()
    suffixes: tuple[str, ...] = (".txt",)
    class_per_file: bool = False
    clean: Callable[[str, str], str] | None = None
    read_file: Callable[[Path], Iterator[Example]] | None = None
    ignored: tuple[str, ...] = ()

    def read(self, path: Path) -> Iterator[Example]:
        """The examples of a TSV or Parquet file, of all those in a folder, or of a folder of classes, in a fixed order.

        Raises:
            UserError: with file and row, for what cannot be read or is not laid out so.
        """
        if path.is_dir():
            tables = [item for item in visible(path) if item.suffix in (PARQUET, TSV) and item.is_file()]
            if tables:
                for table in tables:
                    yield from self._read_table(table)
            else:
                yield from self._read_classes(path)
        elif not path.exists():
            raise UserError(f"{path} does not exist")
        elif not path.is_file():
            raise UserError(f"{path} is not a regular file: save its contents to one")
        elif path.suffix in (PARQUET, TSV):
            yield from self._read_table(path)
        elif self.class_per_file and path.name.endswith(self.suffixes):
            yield from self._read_class(path, self.class_of(path))
        else:
            raise UserError(f"{path} is none of what is read here: {self._allowed(', ')}, or a folder of such files")

    def class_of(self, path: Path) -> str:
        """The class that a file's name says."""
        return next(path.name.removesuffix(suffix) for suffix in self.suffixes if path.name.endswith(suffix))

    def _read_table(self, path: Path) -> Iterator[Example]:
        rows = _parquet_rows(path, self) if path.suffix == PARQUET else _tsv_rows(path, self)
        for label, texts, place in rows:
            if self.clean is not None:
                texts = tuple(self.clean(text, place) for text in texts)
            yield Example(texts, label, min(map(len, texts)), content_digest(texts), place)

    def _read_classes(self, folder: Path) -> Iterator[Example]:
        found = False
        for item in visible(folder):
            if item.is_dir() and item.name not in self.ignored:
                files = [file for file in _visible_below(item) if self._is_class_file(file)]
                for file in files:
                    yield from self._read_class(file, item.name)
                found = found or bool(files)
            elif self.class_per_file and self._is_class_file(item):
                found = True
                yield from self._read_class(item, self.class_of(item))
        if not found:
            raise UserError(f"{folder} holds no {self._allowed(' or ')} files, and no folders of them for each class")

    def _allowed(self, conjunction: str) -> str:
        return conjunction.join([TSV, PARQUET, *self.suffixes])

    def _is_class_file(self, path: Path) -> bool:
        return path.name.endswith(self.suffixes) and path.is_file()

    def _read_class(self, path: Path, name: str) -> Iterator[Example]:
        for example in (self.read_file or read_text)(path):
            yield example._replace(label=name)


# -----------------------------------------------------------------------------
# Files of a class, and what tells that two texts are the same.


def content_digest(texts: Sequence[str]) -> bytes:
    """DIGEST_BYTES over the texts, whichever comes first."""
    single = sorted(hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest() for text in texts)
    return single[0] if len(single) == 1 else hashlib.blake2b(b"".join(single), digest_size=DIGEST_BYTES).digest()


def visible(folder: Path) -> list[Path]:
    """The contents of a folder, sorted, without what begins with a dot."""
    return _without_hidden(folder, folder.iterdir)


def _visible_below(folder: Path) -> list[Path]:
    """The files below a folder, sorted, without what begins with a dot or lies in such a folder."""
    return _without_hidden(folder, lambda: files_below(folder))


def _without_hidden(folder: Path, find: Callable[[], Iterable[Path]]) -> list[Path]:
    try:
        found = list(find())
    except OSError as error:
        raise refused(f"{error.filename} cannot be read", error) from None
    relative = [(item.relative_to(folder), item) for item in found]
    return [item for name, item in sorted(relative) if not any(part.startswith(".") for part in name.parts)]


def read_text(path: Path) -> Iterator[Example]:
    """The one text of a UTF-8 file, as an example without a label. Raises UserError if it is too large or not UTF-8."""
    try:
        with open_input(path) as stream:
            content = stream.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise refused(f"{path} cannot be read", error) from None
    if len(content) > LARGEST_TEXT:
        raise UserError(f"{path} is larger than {LARGEST_TEXT:,} bytes: leave it out, or cut it")
    text = _decoded(content, str(path)).removeprefix("\ufeff")
    yield Example((text,), "", len(text), content_digest((text,)), str(path))


# -----------------------------------------------------------------------------
# Tables: rows of TSV and Parquet, with the place of each for messages.


def _tsv_rows(path: Path, layout: Layout) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(label, texts, place) of each row; blank lines are no rows."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise UserError(f"{path} is empty")
    header = first.removeprefix("\ufeff")
    has_returns = header.endswith("\r")
    header = header.removesuffix("\r")
    columns = header.split("\t")
    codes = dict(layout.headerless_labels)
    is_headerless = len(columns) == len(layout.headerless) and layout.label not in columns and columns[0] in codes
    if is_headerless:
        columns = list(layout.headerless)
    label = _position(path, columns, layout.label)
    texts = [_position(path, columns, name) for name in layout.texts]

    def row(line: str, number: int) -> tuple[str, tuple[str, ...], str]:
        fields, place = line.split("\t"), f"{path}, line {number}"
        if len(fields) != len(columns):
            raise UserError(
                f"{place}: {len(fields)} fields with tabs between them, expected {len(columns)} ({', '.join(columns)})"
            )
        value = fields[label]
        if is_headerless:
            if value not in codes:
                raise UserError(f"{place}: {layout.label} is {_shown(value)}, allowed: {', '.join(codes)}")
            value = codes[value]
        return _label(value, layout.label, place), tuple(fields[index] for index in texts), place

    if is_headerless:
        yield row(header, 1)
    for number, line in enumerate(lines, start=2):
        line = line.removesuffix("\r") if has_returns else line
        if line:
            yield row(line, number)


def _lines(path: Path) -> Iterator[str]:
    """Lines without their line feeds."""
    try:
        with open_input(path) as stream:
            for number, raw in enumerate(iter(lambda: stream.readline(LARGEST_TEXT + 1), b""), start=1):
                if len(raw) > LARGEST_TEXT:
                    raise UserError(f"{path}, line {number} is longer than {LARGEST_TEXT:,} bytes: leave it out")
                yield _decoded(raw, f"{path}, line {number}").removesuffix("\n")
    except OSError as error:
        raise refused(f"{path} cannot be read", error) from None


def _parquet_rows(path: Path, layout: Layout) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(label, texts, place) of each row."""
    wanted = {layout.label: CLASS} | dict.fromkeys(layout.texts, TEXT)
    for place, values in read_rows(path, wanted, _ADVICE, _PARQUET_BATCH):
        record = dict(zip(wanted, values, strict=True))
        # A missing text is an empty one, which is too short for every task, and counted as such.
        texts = tuple(record[name] or "" for name in layout.texts)
        yield _label(record[layout.label], layout.label, place), texts, place


# -----------------------------------------------------------------------------
# Values from outside: checked where they are read.


def _position(path: Path, columns: Sequence[str], name: str) -> int:
    if columns.count(name) != 1:
        what = "no column" if name not in columns else "more than one column"
        held = ", ".join(_shown(column) for column in columns[:20])
        raise UserError(f"{path}: there is {what} {name!r}; it has {held}: {_ADVICE}")
    return columns.index(name)


def _label(value: Any, name: str, place: str) -> str:
    if isinstance(value, int):
        return str(int(value))
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{place}: {name} is {_shown(value)}, expected a class: a text or a whole number")
    return value.strip()


def _decoded(content: bytes, place: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: byte {content[error.start]:#04x} at offset {error.start} is not UTF-8: convert the file to UTF-8"
        ) from None


def _shown(value: Any) -> str:
    """A value from outside, short."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

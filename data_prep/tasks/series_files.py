"""Reading a time series from a CSV file: thousands of rows from elsewhere, so a mistake is told with row and column."""

import codecs
import contextlib
import csv
import io
import itertools
import math
import re
import shlex
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from longmix.data_prep.errors import UserError, refused
from longmix.kernels.common.safe_files import open_input

DATE = "date"
INTERPOLATE = "interpolate"
FEWEST_ROWS = 10
LARGEST = float(np.finfo(np.float32).max)
_DATE_FORMATS = ("%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y")
_MISSING = ("", "?", "-", "na", "n/a", "nan", "null", "none")
_PARTS = ("year", "month", "day", "hour", "minute", "second")  # what numbers in several date columns are, in this order
_DATE_NAMES = ("datetime", "timestamp", "time", "datum", "day", "ds", "date_time")  # that are advised, not taken
_NAME_OF_INDEX = re.compile(r"|Unnamed: \d+(\.\d+)?")  # of pandas; "" at the first writing
CLOCK_CHANGE = timedelta(hours=1)
_DELIMITERS = (",", ";", "\t")  # between the fields: the first of them that the header holds
_PROBED_ROWS = 100  # that are searched for more columns of text, once one is found
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NO_TEXT = {b"PAR1": "a Parquet file: write it as CSV first", b"\x1f\x8b": "compressed: unpack it first (gunzip)"}


@dataclass
class Series:
    """The contents of a CSV file.

    Attributes:
        names: of the variables.
        dates: of the rows, as they are written.
        interval: between most of the rows.
        values: (rows, variables) float64, NaN where one is missing.
        seconds: (rows - 1,) float64, from each row to the next.
    """

    names: list[str]
    dates: list[str]
    interval: timedelta
    values: np.ndarray
    seconds: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Reading:
    """How a CSV file is to be read.

    Args:
        drop_columns: variables that are left out.
        missing_allowed: a missing value becomes NaN; else it is a mistake.
        missing_values: what else stands for one that is missing, numbers (`-9999` is `-9999.0` too) or text.
        date_columns: the columns of the date: one, or several whose texts are joined, or the numbers of year, month,
            day, hour, minute and second, as far as there are.
        encoding: of the file; None: UTF-8, or UTF-16 if it begins with its mark.
    """

    drop_columns: tuple[str, ...] = ()
    missing_allowed: bool = False
    missing_values: tuple[str, ...] = ()
    date_columns: tuple[str, ...] = (DATE,)
    encoding: str | None = None


def check_encoding(encoding: str | None) -> None:
    """Raise UserError for an encoding that Python does not know."""
    try:
        text = encoding is None or codecs.lookup(encoding)._is_text_encoding
    except (LookupError, ValueError):
        text = False
    if not text:
        raise UserError(f"--encoding is {encoding!r}, which is none that Python knows: e.g. cp1252, latin-1, utf-16")


def read_series(source: Path, reading: Reading = Reading()) -> Series:
    """Read a CSV file: commas between the fields, or `;` or tabs where the header has no comma. Then a number may have
    a decimal comma.

    Raises:
        UserError: with the file, the row (the first below the header is 1, blank lines do not count) and the column.
    """
    encoding = reading.encoding
    try:
        with open_input(source) as stream:
            begins = stream.read(4)
        kind = next((said for mark, said in _NO_TEXT.items() if begins.startswith(mark)), None)
        if kind is not None:
            raise UserError(f"{source} is {kind}")
        if encoding is None:
            encoding = "utf-16" if begins[:2] in _UTF16 else "utf-8-sig"
        with io.TextIOWrapper(open_input(source), encoding=encoding, newline="") as stream:
            header = stream.readline()
            delimiter = next((mark for mark in _DELIMITERS if mark in header), ",")
            rows = csv.reader(itertools.chain([header], stream), delimiter=delimiter, strict=True)
            return _Parser(rows, str(source), reading, has_decimal_commas=delimiter != ",").series()
    except UnicodeError:
        if reading.encoding is not None:
            raise UserError(f"{source} is not {reading.encoding}: give its own --encoding") from None
        raise UserError(
            f"{source} is not UTF-8: say what it is (--encoding cp1252 for most others of western languages)"
        ) from None
    except csv.Error as error:
        is_open = "end of data" in str(error)
        hint = " (is a quotation mark left open?)" if is_open else ""
        raise UserError(f"{source} is no CSV file: {error}{hint}") from None
    except OSError as error:
        raise refused(f"--source {source} cannot be read", error) from None


class _Parser:
    """The rows of one file; see `Reading`.

    Args:
        has_decimal_commas: `1,5` is a number, as long as no other one is written as `1.5`.
    """

    def __init__(self, rows: Iterator[list[str]], source: str, reading: Reading, has_decimal_commas: bool):
        self._rows, self._source, self._reading = rows, source, reading
        self._has_decimal_commas = has_decimal_commas
        self._with_comma: str | None = None  # a number of this file that has one
        self._with_point: str | None = None
        self._numbers: dict[int, Written] = {}
        self._header = [name.strip() for name in next(rows, [])]
        self._kept = self._places_of_variables()
        self._dates = [self._header.index(name) for name in reading.date_columns]
        self._shown_date = " ".join(map(repr, reading.date_columns))
        self._missing = {text.strip().lower() for text in reading.missing_values}
        self._missing_numbers = {number for text in self._missing if (number := _finite(text)) is not None}

    def series(self) -> Series:
        values, dates, seconds = array("d"), [], array("d")
        before = None
        rows = enumerate(filter(None, self._rows), 1)  # without blank lines, e.g. the last one
        for number, row in rows:
            if len(row) != len(self._header):
                raise UserError(
                    f"{self._source}: row {number} has {len(row)} fields, the header has {len(self._header)}"
                )
            date = " ".join(row[place] for place in self._dates)
            where = f"{self._source}: row {number}, column {self._shown_date}"
            moment = moment_of([row[place] for place in self._dates], where)
            if before is not None and moment < before:
                is_clock = before - moment <= CLOCK_CHANGE
                remedy = "; or write dates with their offsets from UTC, if clocks were set back" if is_clock else ""
                raise UserError(
                    f"{where} goes back to {date!r}: sort the rows by it, or give each of several series its own "
                    f"columns{remedy}"
                )
            if before is not None:
                seconds.append((moment - before).total_seconds())
            before = moment
            dates.append(date)
            try:
                for column in self._kept:
                    values.append(self._number(row[column], number, column))
            except _NoNumber:
                raise self._text_columns(number, row, rows) from None
        told = in_thousands({self._header[column]: one for column, one in self._numbers.items()})
        if told is not None:
            raise UserError(
                f"{self._source}: {told}, and no column a comma that must be of decimals: write thousands without a "
                "comma, and decimals of all numbers or of none"
            )
        if len(dates) < FEWEST_ROWS:
            raise UserError(f"{self._source} has {len(dates)} rows, but a series takes at least {FEWEST_ROWS}")
        names = [self._header[column] for column in self._kept]
        read = np.asarray(values).reshape(len(dates), len(names))
        self._refuse_row_numbers(names, read)
        return Series(names, dates, interval_of(np.asarray(seconds)), read, np.asarray(seconds))

    def _places_of_variables(self) -> list[int]:
        header, source, dates = self._header, self._source, self._reading.date_columns
        absent = next((name for name in dates if name not in header), None)
        if absent is not None:
            shown = ", ".join(map(repr, header[:8])) or "nothing"
            named = [name for part in _PARTS for name in header if name.lower() == part]
            named = named if len(named) >= 2 else [name for name in header if name.lower() in _DATE_NAMES][:1]
            option = shlex.join(["--date-columns", *(named or ["NAME"])])
            advice = f": name the columns of the date, {option}" if header and absent == DATE else ""
            raise UserError(f"{source} has no column named {absent}; its first row holds {shown}{advice}")
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"{source} has two columns named {twice!r}: rename one")
        dropped = self._reading.drop_columns
        for name in dropped:
            if name not in header or name in dates:
                others = ", ".join(map(repr, (other for other in header if other not in dates)))
                raise UserError(f"--drop-columns names {name!r}, which is no variable of {source}; it has {others}")
        kept = [place for place, name in enumerate(header) if name not in (*dates, *dropped)]
        if not kept:
            dropped_too = " and what is dropped" if dropped else ""
            raise UserError(f"{source} has no variable beside {' '.join(dates)}{dropped_too}")
        return kept

    def _refuse_row_numbers(self, names: list[str], values: np.ndarray) -> None:
        """Raise UserError for the numbers of the rows, which pandas writes before them: no variable is so easy."""
        for column, name in enumerate(names):
            own = values[:, column]
            if _NAME_OF_INDEX.fullmatch(name) and (own == np.floor(own)).all() and len(np.unique(own)) == len(own):
                raise UserError(
                    f"{self._source}: column {name!r} holds the numbers of rows, as pandas writes them (to_csv "
                    f"without index=False): leave it out ({shlex.join(['--drop-columns', name])})"
                )

    def _number(self, text: str, row: int, column: int) -> float:
        """The value of a cell, NaN for one that is missing. Raises _NoNumber for text."""
        short = text.strip().lower()
        value = self._value(text)
        is_named = short in self._missing or value in self._missing_numbers
        if is_named or short in _MISSING:
            if self._reading.missing_allowed:
                return math.nan
            holds = f"{_shown(text)}, which --missing-value names" if is_named else "no value"
            raise UserError(
                f"{self._where(row, column)} holds {holds}: fill it (--missing {INTERPOLATE}), or leave the "
                f"column out (--drop-columns {self._header[column]!r})"
            )
        if value is None:
            raise _NoNumber
        if self._has_decimal_commas:
            self._numbers.setdefault(column, Written()).note(text.strip())
        if abs(value) > LARGEST:
            raise UserError(
                f"{self._where(row, column)} holds {_shown(text)}, which is beyond float32 (at most {LARGEST:.2g} in "
                f"size): correct it, or leave the column out (--drop-columns {self._header[column]!r})"
            )
        return value

    def _value(self, text: str) -> float | None:
        """The finite number that a text stands for; None for none. Raises UserError for points beside commas."""
        value = _finite(text)
        if not self._has_decimal_commas:
            return value
        if value is not None:
            self._with_point = self._with_point or (text if "." in text else None)
        elif text.count(",") == 1 and "." not in text and (value := _finite(text.replace(",", "."))) is not None:
            self._with_comma = self._with_comma or text
        refuse_both_marks(self._source, self._with_comma, self._with_point)
        return value

    def _text_columns(self, number: int, row: list[str], rows: Iterator[tuple[int, list[str]]]) -> UserError:
        """One line for all columns that hold text in this row or in some that follow."""
        found: dict[int, str] = {}
        for _, cells in itertools.chain([(number, row)], itertools.islice(rows, _PROBED_ROWS)):
            for column in self._kept:
                if column < len(cells) and column not in found:
                    is_missing = cells[column].strip().lower() in (*_MISSING, *self._missing)
                    if not is_missing and self._value(cells[column]) is None:
                        found[column] = cells[column]
        first = next(column for column in found if row[column] == found[column])
        others = [self._header[column] for column in found if column != first]
        also = f" (so do {', '.join(map(repr, others))})" if others else ""
        names = " ".join(shlex.quote(self._header[column]) for column in sorted(found))
        return UserError(
            f"{self._where(number, first)} holds {_shown(row[first])}, which is no number{also}: leave "
            f"{'these columns' if others else 'the column'} out (--drop-columns {names}), or, if it stands for a "
            f"missing value, name it (--missing-value {shlex.quote(row[first].strip()[:40])})"
        )

    def _where(self, row: int, column: int) -> str:
        return f"{self._source}: row {row}, column {self._header[column]!r}"


@dataclass
class Written:
    """The first number of a column whose comma may be of thousands, one that shows that commas are of decimals, and one
    of three digits without any: where thousands have commas, these have none.
    """

    thousands: str | None = None
    decimal: str | None = None
    whole: str | None = None

    def note(self, text: str) -> None:
        """Look at a number."""
        before, comma, behind = text.lstrip("+-").partition(",")
        if comma:
            may_be = len(behind) == 3 and behind.isdigit() and 1 <= len(before) <= 3 and not before.startswith("0")
            kind = "thousands" if may_be else "decimal"
        elif before.isdigit() and len(before) == 3:
            kind = "whole"
        elif before.isdigit() and len(before) > 3:
            kind = "decimal"  # thousands have no commas
        else:
            return
        if getattr(self, kind) is None:
            setattr(self, kind, text)


def refuse_both_marks(source: str, with_comma: str | None, with_point: str | None) -> None:
    """Raise UserError if there are both, a number with a comma and one with a point."""
    if with_comma and with_point:
        raise UserError(
            f"{source} holds {_shown(with_comma)} and {_shown(with_point)}: a number may have a comma or a point "
            "before its decimals, but all the same one; write thousands without either"
        )


def in_thousands(numbers: Mapping[str, Written]) -> str | None:
    """What says that the commas of a column, of those that are named, are of thousands; None if nothing does."""
    if any(written.decimal for written in numbers.values()):
        return None
    for column, written in numbers.items():
        if written.thousands and written.whole:
            return f"column {column!r} holds {_shown(written.thousands)} beside {_shown(written.whole)}"
    return None


class _NoNumber(Exception):
    """A cell holds text."""


def _finite(text: str) -> float | None:
    try:
        value = float(text) if "_" not in text else math.nan  # Python's 1_000 is no number elsewhere
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def interval_of(seconds: np.ndarray) -> timedelta:
    """What lies between most rows, by what lies between each of them and the next."""
    steps, counts = np.unique(seconds, return_counts=True)
    return timedelta(seconds=float(steps[counts.argmax()]))


def moment_of(parts: list[str], where: str) -> datetime:
    """The date of a row from the texts of its date columns. Raises UserError if they are none."""
    parts = [part.strip() for part in parts]
    numbers = [_finite(part) for part in parts]
    if len(parts) > 1 and None not in numbers:
        return _moment_of_numbers(parts, numbers, where)
    text = " ".join(parts)
    try:
        moment = date_of(text)
        # Offsets count: where clocks are set back, an hour comes twice.
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):  # the latter of an offset that leads out of the years that there are
        pass
    raise UserError(
        f"{where} holds {_shown(text)}, which is no date such as 2016-07-01 00:00:00, 2016/07/01 or 01.07.2016: write "
        "dates so"
    )


def date_of(text: str) -> datetime:
    """The date that a text says, with its offset from UTC if it has one. Raises ValueError if it says none."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        form = form_of(text)
        if form is None:
            raise
        return datetime.strptime(text, form)


def form_of(text: str) -> str | None:
    """The one of _DATE_FORMATS in which a date is written; None: another one."""
    for form in _DATE_FORMATS:
        with contextlib.suppress(ValueError):
            datetime.strptime(text, form)
            return form
    return None


def _moment_of_numbers(parts: list[str], numbers: list[float], where: str) -> datetime:
    try:
        if any(number != int(number) for number in numbers) or len(numbers) > len(_PARTS):
            raise ValueError
        year, month, day, *rest = [*map(int, numbers), *(1,) * (3 - len(numbers))]
        hour, minute, second = (*rest, *(0,) * (3 - len(rest)))
        if not (0 <= hour <= 24 and 0 <= minute < 60 and 0 <= second < 60):  # 24 is the next day's midnight
            raise ValueError
        return datetime(year, month, day) + timedelta(hours=hour, minutes=minute, seconds=second)
    except (ValueError, OverflowError):
        raise UserError(
            f"{where} holds {_shown(' '.join(parts))}, which are no {', '.join(_PARTS[: len(parts)])}"
        ) from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")

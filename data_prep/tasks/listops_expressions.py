"""ListOps expressions: their symbols, their value, and the Long Range Arena's files of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.split_names import TEST, TRAIN, VALIDATION
from longmix.kernels.common.safe_files import open_input

DIGITS = 10
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
END = "]"
SYMBOLS = (*(str(digit) for digit in range(DIGITS)), *OPERATORS, END)

# The published files' names.
FILES = {TRAIN: "basic_train.tsv", VALIDATION: "basic_val.tsv", TEST: "basic_test.tsv"}
COLUMNS = ("Source", "Target")
LONGEST_LINE = 1 << 20  # bytes; those of the published files are of some 10,000
_PARENTHESES = "()"
_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS)}


def evaluate(expression: Sequence[int]) -> int:
    """The value, 0 to 9, of an expression given as indices of SYMBOLS.

    [SM is the sum modulo 10, [MED the median, of an even number of arguments the mean of the two in the middle,
    rounded down.

    Raises:
        ValueError: it is no expression; with the reason, where tokens are counted from 1.
    """
    lists: list[tuple[int, list[int]]] = []  # those that are open: operator, values of its arguments
    for place, symbol in enumerate(expression, start=1):
        if DIGITS <= symbol < DIGITS + len(OPERATORS):
            lists.append((symbol - DIGITS, []))
            continue
        if symbol < DIGITS:
            value = symbol
        elif lists and lists[-1][1]:
            value = _apply(*lists.pop())
        else:
            raise ValueError(f"the bracket at token {place} closes {'an empty list' if lists else 'nothing'}")
        if lists:
            lists[-1][1].append(value)
        elif place == len(expression):
            return value
        else:
            raise ValueError(f"it is complete at token {place}, but more follows")
    raise ValueError(f"{len(lists)} lists are not closed" if lists else "it is empty")


def _apply(operator: int, values: list[int]) -> int:
    match OPERATORS[operator]:
        case "[MIN":
            return min(values)
        case "[MAX":
            return max(values)
        case "[MED":
            values = sorted(values)
            return (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2
        case _:
            return sum(values) % DIGITS


def read_tsv(path: str | Path) -> Iterator[tuple[list[int], int]]:
    """(expression, its value) of each row of a file with the columns Source and Target.

    Every expression is evaluated: what the file says must come out.

    Raises:
        UserError: the file cannot be read, lacks a column, has no rows, or one that is wrong: with file and line.
    """
    columns: dict[str, int] = {}
    is_empty = True
    for number, line in _lines(path):
        fields = line.split("\t")
        if number == 1:
            missing = [name for name in COLUMNS if name not in fields]
            if missing:
                raise UserError(
                    f"{path} has no column {missing[0]}: its first line must name the columns {' and '.join(COLUMNS)}, "
                    "separated by a tab"
                )
            columns = {name: fields.index(name) for name in COLUMNS}
            width = len(fields)
            continue
        place = f"{path}, line {number}"
        if len(fields) != width:
            raise UserError(f"{place} has {len(fields)} columns, the first line {width}: mend the file")
        is_empty = False
        yield _read_row(fields[columns["Source"]], fields[columns["Target"]], place)
    if is_empty:
        raise UserError(f"{path} holds no expressions: take a whole file")


def _read_row(source: str, target: str, place: str) -> tuple[list[int], int]:
    try:
        expression = [_NUMBERS[symbol] for symbol in source.split() if symbol not in _PARENTHESES]
    except KeyError as error:
        symbol = error.args[0]
        shown = symbol if len(symbol) <= 20 else symbol[:20] + "..."
        raise UserError(
            f"{place}, column Source: {shown!r} is no symbol of ListOps, which are {' '.join(SYMBOLS)} and parentheses"
        ) from None
    try:
        value = evaluate(expression)
    except ValueError as error:
        raise UserError(f"{place}, column Source is no expression: {error}") from None
    if target != str(value):
        shown = target if len(target) <= 20 else target[:20] + "..."
        raise UserError(f"{place}, column Target is {shown!r}, but the expression's value is {value}: mend the file")
    return expression, value


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end)."""
    try:
        with open_input(path) as stream:
            number = 0
            while raw := stream.readline(LONGEST_LINE + 1):
                number += 1
                if len(raw) > LONGEST_LINE:
                    raise UserError(f"{path}, line {number} has more than {LONGEST_LINE} bytes: no ListOps file has")
                try:
                    yield number, raw.decode("ascii").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}, line {number}: byte {raw[error.start]:#04x} is not ASCII, as ListOps files are"
                    ) from None
    except OSError as error:
        raise refused(f"{path} cannot be read", error) from None

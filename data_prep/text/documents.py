"""Cutting the units of a source (lines or records) into documents."""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from longmix.data_prep.errors import UserError

AUTOMATIC = "automatic"
BLANK_LINE, FILE, RECORD, HEADING = "blank-line", "file", "record", "heading:"
FORMS = "blank-line, file, record or heading:REGEX"

# WikiText's top-level title " = Title = ", not its sections " = = Section = = ".
_TITLE = re.compile(r" = [^=\s](?:.*[^=\s])? = ?")
_PROBE_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class Rule:
    """How documents are told apart. `kind` is one of the constants above; `pattern` serves headings.

    With `is_title` a heading counts only between blank lines.
    """

    kind: str
    pattern: re.Pattern[str] | None = None
    is_title: bool = False

    @property
    def name(self) -> str:
        if self.is_title:
            return "heading ' = Title = ' between blank lines"
        return self.kind if self.pattern is None else HEADING + self.pattern.pattern


TITLE_RULE = Rule(HEADING, _TITLE, is_title=True)


def parse_rule(text: str | None) -> Rule:
    """The rule that `--documents` names; None is the automatic one. Raises `UserError` for anything else."""
    if text is None:
        return Rule(AUTOMATIC)
    if text in (BLANK_LINE, FILE, RECORD):
        return Rule(text)
    if not text.startswith(HEADING) or text == HEADING:
        raise UserError(f"--documents {text}: allowed are {FORMS}")
    try:
        return Rule(HEADING, re.compile(text.removeprefix(HEADING)))
    except re.error as error:
        raise UserError(f"--documents {text}: not a regular expression ({error})") from None


def split_documents(units: Iterable[str], rule: Rule, is_records: bool) -> tuple[Rule, Iterator[str]]:
    """The rule in force (the automatic one is decided on the first megabyte), and the documents.

    `is_records`: the units are records, which are documents by default; else lines, cut at blank lines by default.
    The other rules see records as the lines of a text.
    """
    units = iter(units)
    if rule.kind == AUTOMATIC:
        probe = _take(units, _PROBE_CHARACTERS)
        units = itertools.chain(probe, units)
        rule = TITLE_RULE if _has_titles(probe) else Rule(RECORD if is_records else BLANK_LINE)
    return rule, _split(units, rule)


def _split(units: Iterator[str], rule: Rule) -> Iterator[str]:
    if rule.kind == RECORD:
        yield from units
    elif rule.kind == FILE:
        yield "\n".join(units)
    elif rule.kind == BLANK_LINE:
        lines: list[str] = []
        for line in _lines(units):
            if line.strip():
                lines.append(line)
            elif lines:
                yield "\n".join(lines)
                lines = []
        if lines:
            yield "\n".join(lines)
    else:
        yield from _split_at_headings(_lines(units, rule.is_title), rule)


def _split_at_headings(lines: Iterator[str], rule: Rule) -> Iterator[str]:
    document: list[str] = []
    has_text = False
    for line, is_heading in _headings(lines, rule):
        if is_heading:
            if has_text:
                yield "\n".join(document).strip("\n")
            document, has_text = [], False
        document.append(line)
        has_text = has_text or bool(line.strip())
    if has_text:
        yield "\n".join(document).strip("\n")


def _headings(lines: Iterable[str], rule: Rule) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is a heading."""
    if not rule.is_title:
        for line in lines:
            yield line, rule.pattern.search(line) is not None
        return
    before: str = ""
    line: str | None = None
    for after in itertools.chain(lines, [""]):
        if line is not None:
            yield line, rule.pattern.fullmatch(line) is not None and not before.strip() and not after.strip()
            before = line
        line = after


def _has_titles(probe: list[str]) -> bool:
    """True for a text that starts with a title between blank lines, or holds two of them.

    Articles with their titles count as the first record only: among others they are documents like those.
    """
    set_apart, plain = (
        [is_heading for line, is_heading in _headings(_lines(probe, sets_apart), TITLE_RULE) if line.strip()]
        for sets_apart in (True, False)
    )
    return bool(plain) and (set_apart[0] or sum(plain) > 1)


def _lines(units: Iterable[str], sets_apart: bool = False) -> Iterator[str]:
    """The lines of all units; with `sets_apart` a blank one before an article: a title and a blank line begin it."""
    for unit in units:
        if "\n" in unit:
            lines = unit.rstrip("\n").split("\n")
            if sets_apart and len(lines) > 1 and _TITLE.fullmatch(lines[0]) and not lines[1].strip():
                yield ""
            yield from lines
        else:
            yield unit


def _take(units: Iterator[str], characters: int) -> list[str]:
    taken: list[str] = []
    for unit in units:
        taken.append(unit)
        characters -= len(unit) + 1
        if characters <= 0:
            break
    return taken

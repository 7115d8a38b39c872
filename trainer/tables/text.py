"""Text from outside (names of folders, labels, tasks and columns; reasons that quote files) as Markdown, CSV and HTML.

Whoever reads these would obey some of it: a terminal its escape sequences, a browser its tags, a spreadsheet its
formulas. Here, and nowhere else, such text is made to mean its characters alone.
"""

import html
import json
import re
import unicodedata

from longmix.data_prep.errors import printable

# An underscore within a word means nothing else.
_MARKDOWN = re.compile(r"[\\`*\[\]|~$@#]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=\bwww)\.")
# Text that a code span, too, would not show as it is, or that a browser would obey before it is one.
_NO_CODE = re.compile(r"[\\`|<>&]")
# What begins a formula in one spreadsheet or another, in full width too; the prefix itself, so that it can be told.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)")
_PREFIX = "'"
# Categories of what ends a line or begins a terminal's escape sequence.
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")
_PLAIN_YAML = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_YAML_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


class Markdown(str):
    """Text that is Markdown already, and that a table takes as it is."""


def escaped(text: str) -> Markdown:
    """A text from outside as Markdown that shows its characters and means nothing else; it must not begin a line."""
    return Markdown(html.escape(_MARKDOWN.sub(r"\\\g<0>", printable(text)), quote=False))


def code(text: str) -> Markdown:
    """A text from outside as a code span of Markdown; `escaped` where a code span would not show it as it is."""
    is_plain = text.strip() and text.isprintable() and _NO_CODE.search(text) is None
    return Markdown(f"`{text}`") if is_plain else escaped(text)


def csv_cell(text: str) -> str:
    """A text from outside as a cell of CSV: one that a spreadsheet would take for a formula begins with a quote.

    What is a number stays one. `csv_text` takes the quote off.
    """
    return csv_content(printable(text))


def csv_content(text: str) -> str:
    """The same for the texts of a data set, of which the characters of all scripts stay, those that order and join
    others among them: control characters alone, such as line ends, are escapes.
    """
    text = "".join(printable(c) if unicodedata.category(c) in _CONTROLS else c for c in text)
    shown = "".join(filter(str.isprintable, text)).lstrip()
    is_formula = shown.startswith(_FORMULA) and _NUMBER.fullmatch(text) is None
    return _PREFIX + text if is_formula else text


def csv_text(cell: str) -> str:
    """The text of a cell that `csv_cell` has made."""
    return cell.removeprefix(_PREFIX)


def html_text(text: str) -> str:
    """A text from outside for HTML: between tags, or as an attribute in quotes."""
    return html.escape(printable(text))


def yaml_word(text: str) -> str:
    """A text from outside as one scalar of YAML, also within brackets; in quotes unless it is a plain word."""
    is_plain = _PLAIN_YAML.fullmatch(text) is not None and text not in _YAML_WORDS
    return text if is_plain else quoted(text)


def quoted(text: str) -> str:
    """A text from outside as a string in double quotes, as Python and YAML read it."""
    return printable(json.dumps(text, ensure_ascii=False))

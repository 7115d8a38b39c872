"""Text and a task that need no network: the documentation that every Python carries.

The corpus is `pydoc_data.topics` (the language reference's topics) and the docstrings of the standard library, one
document per topic and per module. The task asks whether a sentence of documents held out of the corpus stands as
written or had words exchanged. It is not GLUE's, but there in CoLA's file format, too, for what reads a GLUE folder.
"""

import ast
import dataclasses
import hashlib
import inspect
import platform
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import make_folder, write_json, write_text
from longmix.data_prep.made_folders import TEXT, new_folder, put_in_place, refuse_foreign
from longmix.data_prep.state_files import read_json, read_state

TASK_NAME = "exchanged words in Python's documentation"
TASK_QUESTION = "does a sentence stand as written, or were words of it exchanged?"
# The columns of the task's own files, and the names of its classes.
SENTENCE, LABEL = "sentence", "label"
CLASSES = ("exchanged", "as written")
_ABOUT = "about.json"
_FORMAT = 3
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "turtledemo"}
_SHORTEST_DOCUMENT = 200  # characters
_SENTENCES = {"dev": 900, "test": 300, "train": 4000}  # the least of each, in the order in which they take documents
_LARGEST_HELD_OUT = 3  # at most one third of all sentences goes to the task

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"(])")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_SENTENCE_WORDS = range(6, 31)
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an and are as at be been but by can could does for from had has have if in into is it its may must no not
        of on or should so such than that the their then there these they this those to was were when where which while
        will with would you your""",
    )
)


@dataclass(frozen=True)
class Embedded:
    """The places and sizes of the files.

    `text` is for `longmix prepare text`, `task` for `longmix finetune --task custom`; `glue` has the same as CoLA.

    `sentences` counts the task's examples by split.
    """

    text: Path
    task: Path
    glue: Path
    documents: int
    bytes: int
    sentences: dict[str, int]


@dataclass
class _About:
    """The contents of about.json."""

    format: int
    python: str
    text: str
    task: str
    documents: int
    bytes: int
    sentences: dict[str, int]
    held_out: dict[str, list[str]]


def write_embedded(folder: str | Path) -> Embedded:
    """Write the corpus and the task to `folder`; what an earlier call has finished is used as it is.

    The files are a function of the Python that runs (its library's sources). Raises `UserError` if this Python comes
    without its documentation, or if `folder` holds something else.
    """
    folder = Path(folder)
    if (folder / _ABOUT).is_file():
        remedy = f"choose another folder, or move {folder} away"
        about = read_state(folder / _ABOUT, dict[str, Any], remedy)
        if about.get("format") == _FORMAT:
            return _embedded(folder, dataclasses.asdict(read_state(folder / _ABOUT, _About, remedy)))
    refuse_foreign(folder, TEXT, _earlier)
    make_folder(folder.parent)
    with new_folder(folder) as temporary:
        about = _write(temporary)
        put_in_place(temporary, folder, TEXT, _earlier)
    return _embedded(folder, about)


def _earlier(folder: Path, names: list[str]) -> str | None:
    """The first file that is not of an embedded text of an earlier version (`made_folders.Earlier`)."""
    wanted = {_ABOUT, "text/python_documentation.txt", "glue/CoLA/note.txt"}
    wanted |= {f"{place}/{split}.tsv" for split in _SENTENCES for place in ("glue/CoLA", "task")}
    try:
        size = read_json(folder / _ABOUT)["bytes"]
        is_ours = (folder / "text" / "python_documentation.txt").stat().st_size == size
    except (OSError, ValueError, KeyError, TypeError):
        is_ours = False
    return next((name for name in names if name not in wanted or not is_ours), None)


def _write(folder: Path) -> dict[str, Any]:
    """Write all files to a new folder; what about.json says of them."""
    documents = dict(sorted(_documents()))
    held_out = _hold_out(documents)
    kept = [name for name in documents if not any(name in names for names in held_out.values())]
    seen = {sentence for name in kept for sentence in _sentences(documents[name])}
    text = "".join(f"\n = {name} = \n\n{documents[name]}\n" for name in kept)
    (folder / "text").mkdir(parents=True)
    (folder / "glue" / "CoLA").mkdir(parents=True)
    (folder / "task").mkdir()
    write_text(folder / "text" / "python_documentation.txt", text)
    counts = {}
    for split, names in held_out.items():
        examples = []
        for name in names:
            for sentence in _sentences(documents[name]):
                if sentence not in seen:
                    seen.add(sentence)
                    examples.append((name, *_example(sentence)))
        counts[split] = len(examples)
        write_text(folder / "glue" / "CoLA" / f"{split}.tsv", _cola_file(split, examples))
        lines = [(SENTENCE, LABEL), *((sentence, CLASSES[label]) for _, label, sentence in examples)]
        write_text(folder / "task" / f"{split}.tsv", "".join("\t".join(line) + "\n" for line in lines))
    task = (
        f"{TASK_NAME}: sentences of documents that are not in the text, as written (1) or with words "
        "exchanged (0). Not CoLA: only its file format"
    )
    # longmix finetune tells it below its results.
    write_text(folder / "glue" / "CoLA" / "note.txt", f"{task}\n")
    about = {
        "format": _FORMAT,
        "python": platform.python_version(),
        "text": "the topics of the language reference and the docstrings of the standard library",
        "task": task,
        "documents": len(kept),
        "bytes": len(text.encode()),
        "sentences": counts,
        "held_out": held_out,
    }
    write_json(folder / _ABOUT, about)
    return about


def _embedded(folder: Path, about: dict) -> Embedded:
    figures = {
        item.name: about[item.name]
        for item in dataclasses.fields(Embedded)
        if item.name not in ("text", "task", "glue")
    }
    places = {"text": folder / "text" / "python_documentation.txt", "task": folder / "task", "glue": folder / "glue"}
    return Embedded(**places, **figures)


# -----------------------------------------------------------------------------
# The corpus: sources are parsed, never imported.


def _documents() -> Iterator[tuple[str, str]]:
    """(name, text) of every topic and module. Source files are parsed, nothing is imported or run."""
    library = Path(sysconfig.get_path("stdlib"))
    topics = library / "pydoc_data" / "topics.py"
    if not topics.is_file():
        raise UserError(f"this Python has no {topics}: install its full standard library, or give a text with --text")
    for node in ast.parse(topics.read_bytes()).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            for name, text in ast.literal_eval(node.value).items():
                yield f"topic {name}", text.strip("\n")
    known: set[str] = set()
    for path in sorted(library.rglob("*.py")):
        place = path.relative_to(library)
        if path == topics or _LEFT_OUT & set(place.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # templates and the like
            continue
        texts = []
        for text in _docstrings(tree):
            if text not in known:
                known.add(text)
                texts.append(text)
        whole = "\n\n".join(texts)
        if len(whole) >= _SHORTEST_DOCUMENT:
            yield f"module {'.'.join(place.with_suffix('').parts)}", whole


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """The docstrings of a module, its classes and functions, in the order of the source."""
    if isinstance(tree, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        text = ast.get_docstring(tree, clean=False)
        # A lone surrogate in a docstring cannot be written as UTF-8.
        if text and (cleaned := inspect.cleandoc(text).encode(errors="ignore").decode()):
            yield cleaned
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt):
            yield from _docstrings(child)


# -----------------------------------------------------------------------------
# The task: its sentences stand in documents that the corpus does not have.


def _hold_out(documents: dict[str, str]) -> dict[str, list[str]]:
    """The documents of each split of the task: drawn by the hash of their names until it has sentences enough."""
    available = sum(len(_sentences(text)) for text in documents.values())
    wanted = sum(_SENTENCES.values())
    share = min(1.0, available / _LARGEST_HELD_OUT / wanted)
    order = iter(sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest()))
    held_out: dict[str, list[str]] = {}
    for split, count in _SENTENCES.items():
        held_out[split] = []
        found = 0
        while found < count * share:
            name = next(order)
            held_out[split].append(name)
            found += len(_sentences(documents[name]))
    return held_out


def _sentences(text: str) -> list[str]:
    """The plain English sentences of a document: no code, no signatures, 6 to 30 words."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
            words = sentence.split()
            plain = sum(_WORD.fullmatch(word.strip("\"'`(),.;:!?")) is not None for word in words)
            if (
                len(words) in _SENTENCE_WORDS
                and sentence[0].isupper()
                and sentence[-1] == "."
                and plain == len(words)
                and len(_exchangeable(words, True)) > 1
                and len(_exchangeable(words, False)) > 1
            ):
                found.append(sentence)
    return found


def _exchangeable(words: list[str], is_function: bool) -> list[int]:
    """Positions, the first and the last left out, of plain lower-case words of one kind."""
    return [
        position
        for position, word in enumerate(words[1:-1], start=1)
        if word.isalpha() and word.islower() and (word in _FUNCTION_WORDS) == is_function
    ]


def _example(sentence: str) -> tuple[int, str]:
    """(1, the sentence) or (0, the sentence with function words and other words exchanged), by its hash."""
    generator = random.Random(hashlib.sha256(sentence.encode()).digest())
    if generator.random() < 0.5:
        return 1, sentence
    words = sentence.split()
    pairs = 2 if len(words) >= 12 else 1
    exchanged = zip(
        generator.sample(_exchangeable(words, True), pairs),
        generator.sample(_exchangeable(words, False), pairs),
        strict=True,
    )
    for first, second in exchanged:
        words[first], words[second] = words[second], words[first]
    return 0, " ".join(words)


def _cola_file(split: str, examples: list[tuple[str, int, str]]) -> str:
    """CoLA's columns: source, label, the author's mark, sentence; the test file has a header and no labels."""
    if split == "test":
        return "index\tsentence\n" + "".join(f"{index}\t{row[2]}\n" for index, row in enumerate(examples))
    return "".join(f"{name}\t{label}\t{'' if label else '*'}\t{sentence}\n" for name, label, sentence in examples)

"""What a table is made from beside its budget: models, text and tasks."""

from collections.abc import Iterable
from pathlib import Path

from begun import Parts, digest, named
from glue_table.data import GLUE, TASKS
from glue_table.rows import ROWS, model_words


def described(size: str, corpus: list[Path], glue: Path | None, imdb: Path | None) -> dict[str, Parts]:
    """For `begun.refuse_others`: models by what their files say, all else as `begun.named`. Tasks that are not given
    are not there.
    """
    found = {
        "model of": {row: _model(row, size) for row in ROWS},
        "corpus": {f"file {number}": named(path) for number, path in enumerate(corpus, 1)},
    }
    if glue is not None:
        folders = [glue / GLUE[name].folder for name in TASKS if name in GLUE]
        found["glue"] = _files(path for folder in folders for path in sorted(folder.glob("*.tsv")))
    if imdb is not None:
        found["imdb"] = _files(imdb / file for file in ("train.tsv", "test.tsv"))
    return found


def _model(row: str, size: str) -> str:
    words = model_words(row, size)
    files = [Path(word) for word in words if "=" not in word]
    return " ".join([*([digest(*files)[:12]] if files else []), *(word for word in words if "=" in word)])


def _files(paths: Iterable[Path]) -> Parts:
    return {f"{path.parent.name}/{path.name}": named(path) for path in paths}

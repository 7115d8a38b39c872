"""What a table is made from beside its budget: models, text and tasks."""

from pathlib import Path

from begun import Inputs, content, digest
from glue_table.data import GLUE, TASKS
from glue_table.rows import model_words

from longmix.data_prep.errors import UserError


def described(rows: list[str], size: str, corpus: list[Path], glue: Path | None, imdb: Path | None) -> Inputs:
    """For `begun.refuse_others`: models by what their files say, text and tasks by their content.

    Raises:
        UserError: a corpus that is neither a file nor a prepared folder.
    """
    for path in corpus:
        if path.is_dir() and not (path / "train" / "manifest.json").is_file():
            raise UserError(f"--corpus {path} is a folder, but no prepared one: give files, or one that has train/")
    files = {"imdb": [] if imdb is None else [imdb / "train.tsv", imdb / "test.tsv"]}
    for name in TASKS.keys() & GLUE.keys() if glue is not None else ():
        files[name] = [glue / GLUE[name].folder / file for file in ("train.tsv", "dev.tsv")]
    there = {name: [path for path in paths if path.is_file()] for name, paths in files.items()}
    return {
        **{f"model of {row}": _model(row, size) for row in rows},
        "corpus": content(*corpus),
        **{name: content(*paths) for name, paths in sorted(there.items()) if paths},
    }


def _model(row: str, size: str) -> str:
    words = model_words(row, size)
    files = [Path(word) for word in words if "=" not in word]
    return " ".join([*([digest(*files)] if files else []), *(word for word in words if "=" in word)])

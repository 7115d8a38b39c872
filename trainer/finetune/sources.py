"""Sources of a task's splits: a folder in GLUE's TSV layout, a folder in the hub's Parquet layout, or the hub
itself.
"""

from dataclasses import dataclass, field
from pathlib import Path

from longmix.data_prep.errors import UserError, reason_of
from longmix.data_prep.files import require_input
from longmix.data_prep.parquet_columns import check_columns, parquet_file
from longmix.data_prep.split_names import refuse_missing_parts

from .readers import ADVICE, Examples, hub_columns, read_lines, read_table, read_tsv
from .records import HUB
from .tasks import Task

NOTE = "note.txt"


class MissingTask(Exception):
    """The data of one task are not there; its text is the reason that the results table shows."""


@dataclass
class TaskData:
    """Everything there is of one task. `dev` and `test` map split names to examples; `test_labels` are those of a
    user's own test split beside a dev split, for a figure of the finished models alone.
    """

    task: Task
    train: Examples
    dev: dict[str, Examples]
    test: dict[str, Examples]
    source: str
    notes: list[str] = field(default_factory=list)
    test_labels: list[int] | list[float] | None = None


# -----------------------------------------------------------------------------
# Finding a task: which of the layouts `data` has is seen from its files, so that nobody has to say it.


def load_task(data: str, task: Task) -> TaskData:
    """Read one GLUE task from `data`: a folder, or `hub:NAME`.

    Raises MissingTask when the task's training or dev file is not there, UserError when `data` itself is not or a file
    is damaged.
    """
    if data.startswith(HUB):
        return _load_hub(data.removeprefix(HUB), task)
    require_folder(data)
    root = Path(data)
    tried = _candidates(root, task)
    for folder in tried:
        if any(folder.glob("*.parquet")):
            return _with_note(_load_parquet(folder, task), folder)
        if any((folder / name).is_file() for name in ("train.tsv", task.dev[0].file, task.test[0].file)):
            return _with_note(_load_tsv(folder, task), folder)
    raise MissingTask(f"no folder {task.folder} (TSV files) or {task.name} (Parquet files) in {data}")


def require_folder(data: str, option: str = "--data") -> None:
    """Raise UserError unless `data`, which an option names, is a folder or a data set of the hub."""
    if data.startswith(HUB) or Path(data).is_dir():
        return
    if Path(data).exists():
        raise UserError(f"{option} {data} is a file: name the folder that holds the files of the splits")
    raise UserError(f"{option} {data}: no such folder; for a data set on the hub write hub:NAME, e.g. hub:nyu-mll/glue")


def _with_note(data: TaskData, folder: Path) -> TaskData:
    """Add the text of `note.txt` beside the files to the notes below the results: that they are not GLUE's own, say."""
    path = folder / NOTE
    if path.is_file() and path.stat().st_size:
        data.notes.append(" ".join(" ".join(read_lines(path)).split()))
    return data


def _candidates(root: Path, task: Task) -> list[Path]:
    """Folders of the task below `root` or `root/glue`, named as GLUE or the hub does, in any case."""
    wanted = {task.name, task.folder.lower()}
    return [
        folder
        for parent in (root, root / "glue", root / "GLUE")
        if parent.is_dir()
        for folder in sorted(parent.iterdir())
        if folder.is_dir() and folder.name.lower() in wanted
    ]


# -----------------------------------------------------------------------------
# Reading the splits. Each layout says only how one split is read; which are needed and what is noted stands once.


def _assemble(task: Task, read, where: str, names: dict[str, str]) -> TaskData:
    """Put the splits together; `read(split name, test)` gives Examples or None for a missing one."""
    train = read("train", False)
    if train is None:
        raise MissingTask(f"{names['train']} is missing in {where}")
    dev = {split.name: examples for split in task.dev if (examples := read(split.name, False)) is not None}
    absent = [names[split.name] for split in task.dev if split.name not in dev]
    if not dev:
        raise MissingTask(f"{' and '.join(absent)} missing in {where}")
    test = {split.name: examples for split in task.test if (examples := read(split.name, True)) is not None}
    absent += [names[split.name] for split in task.test if split.name not in test and split.beside is None]
    notes = [f"{', '.join(absent)} missing in {where}"] if absent else []
    skipped = {name: part.skipped for name, part in {"train": train, **dev}.items() if part.skipped}
    notes += [f"{count} defective rows left out of {name}" for name, count in skipped.items()]
    return TaskData(task, train, dev, test, where, notes)


def _load_tsv(folder: Path, task: Task) -> TaskData:
    files = {"train": "train.tsv"} | {split.name: split.file for split in (*task.dev, *task.test)}
    places = _places(folder, task)

    def read(name: str, test: bool) -> Examples | None:
        path = places[name] / files[name]
        return read_tsv(path, task, test=test) if path.is_file() else None

    return _assemble(task, read, str(folder), files)


def _places(folder: Path, task: Task) -> dict[str, Path]:
    """The folder of each split: that of the task, or one beside it."""
    places = dict.fromkeys(("train", *(split.name for split in (*task.dev, *task.test))), folder)
    for split in task.splits_beside:
        named = (path for path in sorted(folder.parent.iterdir()) if path.name.lower() in split.beside)
        places[split.name] = next(named, folder.parent / split.beside[0])
    return places


def _hub_names(task: Task) -> dict[str, str]:
    return {"train": "train"} | {split.name: split.hub for split in (*task.dev, *task.test)}


def _load_parquet(folder: Path, task: Task) -> TaskData:
    import pyarrow

    names, places = _hub_names(task), _places(folder, task)

    def read(name: str, test: bool) -> Examples | None:
        prefix, place = names[name], places[name]
        # "test-*" must not take "test_matched-*"; a hub file is SPLIT-00000-of-00001.parquet, a hand-made one
        # SPLIT.parquet.
        paths = sorted([*place.glob(f"{prefix}-*.parquet"), *place.glob(f"{prefix}.parquet")])
        if not paths:
            return None
        refuse_missing_parts(paths)
        if len(paths) > 1 and (place / f"{prefix}.parquet") in paths:
            raise UserError(f"{place} has {prefix}.parquet and {prefix}-*.parquet for one split: leave one there")
        wanted = hub_columns(task, test=test)
        tables = [_read_parquet(path, wanted) for path in paths]
        try:
            table = pyarrow.concat_tables(tables, promote_options="permissive")
        except pyarrow.ArrowException as error:
            raise UserError(f"{place}/{prefix}-*.parquet: the files do not fit together: {reason_of(error)}") from None
        return read_table(table, task, f"{place}/{prefix}", test=test)

    return _assemble(task, read, str(folder), {name: f"{split}-*.parquet" for name, split in names.items()})


def _read_parquet(path: Path, wanted: dict[str, str]):
    """The columns `wanted` of a file, and `idx` if it is there, as a pyarrow Table; see `check_columns`."""
    import pyarrow

    require_input(path)
    try:
        with parquet_file(path) as file:
            check_columns(file.schema_arrow, wanted, str(path), ADVICE)
            names = [name for name in file.schema_arrow.names if name in wanted or name == "idx"]
            return file.read(columns=names)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {reason_of(error)}") from None


def _load_hub(repository: str, task: Task) -> TaskData:
    import datasets

    where, names = f"hub:{repository}", _hub_names(task)
    configurations = dict.fromkeys(names, task.name) | {split.name: split.beside[1] for split in task.splits_beside}
    try:
        available = datasets.get_dataset_config_names(repository)
        if task.name not in available:
            raise MissingTask(f"{where} has no configuration {task.name}; it has: {', '.join(available)}")
        wanted = [name for name in configurations.values() if name in available]
        loaded = {name: datasets.load_dataset(repository, name) for name in dict.fromkeys(wanted)}
    except MissingTask:
        raise
    except Exception as error:  # not found, no network, a layout or values that datasets does not take
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"--data {where}: cannot be loaded ({reason}); check the name and the network") from error

    def read(name: str, test: bool) -> Examples | None:
        configuration = configurations[name]
        if names[name] not in loaded.get(configuration, ()):
            return None
        table = loaded[configuration][names[name]].with_format("arrow")[:]
        return read_table(table, task, f"{where}, {configuration}/{names[name]}", test=test)

    return _assemble(task, read, f"{where}/{task.name}", {name: f"split {split}" for name, split in names.items()})

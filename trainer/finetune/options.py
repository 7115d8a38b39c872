"""The options of `longmix finetune`, and the places of its data: checked before anything that takes long to import."""

import argparse
import math
from collections.abc import Iterator

from longmix.data_prep.errors import UserError

from ..many_runs.read import MOST_SEEDS
from .custom import open_task
from .records import HUB
from .sources import require_folder
from .tasks import CUSTOM, FROM_MNLI_TASKS, MNLI, TASKS, starts_after


def task_names(arguments: argparse.Namespace) -> list[str]:
    """The tasks that are asked for. Raises UserError."""
    wanted = list(dict.fromkeys(arguments.task))
    if CUSTOM in wanted and len(wanted) > 1:
        raise UserError("--task custom reads another kind of folder than GLUE's tasks; run it by itself")
    return list(TASKS) if "all" in wanted else wanted


def check(arguments: argparse.Namespace) -> None:
    """Raise UserError for what is wrong with the options: values out of range and options that would do nothing, all
    at once; or data that are not there, and files of a user's own without the columns that are needed.
    """
    names = task_names(arguments)
    problems = list(_problems(arguments, names))
    if problems:
        raise UserError("; ".join(problems))
    # The intermediate task's first, as it is the first that is trained.
    if arguments.intermediate_data is not None:
        _check_data("--intermediate-data", arguments, arguments.intermediate)
    _check_data("--data", arguments, names[0])


def _check_data(option: str, arguments: argparse.Namespace, task: str) -> None:
    data = getattr(arguments, option.removeprefix("--").replace("-", "_"))
    require_folder(data, option)
    if task == CUSTOM and not data.startswith(HUB):
        open_task(data, arguments.text_columns, arguments.label_column, arguments.columns)


def _problems(arguments: argparse.Namespace, names: list[str]) -> Iterator[str]:
    """What is wrong with the values of options."""
    for option in ("seeds", "search_seeds", "epochs", "batch_size", "micro_batch", "jobs"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            yield f"--{option.replace('_', '-')} is {value}, but must be at least 1"
    micro_batch = arguments.micro_batch
    if micro_batch is not None and micro_batch >= 1 and arguments.batch_size % micro_batch:
        yield f"--micro-batch is {micro_batch}, but must divide --batch-size {arguments.batch_size}"
    if arguments.seeds > MOST_SEEDS:
        yield f"--seeds is {arguments.seeds}, but must be at most {MOST_SEEDS:,}: each is a run"
    for rate in arguments.lr or ():
        if not 0 < rate <= 1:
            yield f"--lr is {rate:g}, but must lie in (0, 1]"
    if arguments.search_seeds is not None and len(set(arguments.lr or ())) < 2:
        yield "--search-seeds is for several learning rates (--lr)"
    elif arguments.search_seeds is not None and 1 <= arguments.seeds < arguments.search_seeds:
        yield f"--search-seeds is {arguments.search_seeds}, but must be at most --seeds {arguments.seeds}"
    for option, allowed, fits in (
        ("dropout", "lie in [0, 1)", lambda value: 0 <= value < 1),
        ("weight_decay", "be a number of at least 0", lambda value: 0 <= value < math.inf),
        ("warmup_share", "lie in [0, 1]", lambda value: 0 <= value <= 1),
    ):
        value = getattr(arguments, option)
        if value is not None and not fits(value):
            yield f"--{option.replace('_', '-')} is {value:g}, but must {allowed}"
    if CUSTOM not in (*names, arguments.intermediate):
        given = [arguments.columns, arguments.text_columns, arguments.label_column, arguments.metric]
        if arguments.regression or any(value is not None for value in given):
            options = "--columns, --text-columns, --label-column, --metric and --regression"
            yield f"{options} belong to --task custom"
    if arguments.metric is not None and arguments.regression:
        yield "--metric is for classes, and --regression takes labels for numbers: leave one out"
    yield from _intermediate_problems(arguments, names)
    if arguments.from_mnli and not set(names) & set(FROM_MNLI_TASKS):
        yield f"--from-mnli is for {', '.join(FROM_MNLI_TASKS)}, none of which is asked for"


def _intermediate_problems(arguments: argparse.Namespace, names: list[str]) -> Iterator[str]:
    """What is wrong with the options of an intermediate task."""
    task = arguments.intermediate
    if task is None:
        if arguments.intermediate_data is not None:
            yield "--intermediate-data belongs to --intermediate"
        return
    if arguments.from_mnli:
        yield "--from-mnli and --intermediate say the same thing in two ways: leave one out"
    if task == CUSTOM and arguments.intermediate_data is None:
        yield "--intermediate custom needs --intermediate-data, a folder with train and dev files"
    elif not any(starts_after(name, task) for name in names):
        targets = ", ".join(FROM_MNLI_TASKS) if task == MNLI else "other tasks"
        yield f"--intermediate {task} is for {targets}, none of which is asked for"

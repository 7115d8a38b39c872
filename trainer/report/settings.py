"""Settings: runs of one setting are compared, in a table with a name of its own."""

import hashlib
import itertools
import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from longmix.data_prep.split_names import without_split

from ..many_runs.read import Run

_NOT_NOTED = json.dumps(None)
_LONGEST_SLUG = 100


@dataclass(frozen=True)
class Setting:
    """The things that rows must have in common to be compared: task, data, length, horizon, objective and split.

    Attributes:
        data: what the data set is called.
        objective: of the tokens themselves, mlm, with the share that evaluations hide, or clm; None where the task's
            own labels are predicted.
    """

    task: str
    data: str
    length: int | None
    horizon: int | None
    objective: str | None
    split: str

    @property
    def title(self) -> str:
        says_no_more = self.data in (self.task, f"{self.task}-{self.length}")
        title = self.task if says_no_more else f"{self.task} ({self.data})"
        title += "" if self.length is None else f", N = {self.length}"
        title += "" if self.horizon is None else f", horizon {self.horizon}"
        return title if self.objective is None else f"{title}, {self.objective}"

    @property
    def slug(self) -> str:
        """The title for the names of files."""
        return slug(f"{self.title} {self.split}")


def slug(title: str) -> str:
    """A title for the name of a file, one that a file system takes."""
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    if len(name) > _LONGEST_SLUG:
        name = f"{name[:_LONGEST_SLUG]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name


def settings_of(runs: list[Run]) -> list[Setting]:
    """The setting of each run. Different data whose tables or plots would share a name are told apart by folders."""
    settings = [_setting(run, run.dataset) for run in runs]
    alike: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for index, (run, setting) in enumerate(zip(runs, settings, strict=True)):
        alike[setting.slug].setdefault(json.dumps(run.fingerprint), []).append(index)
    taken: set[str] = set()
    for data_sets in alike.values():
        # Data whose fingerprint was not noted are taken for the same.
        if len(data_sets) == 2 and _NOT_NOTED in data_sets:
            data_sets = {_NOT_NOTED: sorted(itertools.chain(*data_sets.values()))}
        firsts = [runs[indices[0]] for indices in data_sets.values()]
        folders = _folders(firsts)
        distinct = list(dict.fromkeys(folders))
        called = dict(zip(distinct, shortest(distinct), strict=True))
        for first, folder, indices in zip(firsts, map(called.get, folders), data_sets.values(), strict=True):
            data = first.dataset if len(firsts) == 1 else ", ".join(dict.fromkeys([first.dataset, folder]))
            setting, number = _setting(first, data), 1
            while setting.slug in taken:
                number += 1
                setting = _setting(first, f"{data}, {number}")
            taken.add(setting.slug)
            for index in indices:
                settings[index] = setting
    return settings


def _setting(run: Run, data: str) -> Setting:
    objective, hidden = run.objective if run.predicts_tokens else None, run.evaluation_mask_probability
    if hidden is not None:
        objective = f"{objective} with {100 * hidden:g} % masked"
    return Setting(run.task, data, run.length, run.horizon, objective, run.split)


def _folders(runs: list[Run]) -> list[Path]:
    """The folder that names the data of each run: the user's own where these differ, else that of the samples."""
    sources = [run.source for run in runs]
    if None not in sources and len(set(sources)) == len(sources):
        return sources
    return [_data_folder(run) for run in runs]


def _data_folder(run: Run) -> Path:
    """The folder of the data of the figures, without the name of the split."""
    return without_split(Path(os.path.normpath(str(run.value(run.data_key)))))


def shortest(folders: list[Path]) -> list[str]:
    """The last names of each folder, as few as tell them apart."""
    names, longest = [folder.name for folder in folders], max(len(folder.parts) for folder in folders)
    count = 1
    while len(set(names)) < len(names) and count < longest:
        count += 1
        names = ["/".join(folder.parts[-count:]) for folder in folders]
    return names

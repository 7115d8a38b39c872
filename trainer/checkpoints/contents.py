"""The files that a checkpoint must hold: a manifest that is right about those that are there cannot miss the others."""

from pathlib import Path

from longmix.data_prep.errors import UserError

from ..engines import elastic, random_state, state_files
from ..models.folder import CONFIGURATION, weight_files

MODEL = "model"


def refuse_incomplete(folder: Path, listed: set[Path]) -> None:
    """Raise UserError, naming it, if the engine of a checkpoint must have written a file that is not `listed`.

    `listed`: the files of the manifest, which are there and are what was written.
    """
    _refuse_lacking(folder, elastic.LAYOUT, listed)
    layout = elastic.read_layout(folder)
    # Earlier versions wrote a file for each rank.
    is_earlier = folder / random_state.earlier_file(0) in listed
    for name in map(random_state.earlier_file, range(layout.ranks)) if is_earlier else (random_state.FILE,):
        _refuse_lacking(folder, name, listed)
    if layout.stage is None:
        for name in (state_files.TENSORS, state_files.PLAIN):
            _refuse_lacking(folder, name, listed)
    else:
        _refuse_lacking_parts(folder / elastic.ENGINE, layout, listed)
    _refuse_lacking(folder, f"{MODEL}/{CONFIGURATION}", listed)
    for path in weight_files(folder / MODEL):
        _refuse_lacking(folder, f"{MODEL}/{path.name}", listed)


def _refuse_lacking(folder: Path, name: str, listed: set[Path]) -> None:
    if folder / name not in listed:
        raise UserError(f"{folder / name} is missing from the manifest beside it")


def _refuse_lacking_parts(engine: Path, layout: elastic.Layout, listed: set[Path]) -> None:
    """Count DeepSpeed's files: from stage 1 each rank has its part of the optimizer's state, at 3 of the model's, too.

    They are counted, for their names differ with the precision.
    """
    wanted = {"model": layout.ranks if layout.stage == 3 else 1, "optim": layout.ranks if layout.stage else 0}
    for kind, count in wanted.items():
        found = sum(path.parent == engine and path.name.endswith(f"_{kind}_states.pt") for path in listed)
        if found < count:
            raise UserError(f"{engine} holds {found} of {count} files *_{kind}_states.pt")

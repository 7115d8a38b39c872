"""Plain Hugging Face folders: config.json, model.safetensors and tokenizer; saved, and copied whole or not at all."""

import functools
import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import flush_to_disk, write_json
from longmix.data_prep.shards import replace_folder
from longmix.data_prep.tokenizer import load_tokenizer, save_tokenizer

from ..checkpoints import folders
from ..models.folder import check_model_folder
from .flat_code import is_flat_file

ATTEMPTS = 5


def save_model(
    model: transformers.PreTrainedModel, state: dict[str, torch.Tensor], folder: Path, tokenizer: Path | None
) -> None:
    """Write a Hugging Face folder from gathered fp32 weights; tied weights are stored once."""
    model.save_pretrained(folder, state_dict=state)
    # The type of the model in memory (bf16 under ZeRO) stands there, and from_pretrained would round to it.
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Code that the model was loaded with (longmix export --self-contained) is not beside this one.
    config.pop("auto_map", None)
    write_json(folder / "config.json", {**config, "dtype": "float32"})
    # The mode of a file made the ordinary way: to ask for the umask is to change it, for every thread.
    mode = stat.S_IMODE((folder / "config.json").stat().st_mode)
    for path in folder.iterdir():
        # safetensors writes for the owner alone; a checkpoint is shared like any other file.
        path.chmod(mode)
    if tokenizer is not None:
        save_tokenizer(load_tokenizer(tokenizer), folder)


def publish(source: Path, target: Path, complete: Callable[[Path], None] | None = None) -> None:
    """Copy a finished model folder to `target`, which appears whole or not at all, replacing an older one.

    `complete` may change the copy before it appears.
    """
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        shutil.copytree(source, temporary)
        if complete is not None:
            complete(temporary)
        for path in temporary.rglob("*"):
            flush_to_disk(path)
        replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def export_model(source: str, step: int | None, output: str, self_contained: bool = False) -> Path:
    """Copy a model to `output`: of a run's checkpoint (the newest whole one, or that of `step`), or of a model folder.

    With `self_contained` the model's code comes beside it; without, code of an earlier export is left out.

    Raises:
        UserError: no such checkpoint, a damaged one, a damaged model folder, an output folder that already holds
            something else or cannot be written, or code wanted of a model type that is not ours.
    """
    target = Path(output)
    if target.is_file():
        raise UserError(f"--output is {output}, which is a file: name a folder")
    if target.exists() and not (target / "config.json").is_file() and any(target.iterdir()):
        raise UserError(f"{output} already holds something that is no model: choose another folder")
    for _ in range(ATTEMPTS):
        folder = _model_folder(source, step)
        try:
            _copy(folder, target, self_contained)
            return target
        except OSError as error:
            if folder.is_dir():
                raise UserError(f"--output {output} cannot be written: {error.strerror or error}") from None
        # A run that trains has deleted that checkpoint meanwhile.
    raise UserError(f"{source}: its checkpoints are deleted faster than they are copied: raise its checkpoint.keep")


def _copy(folder: Path, target: Path, self_contained: bool) -> None:
    complete = None
    if self_contained or any(map(is_flat_file, folder.iterdir())):
        from . import self_contained as code  # imports the models, which other copies can do without

        complete = code.remove_code
        if self_contained:
            code.check_model_type(folder)
            complete = functools.partial(code.add_code, name=target.resolve().name)
    target.parent.mkdir(parents=True, exist_ok=True)
    publish(folder, target, complete)


def _model_folder(source: str, step: int | None) -> Path:
    """The folder to export: a model folder itself, or that of a whole checkpoint of a run."""
    run = Path(source)
    available = folders.steps(run)
    if not available and (run / "config.json").is_file():
        if step is not None:
            raise UserError(f"--step is {step}, but {source} is a model folder, not a run: leave it out")
        check_model_folder(run)
        return run
    if not available:
        raise UserError(
            f"{source} holds no checkpoint and is no model folder: name the run folder (run.dir) of a run that has "
            "written a checkpoint, or a folder with config.json"
        )
    if step is None:
        chosen = folders.newest(run)
        if chosen is None and folders.steps(run) != available:
            return _model_folder(source, step)  # it trains: what was there is gone, and there are newer ones
        if chosen is None:
            raise UserError(f"{source}: every checkpoint is damaged; see the warnings above")
    else:
        if step not in available:
            raise UserError(f"{source} has no checkpoint of step {step}; it has: {', '.join(map(str, available))}")
        chosen = folders.path_of(run, step)
        reason = folders.defect(chosen)
        if reason is not None:
            raise UserError(f"the checkpoint of step {step} is damaged: {reason}; choose another step")
    return chosen / "model"

"""Plain Hugging Face folders: config.json, model.safetensors and tokenizer; saved, and copied whole or not at all."""

import contextlib
import functools
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import MARKER, flush_to_disk, make_folder, write_json, write_text
from longmix.data_prep.made_folders import (
    MODEL,
    files_below,
    mark_like,
    new_folder,
    put_in_place,
    refuse_foreign,
    refuse_unreplaceable,
    swap,
)
from longmix.data_prep.state_files import read_json
from longmix.data_prep.tokenizer import CONFIGURATION as TOKENIZER_CONFIGURATION
from longmix.data_prep.tokenizer import load_tokenizer, save_tokenizer

from ..checkpoints import folders
from ..checkpoints.model_folders import model_folder
from ..checkpoints.state import STATE
from ..models.folder import CONFIGURATION, check_model_folder
from .card import CARD, with_title
from .earlier import earlier_model
from .flat_code import is_flat_file

ATTEMPTS = 5


def save_model(
    model: transformers.PreTrainedModel, state: dict[str, torch.Tensor], folder: Path, tokenizer: Path | None
) -> None:
    """Write a Hugging Face folder from gathered fp32 weights; tied weights are stored once."""
    model.save_pretrained(folder, state_dict=state)
    # The type of the model in memory (bf16 under ZeRO) stands there, and from_pretrained would round to it.
    config = read_json(folder / "config.json")
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
        tell_token_types(folder)


def tell_token_types(folder: Path) -> None:
    """Have the tokenizer of ours in a model folder return `token_type_ids`, where its model tells the texts of a pair
    apart: without them transformers' pipelines would show it the second text as a part of the first.
    """
    path = folder / TOKENIZER_CONFIGURATION
    if not path.is_file():
        return
    values, config = read_json(path), read_json(folder / CONFIGURATION)
    is_ours = values.get("token_type_ids_pattern") == "bert_style" and "special_tokens_pattern" in values
    if not is_ours:
        return
    knows_two = (config.get("type_vocab_size") or 0) > 1
    # Of a model that does not, the tokenizer may be that of one that does.
    values.pop("model_input_names", None)
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if knows_two else {}
    write_json(path, values | names)


def publish(source: Path, target: Path, complete: Callable[[Path], None] | None = None) -> None:
    """Copy a finished model folder to `target`, which appears whole or not at all, replacing one that longmix made.

    `complete` may change the copy before it appears. A target that is the source itself keeps all of its files.

    Raises:
        UserError: `target` holds what longmix did not write, or what has changed since.
    """
    in_place = target.is_dir() and target.samefile(source)
    kept = files_below(source) if in_place else []

    def others(place: str, names: list[str]) -> list[str]:
        """The source's own marker, which the copy's takes the place of."""
        return [MARKER] if Path(place) == source and MARKER in names else []

    with new_folder(target) as temporary:
        shutil.copytree(source, temporary, ignore=others, dirs_exist_ok=True)
        if complete is not None:
            complete(temporary)
        for path in temporary.rglob("*"):
            flush_to_disk(path)
        if in_place and not _is_made_by_longmix(target):
            # The user's own files must not pass for longmix's in a later export.
            mark_like(temporary, target, MODEL)
            swap(temporary, target, kept)
        else:
            put_in_place(temporary, target, MODEL, earlier_model)


def _is_made_by_longmix(folder: Path) -> bool:
    try:
        refuse_foreign(folder, MODEL, earlier_model)
    except UserError:
        return False
    return True


def _refuse_target(target: Path, source: Path, name: str) -> None:
    """Raise UserError if the model folder `source` cannot be copied to `target`. Changes nothing."""
    for parent in target.absolute().parents:
        if (parent / STATE).is_file() and (parent / folders.MANIFEST).is_file():
            raise UserError(f"{name} lies within the checkpoint {parent}: name a folder elsewhere")
    if target.is_dir() and target.samefile(source):
        files_below(target, name)  # raises for links, which a copy would not keep
    elif target.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{name} lies within {source}, which is to be copied: name a folder elsewhere")
    else:
        refuse_foreign(target, MODEL, earlier_model, name)


def export_model(source: str, step: int | None, output: str, self_contained: bool = False, onnx: bool = False) -> Path:
    """Copy a model to `output`: of a run's checkpoint (the newest whole one, or that of `step`), or of a model folder.

    With `self_contained` the model's code comes beside it; without, code of an earlier export is left out. With `onnx`
    the model comes as ONNX, too.

    Raises:
        UserError: no such checkpoint, a damaged one, a damaged model folder, an output folder that already holds
            something else or cannot be written, or code wanted of a model type that is not ours, or ONNX of one that
            it cannot express.
    """
    # Only a folder that has a name can give way to another: `.` and `a/..` have none.
    target = Path(output) if Path(output).name not in ("", "..") else Path(output).resolve()
    if target.is_file():
        raise UserError(f"--output is {output}, which is a file: name a folder")
    refuse_unreplaceable(target, f"--output {output}")
    for _ in range(ATTEMPTS):
        folder = _model_folder(source, step)
        try:
            _refuse_target(target, folder, f"--output {output}")
            _copy(folder, target, self_contained, onnx)
            return target
        except OSError as error:
            if folder.is_dir():
                raise refused(f"--output {output} cannot be written", error) from None
        # A run that trains has deleted that checkpoint meanwhile.
    raise UserError(f"{source}: its checkpoints are deleted faster than they are copied: raise its checkpoint.keep")


def _copy(folder: Path, target: Path, self_contained: bool, onnx: bool) -> None:
    odd = next((path for path in sorted(folder.rglob("*")) if not path.is_file() and not path.is_dir()), None)
    if odd is not None:
        raise UserError(f"{odd} is neither a file nor a folder, and cannot be copied: move it away")
    in_place = target.is_dir() and target.samefile(folder)
    # Earlier versions did not; but a copy onto itself changes no file that is there.
    steps: list[Callable[[Path], None]] = []
    if not in_place:
        steps = [tell_token_types, functools.partial(_name_card, name=target.resolve().name)]
    if self_contained or any(map(is_flat_file, folder.iterdir())):
        from . import self_contained as code  # imports the models, which other copies can do without

        steps.append(code.remove_code)
        if self_contained:
            code.check_model_type(folder)
            steps[-1] = functools.partial(code.add_code, name=target.resolve().name)
    if onnx:
        from . import onnx as graph  # imports the models

        if in_place and (folder / graph.ONNX).exists():
            raise UserError(f"{folder} holds {graph.ONNX} already: move it away, or name another folder")
        graph.check_onnx(folder)
        steps.append(graph.add_onnx)

    def complete(temporary: Path) -> None:
        for step in steps:
            step(temporary)

    make_folder(target.parent)
    publish(folder, target, complete)


def _name_card(folder: Path, name: str) -> None:
    """Give the card of a folder, if it has one of ours, the folder's name."""
    path = folder / CARD
    if not path.is_file():
        return
    data = path.read_bytes()
    with contextlib.suppress(UnicodeDecodeError):  # none of ours
        titled = with_title(data.decode(), name)
        if titled.encode() != data:
            write_text(path, titled)


def _model_folder(source: str, step: int | None) -> Path:
    """The folder to export: a model folder itself, or that of a run, of one of its checkpoints, or of a checkpoint."""
    folder = Path(model_folder(source, step, newest=True))
    if not (folder / CONFIGURATION).is_file():
        raise UserError(
            f"{source} holds no checkpoint and is no model folder: name the run folder (run.dir) of a run that has "
            "written a checkpoint, or a folder with config.json"
        )
    if not (folder.parent / folders.MANIFEST).is_file():
        check_model_folder(folder)  # a checkpoint's was, with all of it
    return folder

"""A model folder as a repository of the Hugging Face hub: one commit, which is there whole or not at all."""

import contextlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    validate_repo_id,
)

from longmix.data_prep.errors import MachineFault, UserError, reason_of
from longmix.data_prep.files import MARKER
from longmix.data_prep.made_folders import MODEL, files_below, missing_files

from ..models.folder import CONFIGURATION, check_model_folder
from ..models.hub import why_unreachable
from ..settings.mistakes import say
from .card import CARD
from .earlier import is_written_by_us
from .onnx import ONNX, ONNX_WEIGHTS
from .self_contained import with_name

# What an answer of the hub means for whoever asked; all others are the hub's own faults.
_REFUSALS = {
    400: "the hub refuses it as malformed",
    401: "the hub knows no such token, or not for this repository: hf auth login, or set HF_TOKEN",
    403: "the token may not write there: take one with the permission to write, or another repository",
    404: "there is no such repository or revision for this token",
    409: "there is another repository of this name",
    413: "it is larger than the hub takes",
}


def push_model(folder: Path, repository: str, is_private: bool = False, revision: str | None = None) -> str:
    """Upload a model folder in one commit; the address of the repository.

    Only what longmix writes is uploaded: configuration, safetensors, tokenizer, card, the model's own code of a
    self-contained export, its ONNX. Other files are named and left out. Files of the repository that this folder does
    not have stay as they are.

    Args:
        folder: a model folder (`model_folders.model_folder`).
        repository: NAME or OWNER/NAME; made if there is none.
        is_private: make it private; one that is there and public is refused.
        revision: the branch; made if there is none. None: main.

    Raises:
        UserError: the folder is no model's or is not whole, the name cannot be one, there is no token, or the hub
            refuses the name or the token.
        MachineFault: the hub cannot be reached, or fails.
    """
    files = _files(folder)
    _require_hub(repository)
    api = HfApi(library_name="longmix", library_version=importlib.metadata.version("longmix"))
    with _told(repository), _bars():
        made = api.create_repo(repository, private=True if is_private else None, exist_ok=True)
        repository = made.repo_id
        if is_private and not api.repo_info(repository).private:
            raise UserError(f"{repository} is there and public, so that nothing was uploaded: leave out --private")
        if revision is not None and revision != constants.DEFAULT_REVISION:
            api.create_branch(repository, branch=revision, exist_ok=True)
        message = f"Upload a model with longmix {importlib.metadata.version('longmix')}"
        api.create_commit(
            repository,
            [_addition(folder, file, repository) for file in files],
            commit_message=message,
            revision=revision,
        )
    return str(made)


def _files(folder: Path) -> list[str]:
    """The files of a model folder to upload; the others are named. Raises UserError unless it is whole."""
    if not (folder / CONFIGURATION).is_file():
        raise UserError(
            f"{folder} holds no checkpoint and is no model folder: name the run folder (run.dir) of a run that has "
            "written a checkpoint, or a folder with config.json"
        )
    names = files_below(folder)
    missing = missing_files(folder, MODEL)
    if missing:
        raise UserError(f"{folder} lacks {missing[0]}, which longmix wrote there: copy the folder again")
    check_model_folder(folder)
    files = [name for name in names if name in (CARD, ONNX, ONNX_WEIGHTS) or is_written_by_us(folder / name, name)]
    left_out = [name for name in names if name not in files and name != MARKER]
    if left_out:
        say(f"longmix: not uploaded, for they are none of a model's files: {', '.join(left_out)}")
    return files


def _require_hub(repository: str) -> None:
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError(f"the repository is {repository}, but takes NAME or OWNER/NAME: {reason_of(error)}") from None
    if constants.is_offline_mode():
        raise UserError("HF_HUB_OFFLINE is set, and nothing can be uploaded: unset it")
    if get_token() is None:
        raise UserError(f"there is no token for {constants.ENDPOINT}: hf auth login, or set HF_TOKEN")
    unreachable = why_unreachable()
    if unreachable is not None:
        raise MachineFault(f"nothing was uploaded: {unreachable}")


@contextlib.contextmanager
def _told(repository: str) -> Iterator[None]:
    """Within it, what the hub or the way there refuses is raised as a mistake or a fault, in one line."""
    try:
        yield
    except UserError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code
        said = error.server_message or reason_of(error)
        place = f"{repository} on {constants.ENDPOINT}"
        if status in _REFUSALS:
            raise UserError(f"{place}: {_REFUSALS[status]} ({status}: {said})") from None
        raise MachineFault(f"{place}: the hub failed ({status}: {said}); the same command tries again") from None
    except Exception as error:  # its kinds are those of the client's own HTTP library, which changes
        failed = f"{repository} on {constants.ENDPOINT}: the upload failed ({reason_of(error)})"
        raise MachineFault(f"{failed}; the same command tries again") from error


@contextlib.contextmanager
def _bars() -> Iterator[None]:
    """Within it the hub's bars are drawn on a terminal alone, and what is said of a failure begins a line there."""
    if sys.stderr.isatty():
        try:
            yield
        except Exception:
            with contextlib.suppress(OSError):
                print(file=sys.stderr, flush=True)
            raise
    elif are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:
        yield
    else:
        disable_progress_bars()
        try:
            yield
        finally:
            enable_progress_bars()


def _addition(folder: Path, file: str, repository: str) -> CommitOperationAdd:
    if file != CARD:
        return CommitOperationAdd(path_in_repo=file, path_or_fileobj=str(folder / file))
    try:
        card = with_name((folder / file).read_text(encoding="utf-8"), repository)
    except UnicodeDecodeError:
        raise UserError(f"{folder / file} is not valid UTF-8: correct it, or move it away") from None
    return CommitOperationAdd(path_in_repo=file, path_or_fileobj=card.encode())

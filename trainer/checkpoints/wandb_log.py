"""The figures of a run in Weights & Biases (`log.wandb`), one history however often the run is stopped and resumed."""

import contextlib
import io
import os
import re
import secrets
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import make_folder, write_json
from longmix.data_prep.state_files import read_json

from ..settings.libraries import require_libraries

FOLDER = "wandb"
# The run's id there.
STATE = "longmix.json"
# So long the service is waited for at the start, and at the end: it may be out of reach.
PATIENCE_SECONDS = 30.0
_ID = re.compile(r"[0-9a-f]{16}")
_OFFLINE = ("offline", "dryrun", "disabled")


def require_wandb(project: str) -> None:
    """Raise UserError unless the library is there, and a key for its service where it is to be used."""
    require_libraries(f"log.wandb is {project}, which needs", ("wandb",), "wandb")
    if os.environ.get("WANDB_MODE") in _OFFLINE:
        return
    import wandb

    with contextlib.redirect_stderr(io.StringIO()):  # it tells where it has found a key
        has_key = wandb.login(prompt=False, verify=False)
    if not has_key:
        raise UserError(
            f"log.wandb is {project}, but there is no key for Weights & Biases: wandb login, or set WANDB_API_KEY, or "
            "WANDB_MODE=offline"
        )


class WandbLog:
    """A run of Weights & Biases that goes on with the run folder's: `RUN/wandb/longmix.json` holds its id.

    Every record is a row with its `step`, the axis of all figures, and the rows are numbered as the lines of
    metrics.jsonl are. Each start gives them all from the first (`RunLog`): a service that has a row takes none of that
    number again, and has missed those that a kill has lost; offline the newest folder has the whole history.

    Args:
        run: the run folder.
        project: `log.wandb`; entity, mode and key come from the environment (WANDB_ENTITY, WANDB_MODE, WANDB_API_KEY).
        configuration: what stands there as the run's configuration.

    Raises:
        Exception: of the library's own kinds: the service cannot be reached or refuses.
        OSError: the disk refuses.
    """

    def __init__(self, run: Path, project: str, configuration: dict[str, Any]):
        import wandb

        self._folder = run / FOLDER
        self._rows = 0
        self._run = wandb.init(
            project=project,
            name=run.resolve().name,
            id=_id(self._folder),
            resume="allow",
            dir=str(run),
            config=configuration,
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                silent=True,
                init_timeout=PATIENCE_SECONDS,
                finish_timeout=PATIENCE_SECONDS,
                finish_timeout_raises=True,
            ),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def record(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Give the next row; raises as the class does."""
        numbers = {f"{kind}/{name}": value for name, value in figures.items() if isinstance(value, int | float)}
        self._run.log({"step": step, **numbers}, step=self._rows)
        self._rows += 1

    def close(self) -> str | None:
        """Wait until the service has all rows, or for `PATIENCE_SECONDS`; a line to say if it has not. Raises as the
        class does."""
        try:
            self._run.finish()
        except TimeoutError:
            return (
                f"Weights & Biases has not taken all figures within {PATIENCE_SECONDS:g} seconds: "
                f"wandb sync {self._folder}/latest-run sends the rest"
            )
        return None


def _id(folder: Path) -> str:
    """The id of the run in its folder, a new one if there is none that can be read."""
    try:
        found = read_json(folder / STATE)["id"]
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, str) or _ID.fullmatch(found) is None:
        found = secrets.token_hex(8)
        make_folder(folder)
        write_json(folder / STATE, {"id": found})
    return found

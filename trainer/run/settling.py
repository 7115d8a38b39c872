"""What the configuration of a run leaves open, settled once: as the run in the folder has it, or by default for a new
one."""

from dataclasses import replace
from pathlib import Path

import torch

from ..settings.configuration import RunConfiguration
from .folder import as_begun, resolved
from .kept_choices import settle_precision


def settle(configuration: RunConfiguration, device: torch.device) -> tuple[RunConfiguration, str | None]:
    """The configuration with its precision, the defaults of its model and what its evaluations hide; and where the
    precision is left to the device a line that says which and why.

    Raises:
        UserError: the run folder's config.yaml cannot be read.
    """
    precision, chosen = settle_precision(configuration, device)
    run = Path(configuration.run.dir)
    return resolved(run, as_begun(run, replace(configuration, precision=precision))), chosen

"""Everything a run needs before its first step, built and checked: the part that `--check` shares with training."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.tokenizer import load_tokenizer

from . import deepspeed_config
from .configuration import RunConfiguration
from .distributed import resolve_precision
from .export import tokenizer_folder
from .model import build_model, model_configuration
from .objectives import Objective, make_objective
from .run_data import RunData, check_processes, open_data


@dataclass
class Prepared:
    """A run, checked; `build` makes its model."""

    configuration: RunConfiguration
    precision: str
    data: RunData
    objective: Objective
    tokenizer: Path | None
    model_configuration: transformers.PreTrainedConfig

    def build(self) -> transformers.PreTrainedModel:
        return build_model(self.configuration, self.model_configuration, self.objective.auto_class)


def prepare(configuration: RunConfiguration, world_size: int, device: torch.device) -> Prepared:
    """Check a run against its data, its devices and DeepSpeed's file; build nothing large.

    Raises:
        UserError: whatever a user can mend.
    """
    precision = resolve_precision(configuration.precision, device)
    mistakes = Mistakes()
    if precision == "fp16" and device.type == "cpu":
        mistakes.texts.append("precision fp16 needs a GPU; on a CPU use fp32 or bf16")
    with mistakes:
        check_processes(configuration, world_size)
    if configuration.deepspeed is not None:
        with mistakes:
            deepspeed_config.check(configuration, precision, world_size)
    prepared = None
    with mistakes:
        data = open_data(configuration)
        tokenizer = tokenizer_folder(configuration.data.sources()[0].path, data.manifest)
        objective = make_objective(
            configuration.objective, configuration.run.seed, data.manifest, _tokenizer_loader(tokenizer)
        )
        config = model_configuration(configuration, data.manifest, objective.auto_class)
        prepared = Prepared(configuration, precision, data, objective, tokenizer, config)
    mistakes.tell()
    return prepared


class Mistakes:
    """A context that notes a user's mistake and lets the checks after it go on; `tell` raises them as one."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, UserError):
            self.texts.append(str(error))
        return isinstance(error, UserError)

    def tell(self) -> None:
        if self.texts:
            raise UserError("; ".join(self.texts))


def _tokenizer_loader(folder: Path | None) -> Callable[[], transformers.PreTrainedTokenizerBase]:
    def load() -> transformers.PreTrainedTokenizerBase:
        if folder is None:
            raise UserError("objective.whole_word needs a data set with a tokenizer")
        return load_tokenizer(folder)

    return load


def layout_notes(model: torch.nn.Module, packing: str | None, world_size: int) -> list[str]:
    """One line each for what a reader of the results should know about exactness and packing."""
    notes = []
    # Models of transformers have no mixer class: they take no document ids, so packed documents see each other.
    isolates = getattr(model, "mixer_class", None) is not None and model.mixer_class.isolates_documents
    if packing == "documents" and not isolates:
        notes.append(
            f"note: documents that share a row see each other in {model.config.model_type} "
            "(--packing one-per-row keeps them apart)"
        )
    dropout = any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    batch_norm = any("batchnorm" in type(module).__name__.lower() for module in model.modules())
    if (dropout or batch_norm) and world_size > 1:
        cause = "dropout" if dropout else "batch statistics"
        notes.append(f"note: with {cause} another number of processes gives other losses; the same number the same")
    return notes

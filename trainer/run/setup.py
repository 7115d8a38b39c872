"""Everything a run needs before its first step, checked: the part that `--check` shares with training."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tokenizer import load_tokenizer

from ..checkpoints.model_folders import model_folder, newest_own_model
from ..models.build import build_model, model_configuration
from ..models.field_check import FROM
from ..models.loading import has_other_vocabulary
from ..models.sizes import ModelSize, measure
from ..objectives.masking import word_starts
from ..objectives.objective import Objective, auto_class, check_data, make_objective
from ..optimization.matrices import matrix_entries
from ..optimization.optimizer import rate_factors
from ..processes.precision import refuse_slow, resolve_precision
from ..samples.host_memory import processes_here
from ..samples.run_data import RunData, check_processes, open_data, small_cache_note
from ..samples.shard_check import COORDINATES
from ..samples.tokenizer import tokenizer_folder
from ..samples.windows import manifest_seen
from ..settings import deepspeed_file
from ..settings.configuration import RunConfiguration
from ..settings.mistakes import Mistakes
from ..settings.optimizers import OPTIMIZERS
from .determinism import refuse_impossible

# Of a vocabulary's pieces, as far as words stand in its text: those of small ones of several languages are 7 %.
FEWEST_STARTS = 0.03


@dataclass
class Prepared:
    """A run, checked; `build` makes its model."""

    configuration: RunConfiguration
    precision: str
    data: RunData
    objective: Objective
    tokenizer: Path | None
    model_configuration: transformers.PreTrainedConfig
    size: ModelSize
    # The configuration with the model folder that model.from means in its place.
    start: RunConfiguration
    # What is not taken over from the checkpoint that the run starts from; known once the model is built.
    start_notes: list[str] = field(default_factory=list)

    def build(self) -> transformers.PreTrainedModel:
        self.start_notes.clear()
        return build_model(self.start, self.model_configuration, self.objective.auto_class, self.start_notes)

    def notes(self, model: torch.nn.Module, world_size: int) -> list[str]:
        """Lines that say what a reader of the results, or somebody who waits for them, should know."""
        notes = layout_notes(model, self.data.manifest.packing, world_size)
        is_placed = bool(getattr(model.config, "coordinate_dimensions", 0))
        if COORDINATES in self.data.manifest.columns and not is_placed:
            notes.append(
                f"note: this {model.config.model_type} does not read the data's coordinates: it counts positions"
            )
        name = self.configuration.deepspeed
        deepspeed_values = {} if name is None else deepspeed_file.read(name)
        unknown = deepspeed_file.unknown_keys(deepspeed_values)
        if unknown:
            notes.append(f"note: DeepSpeed knows no {', '.join(unknown)}, which stands in {name}, and reads over it")
        if deepspeed_file.compiles_optimizer(deepspeed_values):
            notes.append(
                "note: DeepSpeed compiles its optimizer for the CPU at its first use, which takes minutes "
                f'("torch_adam": true in optimizer.params of {name} spares it)'
            )
        if self.configuration.objective.whole_word and self.tokenizer is not None:
            share = word_starts(load_tokenizer(self.tokenizer)).mean()
            if share < FEWEST_STARTS:
                notes.append(
                    f"warning: objective.whole_word hides words whole, and {100 * share:.1f} % of the tokenizer's "
                    "pieces begin one, as in text without spaces: whole rows are hidden, or nothing (leave it out)"
                )
        small_cache = small_cache_note(self.configuration, self.data, world_size, processes_here() or 1)
        if small_cache is not None:
            notes.append(small_cache)
        if self.configuration.run.compile and deepspeed_file.stage_of(deepspeed_values) == 3:
            notes.append(
                "note: at ZeRO stage 3 the graph of a compiled layer ends before each of its modules, where DeepSpeed "
                "gathers parameters: at stages 1 and 2 it is whole"
            )
        if self._rounds_gradients(deepspeed_values):
            notes.append(
                "note: at ZeRO stage 0, and with an offloaded optimizer at 1 and 2, DeepSpeed sums gradients up in "
                "bf16: deepspeed=zero1 sums them up in fp32"
            )
        return notes

    def _rounds_gradients(self, deepspeed_values: dict[str, Any]) -> bool:
        """Whether bf16 gradients are summed up over micro-batches or ranks where DeepSpeed cannot do so in fp32."""
        batch = self.configuration.batch
        if self.configuration.deepspeed is None or self.precision != "bf16" or batch.samples <= batch.micro_batch:
            return False
        stage, offloaded = deepspeed_file.stage_of(deepspeed_values), deepspeed_file.offloads(deepspeed_values)
        return not deepspeed_file.sums_in_fp32(stage, offloaded)


# The checks. They go on after a mistake, so that a user reads all of them at once, and build nothing large before.


def prepare(configuration: RunConfiguration, world_size: int, device: torch.device) -> Prepared:
    """Check a run against its data, its devices and DeepSpeed's file; build nothing large.

    Raises:
        UserError: whatever a user can mend.
    """
    precision = resolve_precision(configuration.precision, device)
    mistakes = Mistakes()
    with mistakes:
        refuse_impossible(configuration.run, device)
    with mistakes:
        refuse_slow(precision, device)
    with mistakes:
        check_processes(configuration, world_size)
    if configuration.deepspeed is not None:
        with mistakes:
            deepspeed_file.check(configuration, precision, world_size)
    data = objective = None
    with mistakes:
        data = open_data(configuration, world_size)
    # Mistakes in the objective or the model are told whether or not all data can be read.
    manifest = _first_manifest(configuration) if data is None else data.manifest
    first = configuration.data.sources()[0].path
    if manifest is not None:
        with mistakes:
            tokenizer = tokenizer_folder(first, manifest, configuration.data.cache)
            objective = make_objective(
                configuration.objective,
                configuration.run.seed,
                manifest,
                tokenizer_loader(tokenizer),
                configuration.eval.mask_probability,
            )
    for dataset in () if data is None else data.all()[1:]:
        with mistakes:
            try:
                check_data(configuration.objective.name, dataset.manifest)
            except UserError as error:
                if objective is not None:  # else the first data set's mistake is told, which is likely the same
                    raise UserError(f"{dataset.folder}: {error}") from None
    with mistakes:
        known = manifest or Manifest(split="unknown", split_rule="unknown", columns={})
        start = _with_model_folder(configuration)
        config = model_configuration(start, known, auto_class(configuration.objective.name))
        size = measure(config, auto_class(configuration.objective.name))
        _refuse_metric(configuration, config, manifest)
        _refuse_without_matrices(configuration, size)
        rate_factors(size.model, configuration.optim.lr_factors)
    mistakes.tell()
    source = start.model.get(FROM)
    if source is not None and has_other_vocabulary(source, tokenizer):
        raise UserError(
            f"model.from: {source} has another tokenizer than {first}: prepare the data with the checkpoint's "
            "(longmix prepare text --tokenizer)"
        )
    return Prepared(configuration, precision, data, objective, tokenizer, config, size, start)


def _with_model_folder(configuration: RunConfiguration) -> RunConfiguration:
    """The configuration with the model folder that model.from means, which may be a run or a checkpoint.

    A run that goes on starts from its own checkpoint: what it once started from may be another model by now, or gone.
    """
    source = configuration.model.get(FROM)
    if source is None:
        return configuration
    found = None if configuration.run.dir is None else newest_own_model(Path(configuration.run.dir))
    if found is None:
        try:
            found = model_folder(source)
        except UserError as error:
            raise UserError(f"model.from: {error}") from None
    return dataclasses.replace(configuration, model={**configuration.model, FROM: found})


def _first_manifest(configuration: RunConfiguration) -> Manifest | None:
    """The manifest of the first source, if it can be read; opening the data has told why not."""
    try:
        path = configuration.data.sources()[0].path
        return manifest_seen(path, Manifest.load(path), configuration.objective)
    except UserError:
        return None


def _refuse_metric(
    configuration: RunConfiguration, config: transformers.PreTrainedConfig, manifest: Manifest | None
) -> None:
    best = configuration.checkpoint.best
    if best is not None and best.metric in ("f1", "roc_auc") and config.num_labels != 2:
        raise UserError(f"checkpoint.best.metric {best.metric} is for two classes, and these are {config.num_labels}")
    of_values = configuration.objective.name == "regression" and manifest is not None
    if best is not None and best.metric == "accuracy" and of_values and manifest.tolerance is None:
        raise UserError(
            "checkpoint.best.metric accuracy of a regression needs data with a tolerance, as longmix prepare adding "
            "makes them: choose loss, pearson or spearman"
        )


def _refuse_without_matrices(configuration: RunConfiguration, size: ModelSize) -> None:
    name = configuration.optim.name
    if OPTIMIZERS[name].state_per_matrix_entry is not None and matrix_entries(size.model) == 0:
        raise UserError(
            f"optim.name {name} is for the matrices of a model's layers, and finds none in this "
            f"{size.model.config.model_type}: set optim.name=adamw"
        )


def tokenizer_loader(folder: Path | None) -> Callable[[], transformers.PreTrainedTokenizerBase]:
    """A function that loads the data's tokenizer once it is asked for; None: a data set without one."""

    def load() -> transformers.PreTrainedTokenizerBase:
        if folder is None:
            raise UserError("objective.whole_word needs a data set with a tokenizer")
        return load_tokenizer(folder)

    return load


# The notes: nothing is wrong, but results may not mean what a reader takes them to mean.


def layout_notes(model: torch.nn.Module, packing: str | None, world_size: int) -> list[str]:
    """Lines that say what a reader of the results should know about exactness and packing."""
    notes = []
    # Models of transformers have no mixer class: they take no document ids, so packed documents see each other.
    isolates = getattr(model, "isolates_documents", False)
    if packing == "documents" and not isolates:
        notes.append(
            f"note: documents that share a row see each other in {model.config.model_type} "
            "(--packing one-per-row keeps them apart)"
        )
    dropout = any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    # Attention weights are dropped by a function, which is no module.
    dropout = dropout or bool(getattr(model.config, "attention_probs_dropout_prob", None))
    batch_norm = any("batchnorm" in type(module).__name__.lower() for module in model.modules())
    if (dropout or batch_norm) and world_size > 1:
        cause = "dropout" if dropout else "batch statistics"
        notes.append(f"note: with {cause} another number of processes gives other losses; the same number the same")
    return notes

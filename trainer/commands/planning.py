"""What a run takes on GPUs of a kind, in numbers, for `longmix plan`.

Counted: parameters, gradients, optimizer state, DeepSpeed's buffers, what a forward pass keeps (models/costs.py).
Assumed: the constants below. A run that was measured says more: `mfu` and `gpu_memory_gib` in its metrics.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shards import LIST_INT32

from ..models.build import model_configuration
from ..models.costs import ModelCosts, count_costs
from ..models.field_check import FROM
from ..models.flops import count_flops
from ..models.sizes import ModelSize, measure
from ..objectives.objective import Objective, auto_class, make_objective
from ..processes.cards import Card
from ..run.dry_run import full_micro_batch
from ..run.memory import kept_of_optimizer, state_bytes
from ..samples.collate import TOKEN_IDS
from ..samples.planned_data import planned_data
from ..samples.shard_check import DOCUMENT_STARTS
from ..samples.windows import manifest_seen
from ..settings import deepspeed_file
from ..settings.configuration import SHIPPED_DEEPSPEED, RunConfiguration
from ..tables.writing import in_columns
from .rounding import about_bytes, about_count, about_time

# Of a card's memory what tensors may take: the rest is the driver's, the network's and lost between them.
USABLE = 0.9
# Of the speed that the data sheet allows what kernels reach.
REACHED = 0.6
# Bytes of a sixteenth of a parameter's state that a step of the optimizer reads and writes.
OPTIMIZER_BYTES = 28


@dataclass(frozen=True)
class Cluster:
    """Nodes with so many cards each; `network`: Gbit/s between two nodes."""

    card: Card
    gpus: int
    nodes: int
    network: float

    @property
    def ranks(self) -> int:
        return self.gpus * self.nodes


@dataclass(frozen=True)
class Plan:
    """A run on a cluster, counted.

    Attributes:
        flops: floating-point operations of a step.
        length: tokens of a sample.
        kept: numbers that the optimizer keeps of a parameter.
    """

    configuration: RunConfiguration
    cluster: Cluster
    precision: str
    size: ModelSize
    costs: ModelCosts
    flops: float
    length: int
    kept: float

    @property
    def share(self) -> int:
        """Samples of a rank in a step."""
        return self.configuration.batch.samples // self.cluster.ranks

    @property
    def every(self) -> int:
        """Every so many layers one is computed again; 0: none."""
        return int(self.configuration.run.gradient_checkpointing)

    @property
    def itemsize(self) -> int:
        return 4 if self.precision == "fp32" else 2

    def states(self, stage: int | None) -> float:
        """Bytes of parameters, gradients and optimizer of a rank. Stage None: without DeepSpeed."""
        return state_bytes(self.size.parameters, self.precision, stage, self.cluster.ranks, self.kept)

    def buffers(self, stage: int | None) -> float:
        """Bytes that DeepSpeed exchanges gradients and parameters in."""
        if not stage:
            return 0.0
        configuration = replace(self.configuration, deepspeed=f"zero{stage}")
        values = deepspeed_file.fill(configuration, self.precision, self.cluster.ranks, self.size.parameters)
        section = values["zero_optimization"]
        reduced = section["reduce_bucket_size"] * (1 + bool(section.get("overlap_comm")))
        reduced *= self._gradient_itemsize(stage)
        if stage < 3:
            return reduced + self.itemsize * section["allgather_bucket_size"]
        # Two layers are whole at a time, or the embeddings.
        largest = max(2 * self.size.layer_parameters, math.prod(self.size.largest[1]))
        return reduced + self.itemsize * (section["stage3_prefetch_bucket_size"] + largest)

    def _gradient_itemsize(self, stage: int | None) -> int:
        """Bytes of a number of the gradients that ranks exchange: under bf16 in fp32 where there are shares."""
        return 4 if self.precision == "bf16" and stage else self.itemsize

    def needed(self, stage: int | None, samples: int) -> float:
        """Bytes of a rank at the peak of a step with micro-batches of so many samples."""
        states, parameters = self.states(stage), self.size.parameters
        passes = self.buffers(stage) + self.costs.kept(samples, self.every) + self.costs.widest(samples)
        # In 16 bits the optimizer takes gradients in fp32, of its own share.
        step = 0 if self.precision == "fp32" else 4 * parameters / (self.cluster.ranks if stage else 1)
        return states + max(passes, step)

    def largest(self, stage: int | None) -> int:
        """The largest micro-batch that fits and divides a rank's share; 0: none."""
        usable = USABLE * self.cluster.card.memory
        fitting = (one for one in range(self.share, 0, -1) if self.share % one == 0)
        return next((one for one in fitting if self.needed(stage, one) <= usable), 0)

    # Time.

    def step(self, samples: int, stage: int | None) -> float:
        """Seconds of a step with micro-batches of so many samples, the exchange left out."""
        shared = self.cluster.ranks if stage else 1
        optimizer = OPTIMIZER_BYTES * self.size.parameters / shared / self.cluster.card.bandwidth
        return self.share / samples * self.costs.seconds(samples, self.every) / REACHED + optimizer

    def exchange(self, stage: int | None) -> float:
        """Seconds of a step that the network between nodes takes for gradients and parameters.

        Stages 1 and 2 sum whole gradients up and gather the parameters, stage 2 those of each micro-batch; stage 3
        keeps a share of the gradients of each micro-batch, and gathers the parameters for it twice.
        """
        nodes = self.cluster.nodes
        if nodes == 1:
            return 0.0
        micro_batches = self.share // max(1, self.largest(stage))
        gradient = self._gradient_itemsize(stage)
        of_a_parameter = {
            1: 2 * gradient + self.itemsize,
            2: 2 * gradient * micro_batches + self.itemsize,
            3: (gradient + 2 * self.itemsize) * micro_batches,
        }
        moved = of_a_parameter.get(stage, 2 * gradient) * self.size.parameters * (nodes - 1) / nodes
        return moved / (self.cluster.network * 1e9 / 8)


def make_plan(configuration: RunConfiguration, cluster: Cluster, sequence_length: int | None) -> Plan:
    """Count a run on a cluster.

    Args:
        sequence_length: in place of that of the data, which need not be here then.

    Raises:
        UserError: whatever training would refuse of the model and the batch; or nothing says how long samples are.
    """
    name, batch = configuration.objective.name, configuration.batch
    if batch.samples % cluster.ranks:
        lower = batch.samples // cluster.ranks * cluster.ranks
        raise UserError(
            f"batch.samples {batch.samples} does not divide into {cluster.ranks} GPUs: choose a multiple of "
            f"{cluster.ranks}, e.g. {lower or cluster.ranks}"
        )
    if FROM in configuration.model:
        raise UserError("model.from is set: plan the run with the fields of that model's config.json in its place")
    precision = configuration.precision
    if precision == "auto":
        precision = "bf16" if cluster.card.has_bf16 else "fp16"
    if cluster.card.peak(precision) is None:
        raise UserError(f"precision is {precision}, which a {cluster.card.name} has no arithmetic for: fp16 or fp32")
    manifest = _manifest(configuration, sequence_length)
    length = manifest.sequence_length
    config = model_configuration(configuration, manifest, auto_class(name))
    size = measure(config, auto_class(name))
    objective = make_objective(configuration.objective, 0, manifest, None, configuration.eval.mask_probability)
    samples = max(1, min(batch.micro_batch, batch.samples // cluster.ranks))
    costs = costs_of_run(configuration, config, objective, manifest, precision, cluster.card, length, samples)
    items = objective.items(full_micro_batch(manifest, objective, length, 1, is_ragged=False))
    flops = batch.samples * count_flops(config, auto_class(name), length).of_training(length, items)
    kept = kept_of_optimizer(configuration.optim.name, size)
    return Plan(configuration, cluster, precision, size, costs, flops, length, kept)


def _manifest(configuration: RunConfiguration, sequence_length: int | None) -> Manifest:
    """That of the data if it is here; else one of tokens like those of the model."""
    path, stored = configuration.data.sources()[0].path, planned_data(configuration, sequence_length)
    if stored is None:
        vocabulary = configuration.model["vocab_size"]
        special = min(4, vocabulary - 1)
        return Manifest(
            split="train", split_rule="planned", columns={TOKEN_IDS: LIST_INT32}, vocab_size=vocabulary,
            pad_token_id=0, mask_token_id=special - 1, special_token_ids=list(range(special)),
            sequence_length=sequence_length,
        )  # fmt: skip
    manifest = manifest_seen(path, stored, configuration.objective)
    if sequence_length is None:
        if manifest.sequence_length is None:
            raise UserError(f"{path} does not say how long its samples are: name it with --sequence-length N")
        return manifest
    if sequence_length != manifest.sequence_length and configuration.objective.input_length is not None:
        raise UserError(
            f"--sequence-length is {sequence_length}, but samples are as long as objective.input_length says, "
            f"{manifest.sequence_length}: change that"
        )
    return replace(manifest, sequence_length=sequence_length)


def costs_of_run(
    configuration: RunConfiguration,
    config: transformers.PreTrainedConfig,
    objective: Objective,
    manifest: Manifest,
    precision: str,
    card: Card,
    length: int,
    samples: int,
) -> ModelCosts:
    """What passes of a run keep and take; samples of one document and of `length` tokens, in micro-batches of about
    `samples`."""
    columns = {key: column for key, column in manifest.columns.items() if key != DOCUMENT_STARTS}
    manifest = replace(manifest, columns=columns)

    def losses(samples: int) -> Callable[[torch.nn.Module], torch.Tensor]:
        batch = full_micro_batch(manifest, objective, length, samples, is_ragged=False)
        return lambda model: objective.forward(model, batch, max(1, objective.items(batch)))[0]

    is_cast = configuration.deepspeed is None
    return count_costs(config, objective.auto_class, losses, length, precision, card, is_cast, samples)


# The report.


def report(configuration: RunConfiguration, cluster: Cluster, sequence_length: int | None) -> str:
    """The plan of a run as text."""
    plan = make_plan(configuration, cluster, sequence_length)
    card, size, batch = cluster.card, plan.size, configuration.batch
    name = configuration.deepspeed
    own = None if name is None else deepspeed_file.stage_of(deepspeed_file.read(name))
    stages = (0, 1, 2, 3) if name is None or name in SHIPPED_DEEPSPEED else (own,)
    best = plan.largest(own)
    lines = [
        ("model", f"{size.model.config.model_type}, {size.parameters:,} parameters "
                  f"({size.parameters - size.embeddings:,} outside embeddings), in {plan.precision}"),
        ("GPUs", f"{cluster.nodes} x {cluster.gpus} {card.name}: {about_bytes(card.memory)}, "
                 f"{card.peak(plan.precision) / 1e12:,.0f} TFLOP/s, {card.bandwidth / 1e9:,.0f} GB/s each "
                 f"(NVIDIA's data sheet: {card.sheet})"),
        ("batch", f"{batch.samples:,} samples of {plan.length:,} tokens, {plan.share:,} of them on each GPU"),
    ]  # fmt: skip
    rows = [("ZeRO stage", "states", "buffers", "kept by 1 sample", "largest micro-batch")]
    for stage in (None,) if name is None else stages:
        named = "none" if stage is None else f"{stage}{' (this run)' if stage == own else ''}"
        largest = plan.largest(stage)
        told = f"{largest} ({about_bytes(plan.needed(stage, largest))})" if largest else "none fits"
        kept = plan.costs.kept(2, plan.every) - plan.costs.kept(1, plan.every)
        rows.append((named, *map(about_bytes, (plan.states(stage), plan.buffers(stage), kept)), told))
    told = [*(f"{key:<8}{text}" for key, text in lines), "", *in_columns(rows), ""]
    return "\n".join([*told, *_time(plan, own, best), *_notes()])


def _time(plan: Plan, stage: int | None, samples: int) -> list[str]:
    """Lines on the time of a run with the largest micro-batch that fits."""
    if not samples:
        return ["no micro-batch fits: take a higher stage, more GPUs, run.gradient_checkpointing, or shorter samples"]
    optim, cluster = plan.configuration.optim, plan.cluster
    step, exchange = plan.step(samples, stage), plan.exchange(stage)
    # The backward pass is two thirds of the time, and hides what is exchanged meanwhile.
    seconds = max(step, step / 3 + exchange)
    tokens = plan.configuration.batch.samples * plan.length
    share = plan.flops / (seconds * cluster.ranks * cluster.card.peak(plan.precision))
    return [
        f"a step   {about_time(seconds)} with micro-batches of {samples}: passes and optimizer {step:.3g} s"
        + (f", exchange {exchange:.3g} s, partly at the same time" if exchange else ""),
        f"a day    {about_count(86400 / seconds * tokens)} tokens ({share:.0%} of the GPUs' peak)",
        f"the run  {optim.max_steps:,} steps, {about_count(optim.max_steps * tokens)} tokens: "
        f"{about_time(optim.max_steps * seconds)}",
        "",
    ]


def _notes() -> list[str]:
    return [
        "counted: parameters, states, buffers, what a forward pass keeps, what passes move and compute",
        f"assumed: tensors may take {USABLE:.0%} of the memory, kernels reach {REACHED:.0%} of the data sheet's speed, "
        "the backward pass hides exchanges",
        "a run says what is true: mfu and gpu_memory_gib in its metrics",
    ]

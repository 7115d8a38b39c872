"""DeepSpeed's JSON file: `"auto"` values filled from the run file, contradictions with it found.

The file is the user's own; the shipped ones (zero0 to zero3) stand in configs/deepspeed.
"""

import copy
import json
import re
from importlib import resources
from typing import Any

from longmix.data_prep.errors import UserError

from .configuration import SHIPPED_DEEPSPEED, RunConfiguration, flatten
from .optimizers import OPTIMIZERS

# Bounds on a bucket in elements: below the lower one launches dominate, above the upper one memory does.
_SMALLEST_BUCKET, _LARGEST_BUCKET = 10**6, 5 * 10**8

# Key of DeepSpeed's file -> key of the run file that says the same, and its value there.
_SOURCES = {
    "train_batch_size": ("batch.samples", lambda run, *_: run.batch.samples),
    "train_micro_batch_size_per_gpu": ("batch.micro_batch", lambda run, *_: run.batch.micro_batch),
    "gradient_accumulation_steps": (
        "batch.samples / (batch.micro_batch x processes)",
        lambda run, precision, processes: run.batch.samples // (run.batch.micro_batch * processes),
    ),
    "gradient_clipping": ("optim.grad_clip", lambda run, *_: run.optim.grad_clip or 0.0),
    "bf16.enabled": ("precision", lambda run, precision, _: precision == "bf16"),
    "fp16.enabled": ("precision", lambda run, precision, _: precision == "fp16"),
    "optimizer.params.lr": ("optim.lr", lambda run, *_: run.optim.lr),
    "optimizer.params.betas": ("optim.betas", lambda run, *_: run.optim.betas),
    "optimizer.params.eps": ("optim.eps", lambda run, *_: run.optim.eps),
    "optimizer.params.weight_decay": ("optim.weight_decay", lambda run, *_: run.optim.weight_decay),
}
# Key -> share of the bucket size.
_SIZED = {
    "zero_optimization.reduce_bucket_size": 1.0,
    "zero_optimization.allgather_bucket_size": 1.0,
    "zero_optimization.stage3_prefetch_bucket_size": 0.5,
}
# Parts of the file that are maps -> whether they must be: else null says the same as leaving them out.
_MAPS = {
    "optimizer": True,
    "optimizer.params": True,
    "fp16": True,
    "bf16": True,
    "zero_optimization": True,
    "zero_optimization.offload_optimizer": False,
    "zero_optimization.offload_param": False,
}
_PERSISTENCE = "zero_optimization.stage3_param_persistence_threshold"


# Reading the file, and the few questions that others ask of it.


def read(name: str) -> dict[str, Any]:
    """A shipped file by its name, or the user's own by its path."""
    if name in SHIPPED_DEEPSPEED:
        return json.loads(resources.files("longmix.configs").joinpath(f"deepspeed/{name}.json").read_text())
    try:
        with open(name, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        raise UserError(f"deepspeed: {name} is not a readable JSON file: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"deepspeed: {name} must hold a JSON object")
    return values


def stage_of(values: dict[str, Any]) -> int:
    return values.get("zero_optimization", {}).get("stage", 0)


def compiles_optimizer(values: dict[str, Any]) -> bool:
    """Whether DeepSpeed compiles its own CPU Adam: for an offloaded optimizer that is not to be torch's."""
    return offloads(values) and not _optimizer_parameters(values).get("torch_adam", False)


def offloads(values: dict[str, Any]) -> bool:
    section = values.get("zero_optimization", {}).get("offload_optimizer") or {}
    return section.get("device", "none") != "none"


def _optimizer_parameters(values: dict[str, Any]) -> dict[str, Any]:
    return values.get("optimizer", {}).get("params", {})


# Checks: DeepSpeed would follow its own file without a word where it contradicts the run file.


def check(configuration: RunConfiguration, precision: str, world_size: int) -> None:
    """Raise one UserError that lists every contradiction between the JSON file and the run file."""
    name = configuration.deepspeed
    nested = read(name)
    found = _drop_no_maps(nested, name)
    values = flatten(nested)
    wanted = {key: value(configuration, precision, world_size) for key, (_, value) in _SOURCES.items()}
    found += [
        f'{key} is {values[key]!r} in {name}, but {wanted[key]!r} by the run file ({source}); write "auto" there'
        for key, (source, _) in _SOURCES.items()
        if key in values and values[key] != "auto" and values[key] != wanted[key]
    ]
    ours = configuration.optim.name
    kinds = [kind.lower() for kind in OPTIMIZERS[ours].deepspeed]
    if str(values.get("optimizer.type", kinds[0])).lower() not in kinds:
        found.append(f"optimizer.type is {values['optimizer.type']!r} in {name}; the run file's optim.name is {ours}")
    # What longmix's AdamW does anyway; DeepSpeed's own Adam runs where the optimizer is offloaded.
    meant = {"adam_w_mode": (True,), "torch_adam": (True, False) if offloads(nested) else (True,)}
    found += [
        f"optimizer.params.{key} is {value!r} in {name}, which the run file has no key for; remove it"
        for key, value in _optimizer_parameters(nested).items()
        if f"optimizer.params.{key}" not in _SOURCES and value not in meant.get(key, ())
    ]
    if "scheduler" in nested:
        found.append(f"scheduler stands in {name}, but optim.schedule in the run file sets it; remove the section")
    stage = values.get("zero_optimization.stage", 0)
    if type(stage) is not int or stage not in (0, 1, 2, 3):
        found.append(f"zero_optimization.stage is {stage!r} in {name}; allowed: 0, 1, 2, 3")
    if values.get("bf16.check_grad_overflow") is False:
        found.append(
            f"bf16.check_grad_overflow is False in {name}, but a step that is not finite is dropped; remove it"
        )
    if values.get("bf16.enabled") is True and values.get("fp16.enabled") is True:
        found.append(f"bf16 and fp16 are both enabled in {name}; enable at most one")
    known = [*_SOURCES, *_SIZED, _PERSISTENCE]
    # What is wrong with an optimizer, a scheduler or a stage has been said.
    told = re.compile(r"(optimizer|scheduler)\.|zero_optimization\.stage$")
    unfilled = [key for key, value in values.items() if value == "auto" and key not in known and not told.match(key)]
    if unfilled:
        found.append(
            f'{", ".join(unfilled)} is "auto" in {name}, which cannot be filled; '
            f'"auto" is understood for {", ".join(known)}'
        )
    if found:
        raise UserError("; ".join(found))


def _drop_no_maps(nested: dict[str, Any], name: str) -> list[str]:
    """Take out of `nested` what should be a map and is none; what is wrong with it."""
    found = []
    for key, must in _MAPS.items():
        *parents, last = key.split(".")
        section = nested
        for parent in parents:
            section = section.get(parent, {})
        if last in section and not isinstance(section[last], dict):
            value = section.pop(last)
            if must or value is not None:
                found.append(f"{key} is {json.dumps(value)} in {name}, but takes a map in braces")
    return found


# Filling: every "auto" of the file gets its value, and what DeepSpeed must be told in any case is added.


def fill(configuration: RunConfiguration, precision: str, world_size: int, parameters: int) -> dict[str, Any]:
    """The JSON object for `deepspeed.initialize`; call `check` first.

    Bucket sizes come from the parameter count: DeepSpeed's default allocates 2 GB for any model.
    """
    values = copy.deepcopy(read(configuration.deepspeed))
    wanted = {key: value(configuration, precision, world_size) for key, (_, value) in _SOURCES.items()}
    bucket = max(_SMALLEST_BUCKET, min(_LARGEST_BUCKET, parameters // 2))
    wanted |= {key: int(share * bucket) for key, share in _SIZED.items()}
    # Small tensors (biases, norms) stay whole on every rank at stage 3.
    wanted[_PERSISTENCE] = 10_000
    # The optimizer is made by the engine; only an offloaded one is made by DeepSpeed.
    torch_adam = _optimizer_parameters(values).get("torch_adam", False)
    values.pop("optimizer", None)
    if offloads(values):
        kind = OPTIMIZERS[configuration.optim.name].deepspeed[0]
        values["optimizer"] = {"type": kind, "params": {"torch_adam": torch_adam}}
    for key, value in wanted.items():
        *parents, last = key.split(".")
        if parents[:1] != ["optimizer"] or "optimizer" in values:
            section = values
            for parent in parents:
                section = section.setdefault(parent, {})
            if section.get(last, "auto") == "auto" and (key in _SOURCES or last in section):
                section[last] = value
    if values["bf16"]["enabled"]:
        # DeepSpeed drops a step with NaN gradients in bf16 only when asked to look.
        values["bf16"].setdefault("check_grad_overflow", True)
    values.setdefault("steps_per_print", 2**31)
    return values

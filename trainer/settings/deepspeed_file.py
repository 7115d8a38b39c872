"""DeepSpeed's JSON file: `"auto"` values filled from the run file, contradictions with it found.

The file is the user's own; the shipped ones (zero0 to zero3) stand in configs/deepspeed.
"""

import copy
import json
import re
from importlib import resources
from typing import Any

from longmix.data_prep.errors import UserError, reason_of
from longmix.data_prep.state_files import unique_keys
from longmix.kernels.common.safe_files import read_input

from .configuration import SHIPPED_DEEPSPEED, RunConfiguration, flatten
from .optimizers import OPTIMIZERS

# Elements of a bucket: an eighth of the parameters, so that the exchange of one hides behind the backward pass of the
# next; below the lower bound launches dominate, above the upper one memory does.
_SMALLEST_BUCKET, _USUAL_BUCKET, _LARGEST_BUCKET = 10**6, 25 * 10**6, 50 * 10**6

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
    "bfloat16": True,
    "data_types": True,
    "torch_autocast": True,
}
_PERSISTENCE = "zero_optimization.stage3_param_persistence_threshold"
# DeepSpeed's names of the types that a run file's precision stands for.
_TYPES = {
    "fp32": ("fp32", "float32", "float", "torch.float32"),
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "fp16": ("fp16", "float16", "half", "torch.float16"),
}
# Keys at the top of DeepSpeed's file, by its 0.19: tests compare them with those that the installed one asks for. It
# reads over any other without a word.
# fmt: off
TOP_KEYS = frozenset((
    "activation_checkpointing", "aio", "amp", "autotuning", "bf16", "bfloat16", "checkpoint", "comet", "comms_logger",
    "communication_data_type", "compile", "compression_training", "csv_monitor", "curriculum_learning",
    "data_efficiency", "data_parallel_size", "data_types", "dataloader_drop_last", "datastates_ckpt",
    "disable_allgather", "disable_python_gc", "dump_state", "eigenvalue", "elasticity", "expert_parallel",
    "flops_profiler", "fp16", "gradient_accumulation_steps", "gradient_allreduce_op", "gradient_clipping",
    "gradient_predivide_factor", "graph_harvesting", "hybrid_engine", "log_level", "managed_gradient_accumulation",
    "memory_breakdown", "nebula", "optimizer", "pipeline", "prescale_gradients", "progressive_layer_drop",
    "quantize_training", "scheduler", "seq_parallel_communication_data_type", "sequence_parallel_size",
    "sparse_attention", "sparse_gradients", "steps_per_print", "tensor_parallel", "tensorboard", "timers",
    "torch_autocast", "train_batch_size", "train_micro_batch_size_per_gpu", "use_data_before_expert_parallelism",
    "vocabulary_size", "wall_clock_breakdown", "wandb", "weight_quantization", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "zero_optimization",
))
# fmt: on
# Real files have a few KiB, and maps within maps within maps.
_MOST_BYTES, _MOST_LEVELS = 2**20, 20


# Reading the file, and the few questions that others ask of it.


def read(name: str) -> dict[str, Any]:
    """A shipped file by its name, or the user's own by its path."""
    if name in SHIPPED_DEEPSPEED:
        return json.loads(resources.files("longmix.configs").joinpath(f"deepspeed/{name}.json").read_text())
    try:
        values = json.loads(read_input(name, _MOST_BYTES).decode(), object_pairs_hook=unique_keys)
        _refuse_deep(values, _MOST_LEVELS)
    except RecursionError:
        raise UserError(f"deepspeed: {name} is not a readable JSON file: its values are nested too deeply") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or reason_of(error)
        raise UserError(f"deepspeed: {name} is not a readable JSON file: {reason}") from None
    if not isinstance(values, dict):
        raise UserError(f"deepspeed: {name} must hold a JSON object")
    return values


def _refuse_deep(values: Any, levels: int) -> None:
    if isinstance(values, dict | list):
        if levels == 0:
            raise ValueError(f"its values are nested too deeply (more than {_MOST_LEVELS} levels)")
        for value in values.values() if isinstance(values, dict) else values:
            _refuse_deep(value, levels - 1)


def unknown_keys(values: dict[str, Any]) -> list[str]:
    """The keys at its top that DeepSpeed does not know, and reads over."""
    return [key for key in values if key not in TOP_KEYS]


def unusual_keys(values: dict[str, Any]) -> list[str]:
    """The keys that no shipped file has: what a refusal of DeepSpeed's is likely about."""
    usual = {key for name in SHIPPED_DEEPSPEED for key in flatten(read(name))}
    return [key for key in flatten(values) if key not in usual]


def gradients_of(values: dict[str, Any], precision: str) -> str:
    """What gradients are summed up in over micro-batches and ranks, by a filled file."""
    return "fp32" if values.get("data_types", {}).get("grad_accum_dtype") in _TYPES["fp32"] else precision


def sums_in_fp32(stage: int, offloaded: bool) -> bool:
    """Whether DeepSpeed can sum gradients in 16 bits up in fp32. At stages 1 and 2 an optimizer that is offloaded finds
    NaN where they should be."""
    return stage == 3 or (stage in (1, 2) and not offloaded)


def stage_of(values: dict[str, Any]) -> int:
    section = values.get("zero_optimization", {})
    return section.get("stage", 0) if isinstance(section, dict) else 0


def compiles_optimizer(values: dict[str, Any]) -> bool:
    """Whether DeepSpeed compiles its own CPU Adam: for an offloaded optimizer that is not to be torch's."""
    return offloads(values) and not _optimizer_parameters(values).get("torch_adam", False)


def offloads(values: dict[str, Any]) -> bool:
    section = values.get("zero_optimization", {}).get("offload_optimizer") or {}
    return section.get("device", "none") != "none"


def keeps_plain_shares(values: dict[str, Any]) -> bool:
    """Whether ranks keep their shares of parameters in memory, and exchange them as they are: a share on a disk keeps
    the type that it was written in, and what is exchanged in 8 bits is not what is kept."""
    section = values.get("zero_optimization", {})
    on_disk = (section.get("offload_param") or {}).get("device") == "nvme"
    return not (on_disk or section.get("zero_quantized_weights") or section.get("zero_quantized_nontrainable_weights"))


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
    section = nested.get("zero_optimization", {})
    moved = [part for part in ("offload_optimizer", "offload_param") if section.get(part)]
    if moved and not OPTIMIZERS[ours].offloads:
        keys = " and ".join(f"zero_optimization.{part}" for part in moved)
        found.append(
            f"{keys} stands in {name}, but optim.name {ours} is not DeepSpeed's own and stays on the device: remove "
            "it, or set optim.name=adamw"
        )
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
    if stage == 3 and configuration.run.compile is True:
        found.append(
            f"run.compile is true, but at ZeRO stage 3 of {name} a graph of the whole model finds its parameters gone: "
            "set it to layer, or to false"
        )
    found += _contradictions_of_precision(values, precision, name)
    for key, only in (("gradient_allreduce_op", "mean"), ("managed_gradient_accumulation", True)):
        if values.get(key, only) != only:
            found.append(f"{key} is {values[key]!r} in {name}, but a batch is a mean over all of it; remove it")
    printed = values.get("steps_per_print", 1)
    if printed is not None and (type(printed) is not int or printed < 1):
        found.append(f"steps_per_print is {printed!r} in {name}, but takes a whole number from 1 on")
    found += [
        f"{key} is False in {name}, but a step that is not finite is dropped; remove it"
        for key in ("bf16.check_grad_overflow", "zero_optimization.compute_grad_norm")
        if values.get(key) is False
    ]
    if values.get("bf16.enabled") is True and values.get("fp16.enabled") is True:
        found.append(f"bf16 and fp16 are both enabled in {name}; enable at most one")
    known = [*_SOURCES, *_SIZED, _PERSISTENCE]
    # What is wrong with these has been said; keep_in_fp32_modules of data_types takes "auto" itself.
    told = re.compile(
        r"(optimizer|scheduler)\.|zero_optimization\.stage$|communication_data_type$|data_types\.|torch_autocast\.|"
        r"bfloat16\.|gradient_allreduce_op$|managed_gradient_accumulation$|steps_per_print$"
    )
    unfilled = [key for key, value in values.items() if value == "auto" and key not in known and not told.match(key)]
    if unfilled:
        found.append(
            f'{", ".join(unfilled)} is "auto" in {name}, which cannot be filled; '
            f'"auto" is understood for {", ".join(known)}'
        )
    if found:
        raise UserError("; ".join(found))


def _contradictions_of_precision(values: dict[str, Any], precision: str, name: str) -> list[str]:
    """Keys that choose a type of their own: that of the run file's precision agrees with it, and mostly fp32."""
    own, wide = _TYPES[precision], _TYPES["fp32"]
    stage = values.get("zero_optimization.stage", 0)
    offloaded = values.get("zero_optimization.offload_optimizer.device", "none") != "none"
    agreeing = {
        "communication_data_type": (*own, *wide),
        "data_types.param_dtype": own,
        "data_types.buffer_dtype": (*own, *wide),
        "data_types.grad_accum_dtype": (*own, *wide) if sums_in_fp32(stage, offloaded) else own,
    }
    if values.get("torch_autocast.enabled", False) is not False:
        agreeing["torch_autocast.dtype"] = own
        values = {"torch_autocast.dtype": None, **values}
    found = [
        f"{key} is {values[key]!r} in {name}, but precision is {precision} by the run file; remove it"
        for key, allowed in agreeing.items()
        if key in values and values[key] not in allowed and (values[key] is not None or key == "torch_autocast.dtype")
    ]
    if values.get("bfloat16.enabled", precision == "bf16") not in ("auto", precision == "bf16"):
        found.append(
            f"bfloat16.enabled is {values['bfloat16.enabled']!r} in {name}, but precision is {precision} by the run "
            "file; remove it"
        )
    return found


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


def fill(
    configuration: RunConfiguration, precision: str, world_size: int, parameters: int, gradients: str = "fp32"
) -> dict[str, Any]:
    """The JSON object for `deepspeed.initialize`; call `check` first.

    Bucket sizes come from the parameter count: DeepSpeed's default allocates 2 GB for any model.

    Args:
        gradients: what a bf16 run sums its gradients up in over micro-batches and ranks, where the file does not say
            so and DeepSpeed can: fp32, or bf16 in runs of earlier versions.
    """
    values = copy.deepcopy(read(configuration.deepspeed))
    wanted = {key: value(configuration, precision, world_size) for key, (_, value) in _SOURCES.items()}
    bucket = max(parameters // 8, min(parameters // 2, _USUAL_BUCKET))
    bucket = min(max(bucket, _SMALLEST_BUCKET), _LARGEST_BUCKET)
    bucket -= bucket % 2  # stages 1 and 2 refuse an odd allgather_bucket_size
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
        if sums_in_fp32(stage_of(values), offloads(values)):
            types = values.setdefault("data_types", {})
            types["grad_accum_dtype"] = types.get("grad_accum_dtype") or gradients
            values["communication_data_type"] = values.get("communication_data_type") or types["grad_accum_dtype"]
    values.setdefault("steps_per_print", 2**31)
    # It waits for the GPU at every forward pass and step, for a speed that nobody reads.
    values.setdefault("timers", {"throughput": {"enabled": False}})
    return values

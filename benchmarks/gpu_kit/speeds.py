"""Stage 2: the time of blocks, operations and attentions, of each in every way that computes the same."""

import contextlib
import dataclasses

import torch
from gpu_kit import contestants, timers
from gpu_kit.processes import NotHereError
from gpu_kit.records import Measurement, Records
from gpu_kit.setting import BASELINE, Setting, clocks
from kernel.cases import Size, operations_of
from kernel.gate import TOLERANCES, WrongResultError, errors_of, truth_of
from kernel.kinds import Operation, using
from measuring import Competitor, peak_memory

from longmix.kernels.selection import obstacle
from longmix.modeling import MODEL_TYPES, model_class

# Seconds of calls for each figure.
BUDGET, QUICK_BUDGET = 0.3, 0.02
# Portable PyTorch may be so far from the truth in half precision; the others twice as far as it, or within TOLERANCES.
FARTHEST = 0.2
KERNELS = {
    BASELINE: "rotary_heads",
    "converter": "token_givens_mix",
    "paramixer": "link_mix",
    "wavspa": "wavelet_analysis",
    "flt": "random_feature_attention",
    "s3attention": "spectral_filter",
}
COMPILE_SECONDS = 240
# The length at which all is checked: float64 is fast there, none of the ways must pad it, and Triton's programs are
# those that are timed, of attentions in several pieces of rows. Stage 1 has the odd lengths.
SHORT = 256


def plan(setting: Setting, records: Records, seconds: float) -> list[Measurement]:
    """What tells most first: the mixers beside the transformer at every length, with packed documents too, the
    transformer also as torch compiles it; then everything else, length by length."""
    isolating = [model for model in MODEL_TYPES if model_class(model, "Model").mixer_class.isolates_documents]
    found = [
        _block(length, model, "kernels", documents)
        for documents, models in ((False, MODEL_TYPES), (True, isolating))
        for length in setting.lengths
        for model in models
    ]
    if not setting.quick:
        found += [_compiling(length, BASELINE) for length in setting.lengths]  # side by side, then timed one by one
        found += [_block(length, BASELINE, "compiled") for length in setting.lengths]
    mixers = [model for model in MODEL_TYPES if model != BASELINE]
    for length in setting.lengths:
        found += [_attention(length, way, False) for way in contestants.WAYS if _is_tried(setting, way)]
        found += [_block(length, model, "portable") for model in MODEL_TYPES]
        if not setting.quick:
            found += [_compiling(length, model) for model in mixers]
            found += [_block(length, model, "compiled") for model in mixers]
        found += [_block(length, model, "portable", True) for model in isolating]
        found += [_attention(length, way, True) for way in contestants.WAYS if _is_tried(setting, way)]
        ways = ("portable", "kernels") if setting.quick else ("portable", "kernels", "compiled")
        found += [_operation(length, name, way) for way in ways for name in operations_of(Size())]
        found.append(_operation(length, "linear_attention-causal", "fla"))
    return _once(setting, found)


def _once(setting: Setting, found: list[Measurement]) -> list[Measurement]:
    """All; on a trial, the first of every kind and way: enough to see that each runs."""
    if not setting.quick:
        return found
    kinds = {}
    for one in found:
        is_mixer = one.arguments.get("model", BASELINE) != BASELINE
        kinds.setdefault((one.job, one.arguments["way"], one.arguments.get("documents"), is_mixer), one)
    return list(kinds.values())


def _is_tried(setting: Setting, way: str) -> bool:
    return setting.device == "cuda" or way in ("sdpa flash", contestants.PLAIN)


def _block(length: int, model: str, way: str, documents: bool = False) -> Measurement:
    key = f"2/block/{model}{'-documents' if documents else ''}/{length}/{way}"
    arguments = {"model": model, "length": length, "way": way, "documents": documents}
    return Measurement(
        key, "gpu_kit.speeds:time_block", arguments, seconds=90 if way == "portable" else COMPILE_SECONDS
    )


def _compiling(length: int, model: str) -> Measurement:
    arguments = {"model": model, "length": length, "way": "compiling"}
    key = f"2/compiling/{model}/{length}"
    return Measurement(key, "gpu_kit.speeds:compile_block", arguments, seconds=COMPILE_SECONDS, alone=False)


def _attention(length: int, way: str, documents: bool) -> Measurement:
    key = f"2/attention{'-documents' if documents else ''}/{length}/{way.replace(' ', '-')}"
    arguments = {"length": length, "way": way, "documents": documents}
    return Measurement(
        key, "gpu_kit.speeds:time_attention", arguments, seconds=COMPILE_SECONDS if way == "flex" else 60
    )


def _operation(length: int, name: str, way: str) -> Measurement:
    arguments = {"name": name, "length": length, "way": way}
    seconds = 60 if way == "portable" else COMPILE_SECONDS
    return Measurement(
        f"2/operation/{name}/{length}/{way}", "gpu_kit.speeds:time_operation", arguments, seconds=seconds
    )


# -----------------------------------------------------------------------------
# The measurements. Each checks what it times.


def compile_block(setting: Setting, model: str, length: int, way: str) -> dict[str, object]:
    """What torch compiles for `time_block`, to its cache on the disk."""
    case = contestants.Block(model, f"{model}_{setting.size}", setting.tokens // length, compiled=True)
    with using("portable"):
        prepared = case.prepare(length, torch.device(setting.device), getattr(torch, setting.half))
        prepared.gradients()
        prepared.forward()
    return {}


def time_block(setting: Setting, model: str, length: int, way: str, documents: bool) -> dict[str, object]:
    """A block of a base model on a batch of `setting.tokens`."""
    if way == "kernels":
        _require_kernels(setting, (KERNELS[model],))
    plain = contestants.Block(model, f"{model}_{setting.size}", setting.tokens // length, documents)
    implementation = setting.kernels if way == "kernels" else "portable"
    if way == "compiled":
        # Checked as it is timed: another shape would be compiled anew.
        case = dataclasses.replace(plain, compiled=True)
        found = _time(setting, case, case, plain, length, implementation, length)
    else:
        small = dataclasses.replace(plain, batch=2)
        found = _time(setting, plain, small, small, length, implementation, min(length, SHORT))
    return {**found, "blocks": plain.blocks}


def time_attention(setting: Setting, length: int, way: str, documents: bool) -> dict[str, object]:
    """Softmax attention of 12 heads by itself."""
    heads, batch = (2, 1) if setting.quick else (12, setting.tokens // length)
    short = min(length, SHORT)
    case = contestants.attention(way, batch, heads, length, documents)
    small, plain = (contestants.attention(name, 1, heads, short, documents) for name in (way, contestants.PLAIN))
    return _time(setting, case, small, plain, length, "portable", short)


def time_operation(setting: Setting, name: str, length: int, way: str) -> dict[str, object]:
    """An operation at the width of a base model."""
    sizes = (64, 2) if setting.quick else (768, 12)
    case, small = (operations_of(Size(batch, *sizes))[name] for batch in (max(1, setting.tokens // length), 2))
    plain, short = small, min(length, SHORT)
    implementation = setting.kernels if way == "kernels" else "portable"
    if way == "kernels":
        _require_kernels(setting, case.operations)
    if way == "compiled":
        case = small = dataclasses.replace(case, apply=torch.compile(case.apply, dynamic=False))
        plain, short = operations_of(Size(case.batch, *sizes))[name], length
    if way == "fla":
        case, small = contestants.fla(case), contestants.fla(small)
    return _time(setting, case, small, plain, length, implementation, short)


def _require_kernels(setting: Setting, operations: tuple[str, ...]) -> None:
    for operation in operations:
        reason = obstacle(operation, setting.kernels, setting.device)
        if reason is not None:
            raise NotHereError(f"{operation}: {reason}")


def _time(
    setting: Setting,
    case: Operation | contestants.Block,
    small: Operation | contestants.Block,
    plain: Operation | contestants.Block,
    length: int,
    implementation: str,
    short: int,
) -> dict[str, object]:
    """Check `small` against `plain` in float64 and time `case`: "forward" and "both" in milliseconds, "graph", which is
    "both" without waiting for the CPU, or None where a graph cannot hold it; "launches" of "both"; memory in MB.

    Raises:
        WrongResultError: what would be timed computes something else.
    """
    device, dtype = torch.device(setting.device), getattr(torch, setting.half)
    worst = _check(small, plain, implementation, short, device, dtype)
    prepared = case.prepare(length, device, dtype)
    with using(implementation):
        timer = timers.make_timer(setting.device)
        memory = None
        prepared.gradients()
        if setting.device == "cuda":
            memory = peak_memory(Competitor(case.name, prepared.gradients), device) / 1e6
        budget = QUICK_BUDGET if setting.quick else BUDGET
        before = clocks()
        forward = timers.timed(prepared.forward, timer, budget)
        both = timers.timed(prepared.gradients, timers.make_timer(setting.device), budget)
        graph, launches = None, []
        if setting.device == "cuda":
            with contextlib.suppress(RuntimeError):  # a cluster may keep its users from profiling
                launches = timers.launched(prepared.gradients)
            with contextlib.suppress(RuntimeError):
                graph = timers.timed(timers.captured(prepared.gradients), timers.make_timer(setting.device), budget)
    return {
        "forward": forward,
        "both": both,
        "graph": graph,
        "launches": launches,
        "memory": memory,
        "error": worst,
        "batch": case.batch,
        "dtype": setting.half,
        "clocks": [before, clocks()],
    }


def _check(
    small: Operation | contestants.Block,
    plain: Operation | contestants.Block,
    implementation: str,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> float:
    """The largest error; allowed is what `gate` allows, or twice the error of plain PyTorch, which is bounded too.

    The truth is in float64, which a whole batch has no memory for: what is checked as it is timed has it in fp32.
    """
    exact = torch.float64 if length <= SHORT else torch.float32
    truth = truth_of(plain, length, device, dtype, exact)
    errors = errors_of(small, implementation, length, device, dtype, truth)
    ordinary = errors_of(plain, "portable", length, device, dtype, truth)
    for index, (error, usual) in enumerate(zip(errors, ordinary, strict=True)):
        allowed = min(FARTHEST, max(TOLERANCES[dtype][min(index, 1)], 2 * usual))
        if not error <= allowed:  # a NaN is wrong too
            what = f"gradient {index}" if index else "result"
            raise WrongResultError(
                f"{small.name}, {implementation}: the {what} is off by {error:.1e}; allowed: {allowed:.1e}"
            )
    return max(errors)

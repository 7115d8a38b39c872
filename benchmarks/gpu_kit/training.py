"""Stage 3: whole models of 110 million parameters in `longmix train`."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

import commands
import torch
from gpu_kit.processes import one_line
from gpu_kit.records import Measurement, Records
from gpu_kit.setting import CONFIGS, TRACE, Setting, clocks
from record import quantile
from samples.random_tokens import write_samples

from longmix.modeling import MODEL_TYPES

# BERT's vocabulary has about as many pieces; with it the base models have 110 million parameters.
VOCABULARY, QUICK_VOCABULARY = 30000, 500
# Steps of a run: those that are timed stand between the first ones and those that are watched.
WARM, TIMED, WATCHED = 6, 12, 3
QUICK_STEPS = (1, 2, 1)
# A trace of more bytes is left out.
LARGEST_TRACE = 15 << 20
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
# The one whose trace is kept, and that is killed: a mixer with kernels and buffers.
SHOWN = "paramixer"


def plan(setting: Setting, records: Records, seconds: float) -> list[Measurement]:
    """All models with the usual engine first; a kill; then other engines and fp16."""
    first, *others = setting.engines
    half = setting.half
    limit = 180
    found = [_speed(setting, model, half, first, limit) for model in MODEL_TYPES]
    found.append(
        Measurement(
            f"3/resume/{SHOWN}/{first}", "gpu_kit.training:resume", {"model": SHOWN, "engine": first}, seconds=300
        )
    )
    if setting.cards > 1:
        found += [
            Measurement(
                f"3/cards/{model}/{first}", "gpu_kit.training:cards", {"model": model, "engine": first}, seconds=300
            )
            for model in MODEL_TYPES
        ]
    if setting.quick:
        return [*found[:1], *(one for one in found if one.arguments["model"] == SHOWN)]
    found += [_speed(setting, model, half, engine, limit) for engine in others[:1] for model in MODEL_TYPES]
    if half != "float16":
        found += [_speed(setting, model, "float16", first, limit) for model in MODEL_TYPES]
    found += [_speed(setting, "transformer", half, engine, limit) for engine in others[1:]]
    found += [_speed(setting, SHOWN, half, engine, limit) for engine in others[1:]]
    return found


def _speed(setting: Setting, model: str, dtype: str, engine: str, seconds: float) -> Measurement:
    arguments = {"model": model, "dtype": dtype, "engine": engine}
    return Measurement(
        f"3/speed/{model}/{engine}/{PRECISIONS[dtype]}", "gpu_kit.training:speed", arguments, seconds=seconds
    )


def run_arguments(
    setting: Setting, model: str, dtype: str, engine: str, steps: int, run: Path, processes: int = 1
) -> list[str]:
    """Arguments of `longmix train`: masked language modelling on random tokens, every step noted."""
    length = setting.rows
    samples = max(1, setting.tokens // length)
    return [
        *(str(CONFIGS / "model" / f"{model}_{setting.size}.yaml"), "objective.name=mlm"),
        *(f"data.train={_data(setting)}", f"run.dir={run}", f"deepspeed={engine}", f"precision={PRECISIONS[dtype]}"),
        *(f"batch.samples={samples * processes}", f"batch.micro_batch={samples}", "log.every_steps=1"),
        *(f"optim.max_steps={steps}", "optim.warmup_steps=2", f"checkpoint.every_steps={steps}", "checkpoint.keep=1"),
        "log.tensorboard=false",
    ]


def _data(setting: Setting) -> Path:
    """Random tokens, written once."""
    folder = setting.work / "random-tokens"
    if not (folder / "manifest.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        length, vocabulary = setting.rows, QUICK_VOCABULARY if setting.quick else VOCABULARY
        write_samples(folder, length, 64 if setting.quick else 4096, vocabulary)
    return folder


# -----------------------------------------------------------------------------
# Speed, in this process: so its memory and its steps can be watched.


def speed(setting: Setting, model: str, dtype: str, engine: str) -> dict[str, object]:
    """Tokens per second, MFU, peak memory, and how often a step waits for the GPU.

    The steps that are watched, for waits and for the trace, come behind those that are timed.
    """
    from longmix.trainer.processes import world as distributed
    from longmix.trainer.run import loop
    from longmix.trainer.run.folder import noted_facts
    from longmix.trainer.settings import reading

    warm, timed, watched = QUICK_STEPS if setting.quick else (WARM, TIMED, WATCHED)
    run = setting.work / "runs" / f"{model}-{engine}-{dtype}"
    shutil.rmtree(run, ignore_errors=True)
    words = run_arguments(setting, model, dtype, engine, warm + timed + watched + 1, run)
    paths, changes = ([word for word in words if ("=" in word) is is_change] for is_change in (False, True))
    trace = setting.work / TRACE if model == SHOWN and not (setting.work / TRACE).is_file() else None
    watch = Watch(setting.device, warm + timed, watched, trace)
    try:
        world = distributed.join()
        with mock.patch.object(loop._Run, "_step", watch.wrapped(loop._Run._step)):
            loop.train(reading.load(paths, changes), world)
        steps, kernels = commands.records(run, "train"), noted_facts(run)["kernels"]
    finally:
        shutil.rmtree(run, ignore_errors=True)
    counted = steps[warm : warm + timed]
    speeds = [step["tokens_per_second"] for step in counted]
    return {
        "tokens_per_second": quantile(speeds, 0.5),
        "p20": quantile(speeds, 0.2),
        "p80": quantile(speeds, 0.8),
        "mfu": None if counted[-1]["mfu"] is None else quantile([step["mfu"] for step in counted], 0.5),
        "data_wait": quantile([step["data_wait_fraction"] for step in counted], 0.5),
        "loss": [steps[0]["loss"], steps[-1]["loss"]],
        "skipped": steps[-1]["skipped_steps"],
        "kernels": kernels,
        # The loop takes each step's peak; of a GPU alone.
        "memory": max(step["gpu_memory_gib"] for step in steps) * 2**30 / 1e6 if setting.device == "cuda" else None,
        "waits": watch.waits,
        "trace": watch.note,
        "clocks": clocks(),
    }


class Watch:
    """Looks at the steps of a run from one on: counts where the CPU waits for the GPU, then traces one step.

    Attributes:
        waits: calls that wait, in a step; None: not counted, for there is no GPU or the run was too short.
        note: what became of the trace.
    """

    def __init__(self, device: str, first: int, steps: int, trace: Path | None):
        self.device, self.first, self.steps, self.trace = device, first, steps, trace
        self.done, self.found = 0, 0
        self.waits: float | None = None
        self.note = ""

    def wrapped(self, step):
        """The loop's function for one step, watched."""

        def watched(*arguments):
            self.done += 1
            if self.first < self.done <= self.first + self.steps:
                return self._counted(step, arguments)
            if self.done == self.first + self.steps + 1 and self.trace is not None:
                return self._traced(step, arguments)
            return step(*arguments)

        return watched

    def _counted(self, step, arguments):
        if self.device != "cuda":
            return step(*arguments)
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = step(*arguments)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        self.found += sum("synchronizing CUDA operation" in str(one.message) for one in said)
        self.waits = self.found / (self.done - self.first)
        return result

    def _traced(self, step, arguments):
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profile = torch.profiler.profile(activities=activities)
        try:
            profile.start()
        except RuntimeError as error:  # a cluster may keep its users from profiling
            self.note = one_line(f"no trace: {error}")
            return step(*arguments)
        result = step(*arguments)
        if self.device == "cuda":
            torch.cuda.synchronize()
        try:
            self._export(profile)
        except RuntimeError as error:
            self.note = one_line(f"no trace: {error}")
        return result

    def _export(self, profile: torch.profiler.profile) -> None:
        """Write the trace, unless it is too large."""
        profile.stop()
        temporary = self.trace.with_name(f"new-{self.trace.name}")
        profile.export_chrome_trace(str(temporary))
        size = temporary.stat().st_size
        if size > LARGEST_TRACE:
            temporary.unlink()
            self.note = f"left out: {size / 2**20:.0f} MiB"
        else:
            temporary.replace(self.trace)
            self.note = f"one step, {size / 2**20:.1f} MiB: {self.trace.name}"


def cards(setting: Setting, model: str, engine: str) -> dict[str, object]:
    """Tokens per second of all GPUs together, by the command line."""
    from longmix.trainer.run.folder import noted_facts

    warm, timed, _ = QUICK_STEPS if setting.quick else (WARM, TIMED, WATCHED)
    run = setting.work / "runs" / f"{model}-{engine}-cards"
    shutil.rmtree(run, ignore_errors=True)
    words = run_arguments(setting, model, setting.half, engine, warm + timed, run, setting.cards)
    try:
        _ended(_train(words, setting.cards))
        steps, kernels = commands.records(run, "train")[warm:], noted_facts(run)["kernels"]
    finally:
        shutil.rmtree(run, ignore_errors=True)
    speeds = [step["tokens_per_second"] for step in steps]
    mfu = steps[-1]["mfu"]
    return {
        "cards": setting.cards,
        "kernels": kernels,
        "tokens_per_second": quantile(speeds, 0.5),
        "mfu": mfu,
        "loss": [steps[0]["loss"], steps[-1]["loss"]],
    }


def _train(words: list[str], processes: int) -> subprocess.Popen:
    """`longmix train` in processes of this one's group, which are ended with it."""
    command = [sys.executable, "-m", "longmix.trainer", "train", *words, "--processes", str(processes)]
    return subprocess.Popen(command, preexec_fn=commands.end_with_parent)


def _ended(process: subprocess.Popen) -> None:
    """Wait for the end of a run.

    Raises:
        RuntimeError: it fails.
    """
    if process.wait() != 0:
        raise RuntimeError(f"longmix train ended with {process.returncode}")


# -----------------------------------------------------------------------------
# A kill, and the same command again.


def resume(setting: Setting, model: str, engine: str) -> dict[str, object]:
    """Losses of a run that is killed behind its checkpoint and resumed, against those of one that is not.

    Returns:
        "compared": steps that were made after the resume, "equal": how many have the same loss to the bit, "largest":
        relative difference, "killed_at" and "resumed_at": steps.
    """
    steps, every = (6, 2) if setting.quick else (12, 4)
    folder = setting.work / "runs" / f"resume-{model}"
    shutil.rmtree(folder, ignore_errors=True)
    whole, killed = folder / "whole", folder / "killed"
    try:
        for run in (whole, killed):
            words = [
                *run_arguments(setting, model, setting.half, engine, steps, run),
                f"checkpoint.every_steps={every}",
            ]
            if run == whole:
                _ended(_train(words, 1))
                continue
            killed_at = _kill_behind(_train(words, 1), run, every + 1)
            checkpoint = int((run / "checkpoints" / "latest").resolve().name.rpartition("-")[2])
            _ended(_train(words, 1))
        expected, found = (
            {one["step"]: one["loss"] for one in commands.records(run, "train")} for run in (whole, killed)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    behind = [step for step in expected if step > checkpoint]
    # A step that both have dropped, as fp16 does while it looks for its scale, has no loss.
    known = [step for step in behind if found[step] is not None and expected[step] is not None]
    differences = [abs(found[step] - expected[step]) / abs(expected[step]) for step in known]
    return {
        "compared": len(behind),
        "equal": sum(found[step] == expected[step] for step in behind),
        "largest": max(differences, default=0.0),
        "killed_at": killed_at,
        "resumed_at": checkpoint,
    }


def _kill_behind(process: subprocess.Popen, run: Path, step: int) -> int:
    """Kill a run (SIGKILL) once it has a checkpoint and has recorded `step`; the last step that it recorded."""
    while process.poll() is None:
        done = 0
        with contextlib.suppress(OSError, ValueError):
            done = max((one["step"] for one in commands.records(run, "train")), default=0)
        if done >= step and (run / "checkpoints" / "latest").exists():
            process.send_signal(signal.SIGKILL)
            process.wait()
            return done
        time.sleep(0.01)
    raise RuntimeError(f"the run that was to be killed ended before, with {process.returncode}")

"""Runs several tiny trainings one after the other in the same ranks, which forked_ranks.py forks.

The jobs are a list of {"values": run file, "poison": {"steps", "rank", "kind": loss | gradient | spike | weight |
memory}, "digest": true, "draws": true, "fewest": steps before one can be a spike, "slow": {"notes", "lag"} of a
SlowFileSystem, "kill": {"rank", and "step" or "operation"}: SIGKILL after so many steps of this start, or before so
many changes to files of the run folder}, all but the first at will; or {"values", "sums": a precision}, which trains
nothing and asks gradient_sums.py. Rank 0 prints one JSON line for each: how it ended, which part of the model was
built in shares and which part of the linear layers' weights the first forward pass left in memory; with "digest" a hash
of the parameters and of its optimizer's state after every step, and with "draws" the samples of every step, sorted.
"""

import contextlib
import gc
import hashlib
import json
import os
import signal
import sys

import gradient_sums
import torch
from accelerate.state import AcceleratorState
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param
from slow_file_system import SlowFileSystem
from torch.multiprocessing.reductions import StorageWeakRef

from longmix.data_prep.errors import MachineFault, UserError
from longmix.trainer.engines import zero_shares
from longmix.trainer.objectives.labelled_positions import LabelledPositions
from longmix.trainer.processes import world as distributed
from longmix.trainer.run import loop, setup, spikes
from longmix.trainer.settings import reading


class Scaled(torch.autograd.Function):
    """The identity, with gradients `factor` times as large."""

    @staticmethod
    def forward(context, value, factor):
        context.factor = factor
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None


@contextlib.contextmanager
def poisoned(poison, rank, digests):
    """Spoil the loss or the gradients of some steps on one rank, and note what the parameters are after each step."""
    forward, step = LabelledPositions.forward, loop._Run._step
    state = {"step": 0}

    def spoiled(self, model, batch, items):
        loss, sums = forward(self, model, batch, items)
        if poison and model.training and state["step"] in poison["steps"] and rank == poison["rank"]:
            if poison["kind"] == "loss":
                loss, sums = loss * float("nan"), sums * float("nan")
            elif poison["kind"] == "gradient":
                loss = Scaled.apply(loss, float("inf"))
            elif poison["kind"] == "memory" and len(batch["input_ids"]) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            elif poison["kind"] == "spike":
                loss = Scaled.apply(loss, 1000.0)
        return loss, sums

    def counting(self, *arguments):
        step(self, *arguments)
        if poison and poison["kind"] == "weight" and state["step"] in poison["steps"] and rank == poison["rank"]:
            with torch.no_grad():
                next(self.model.parameters())[0] += 0.01
        state["step"] += 1
        if digests is not None:
            weights = self.engine.gather()
            refuse_other_masters(self.engine, weights, rank)
            digest = hashlib.sha256()
            for name in sorted(weights):
                digest.update(weights[name].float().numpy().tobytes())
            optimizer = getattr(self.engine, "_optimizer", None) or self.engine.module.basic_optimizer
            for moments in optimizer.state.values():
                for value in moments.values():
                    digest.update(value.numpy().tobytes())
            digests.append(digest.hexdigest())

    LabelledPositions.forward, loop._Run._step = spoiled, counting
    try:
        yield
    finally:
        LabelledPositions.forward, loop._Run._step = forward, step


@contextlib.contextmanager
def noting_shares(report):
    """Note which part of the model's parameters is in shares when the model is built."""
    build = loop.build

    def noting(prepared, world):
        model = build(prepared, world)
        shared = [hasattr(parameter, "ds_tensor") for parameter in model.parameters()]
        report["shared"] = sum(shared) / len(shared)
        return model

    loop.build = noting
    try:
        yield
    finally:
        loop.build = build


@contextlib.contextmanager
def noting_kept_weights(report):
    """Note which part of what its linear layers compute with is in memory after the first forward pass in training."""
    forward = LabelledPositions.forward

    def noting(self, model, batch, items):
        if not model.training or "kept" in report:
            return forward(self, model, batch, items)
        weights = []

        def note(layer, _):
            storage = layer.weight.untyped_storage()
            weights.append((StorageWeakRef(storage), storage.nbytes()))

        linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        hooks = [module.register_forward_pre_hook(note) for module in linear]
        outputs = forward(self, model, batch, items)
        for hook in hooks:
            hook.remove()
        kept = sum(size for weight, size in weights if not weight.expired())
        report["kept"] = kept / sum(size for _, size in weights)
        return outputs

    LabelledPositions.forward = noting
    try:
        yield
    finally:
        LabelledPositions.forward = forward


@contextlib.contextmanager
def noting_draws(draws):
    """Note the samples that this rank takes in each step."""
    step = loop._Run._step

    def noting(self, batch, *counts):
        draws.append(batch.draw.sample.tolist())
        step(self, batch, *counts)

    loop._Run._step = noting
    try:
        yield
    finally:
        loop._Run._step = step


@contextlib.contextmanager
def killed(kill, rank, folder):
    """Kill this process at its moment, if it is the rank that is meant."""
    if not kill or kill["rank"] != rank:
        yield
        return
    process, step, counts = os.getpid(), loop._Run._step, {"step": 0, "operation": 0}

    def die_at(kind):
        counts[kind] += 1
        if counts[kind] == kill.get(kind) and os.getpid() == process:
            os.kill(process, signal.SIGKILL)

    def stepping(self, *arguments):
        step(self, *arguments)
        die_at("step")

    def note(event, arguments):
        is_change = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink")
        is_change |= event == "open" and bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        if is_change and str(arguments[0]).startswith(folder):
            die_at("operation")

    sys.addaudithook(note)
    loop._Run._step = stepping
    yield
    loop._Run._step = step


def refuse_other_masters(engine, weights, rank):
    """Raise unless what stages 1 to 3 gather are the fp32 values that DeepSpeed finds, one by one, to the last bit."""
    if not getattr(engine, "stage", 0):
        return
    for name, parameter in engine.module.module.named_parameters():
        expected = safe_get_full_fp32_param(parameter) if parameter.requires_grad else parameter
        if rank == 0 and (parameter.requires_grad or engine.stage < 3) and not torch.equal(expected, weights[name]):
            raise AssertionError(f"{name} is gathered as something else")
        alone = weights[name].untyped_storage().nbytes() == weights[name].nbytes if rank == 0 else True
        if engine.stage == 3 and not alone:
            raise AssertionError(f"{name} is gathered as a view of something larger")


def allow_fp16():
    """Torch computes in fp16 on every CPU; DeepSpeed and longmix want one that is fast at it."""
    type(get_accelerator()).is_fp16_supported = lambda self: True
    setup.refuse_slow = lambda precision, device: None


def run_all(jobs):
    """Run the jobs as the rank that the environment names."""
    allow_fp16()
    world = distributed.join()
    zero_shares.GATHERED = 1000  # even of a tiny model there are several pieces
    # Stage 3 collects garbage again and again: not what the imports have made.
    gc.freeze()
    for job in jobs:
        spikes.FEWEST_STEPS = job.get("fewest", spikes.FEWEST_STEPS)
        digests, draws = [] if job.get("digest") else None, []
        report = {}
        if "sums" in job:
            report = gradient_sums.report(job["values"], job["sums"], world)
            if world.is_first:
                print("REPORT " + json.dumps(report), flush=True)
            continue
        AcceleratorState._reset_state(reset_partial_state=True)  # it refuses another precision
        slow = contextlib.nullcontext()
        if "slow" in job:
            # Rank 0's host sees all at once.
            slow = SlowFileSystem(job["slow"]["notes"], job["slow"]["lag"] if world.rank else 0.0)
        ending = killed(job.get("kill"), world.rank, job["values"]["run"]["dir"])
        noting = noting_draws(draws), noting_shares(report), noting_kept_weights(report)
        with poisoned(job.get("poison"), world.rank, digests), noting[0], noting[1], noting[2], slow, ending:
            try:
                outcome = loop.train(reading.from_dict(job["values"], "job"), world)
                report |= {"code": outcome.code, "skipped": outcome.state.skipped, "samples": outcome.state.samples}
            except (MachineFault, UserError) as error:
                report = {"error": str(error)}
        report["digests"] = digests
        if job.get("draws"):
            steps = zip(*world.gather(draws), strict=True)
            report["draws"] = [sorted(sample for part in parts for sample in part) for parts in steps]
        if world.is_first:
            print("REPORT " + json.dumps(report), flush=True)
    distributed.leave(world)
    sys.stdout.flush()
    os._exit(0)

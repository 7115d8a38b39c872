"""Runs several tiny trainings one after the other in the same ranks: `python many_runs.py JOBS.json` under RANK and
WORLD_SIZE.

JOBS.json is a list of {"values": run file, "poison": {"steps", "rank", "kind": loss | gradient}, "digest": true},
all but the first at will; rank 0 prints one JSON line for each: how it ended, and with "digest" a
hash of the parameters after every step.
"""

import contextlib
import gc
import hashlib
import json
import os
import sys

import torch
from accelerate.state import AcceleratorState

from longmix.data_prep.errors import UserError
from longmix.trainer import configuration, distributed, engine, loop, objectives


class Overflow(torch.autograd.Function):
    """The identity, with infinite gradients."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * float("inf")


@contextlib.contextmanager
def poisoned(poison, rank, digests):
    """Spoil the loss or the gradients of some steps on one rank, and note what the parameters are after each step."""
    forward, step = objectives.LabelledPositions.forward, engine_steps()
    state = {"step": 0}

    def spoiled(self, model, batch, items):
        loss, sums = forward(self, model, batch, items)
        if poison and model.training and state["step"] in poison["steps"] and rank == poison["rank"]:
            if poison["kind"] == "loss":
                loss, sums = loss * float("nan"), sums * float("nan")
            else:
                loss = Overflow.apply(loss)
        return loss, sums

    def counting(cls):
        def wrapped(self, learning_rate):
            result = step[cls](self, learning_rate)
            state["step"] += 1
            if digests is not None:
                weights = self.gather()
                digest = hashlib.sha256()
                for name in sorted(weights):
                    digest.update(weights[name].float().numpy().tobytes())
                digests.append(digest.hexdigest())
            return result

        return wrapped

    objectives.LabelledPositions.forward = spoiled
    for cls in step:
        cls.step = counting(cls)
    try:
        yield
    finally:
        objectives.LabelledPositions.forward = forward
        for cls, original in step.items():
            cls.step = original


def engine_steps():
    return {cls: cls.step for cls in (engine.DeepSpeedEngine, engine.AccelerateEngine)}


def main():
    world = distributed.join()
    with open(sys.argv[1]) as file:
        jobs = json.load(file)
    # Stage 3 collects garbage again and again: not what the imports have made.
    gc.freeze()
    for job in jobs:
        digests = [] if job.get("digest") else None
        report = {}
        AcceleratorState._reset_state(reset_partial_state=True)  # it refuses another precision
        with poisoned(job.get("poison"), world.rank, digests):
            try:
                outcome = loop.train(configuration.from_dict(job["values"], "job"), world)
                report = {"code": outcome.code, "skipped": outcome.state.skipped, "samples": outcome.state.samples}
            except (loop.NotFiniteError, UserError) as error:
                report = {"error": str(error)}
        if world.is_first:
            print("REPORT " + json.dumps({**report, "digests": digests}), flush=True)
    distributed.leave(world)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Overhead of the training loop: `longmix train` against a bare PyTorch loop over the same micro-batches in memory.

    python benchmarks/training_loop.py [--steps 20] [--rounds 5] [--engine zero1 --engine null]

Each round runs the bare loop, then the trainer, in the same process and with the same model, batch and optimizer; the
ratio is taken round by round, so that a machine whose speed drifts does not blur it. Reading, masking and padding are
part of the trainer's time and not of the bare loop's. Appends to benchmarks/results.csv.

    OMP_NUM_THREADS=1 python benchmarks/training_loop.py --muon transformer_tiny --muon paramixer_tiny

measures in CPU time, on one thread, what a step with Muon takes against one with AdamW: forward and backward pass of
4,096 tokens and the optimizer's step, the three measured one after the other in each round.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import yaml
from record import append
from samples.random_tokens import write_samples
from transformers import AutoConfig, AutoModelForMaskedLM

import longmix.modeling  # noqa: F401  registers our model types
from longmix.trainer.engines.base import to_device
from longmix.trainer.optimization.optimizer import make_optimizer, parameter_groups
from longmix.trainer.processes import world as distributed
from longmix.trainer.run import loop
from longmix.trainer.run.setup import prepare
from longmix.trainer.run.stream import BatchStream
from longmix.trainer.settings import configuration, reading
from longmix.trainer.settings.sections import OptimSection

LENGTH, SAMPLES = 128, 2048
MODELS = Path(__file__).parent.parent / "configs" / "model"
VOCABULARY = 8192


def run_values(folder: Path, run: Path, engine: str, steps: int) -> dict:
    return {
        "run": {"dir": str(run)},
        "model": {
            "model_type": "s3attention",
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
        },
        "data": {"train": str(folder)},
        "batch": {"samples": 32, "micro_batch": 16},
        "optim": {"max_steps": steps, "warmup_steps": 1},
        "deepspeed": None if engine == "null" else engine,
        "checkpoint": {"every_steps": steps},
        "log": {"every_steps": steps, "tensorboard": True},
    }


def bare_seconds(checked: configuration.RunConfiguration, world: distributed.World, steps: int) -> float:
    """Seconds for `steps` steps of a plain loop: zero_grad, forward, backward, clip, step."""
    prepared = prepare(checked, 1, world.device)
    model = prepared.build().to(world.device).train()
    optimizer = make_optimizer(parameter_groups(model, checked.optim), checked.optim, checked.precision)
    data = prepared.data
    with BatchStream(data.train, data.order, prepared.objective, 32, 16, 0, 1, 0, 1, 0) as stream:
        (batch,) = list(stream)
    micro_batches = [to_device(part, world.device) for part in batch.micro_batches]
    started = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        for part in micro_batches:
            model(**part, num_items_in_batch=batch.items).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def trainer_seconds(
    checked: configuration.RunConfiguration, world: distributed.World, steps: int
) -> tuple[float, float]:
    """(seconds for `steps` steps, data wait fraction), from the trainer's own record."""
    loop.train(checked, world)
    (record,) = [
        line
        for line in map(json.loads, (Path(checked.run.dir) / "metrics.jsonl").read_text().splitlines())
        if line["kind"] == "train"
    ]
    return record["tokens_seen"] / record["tokens_per_second"], record["data_wait_fraction"]


def optimizer_seconds(name: str, precision: str, rounds: int) -> dict[str, list[float]]:
    """CPU seconds in each round of a pass over 4,096 tokens, and of a step of each optimizer after it."""
    fields = yaml.safe_load((MODELS / f"{name}.yaml").read_text())["model"]
    config = AutoConfig.for_model(**fields, vocab_size=VOCABULARY, max_position_embeddings=LENGTH)
    model = AutoModelForMaskedLM.from_config(config).train()
    tokens = torch.randint(VOCABULARY, (32, LENGTH))
    labels = torch.where(torch.rand(tokens.shape) < 0.15, tokens, -100)
    optims = [OptimSection(name=optimizer, lr=1e-6) for optimizer in ("adamw", "muon")]
    optimizers = {one.name: make_optimizer(parameter_groups(model, one), one, precision) for one in optims}

    def forward_backward() -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()

    works = {"pass": forward_backward, **{one: optimizer.step for one, optimizer in optimizers.items()}}
    seconds = {key: [] for key in works}
    for _ in range(rounds + 2):  # the first two warm up
        for key, work in works.items():
            started = time.process_time()
            work()
            seconds[key].append(time.process_time() - started)
    return {key: values[2:] for key, values in seconds.items()}


def measure_muon(name: str, rounds: int) -> None:
    for precision in ("fp32", "bf16"):
        seconds = optimizer_seconds(name, precision, rounds)
        for key, values in seconds.items():
            append("training_loop", f"{name}, {precision}", f"CPU time of {key}", values, "s")
        pairs = zip(seconds["pass"], seconds["adamw"], seconds["muon"], strict=True)
        ratios = [(one + muon) / (one + adamw) for one, adamw, muon in pairs]
        append("training_loop", f"{name}, {precision}", "step with muon against adamw", ratios, "ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", action="append", choices=["zero0", "zero1", "zero2", "zero3", "null"])
    parser.add_argument("--muon", action="append", metavar="MODEL", help="a file of configs/model without its ending")
    arguments = parser.parse_args()
    for name in arguments.muon or []:
        measure_muon(name, arguments.rounds)
    if arguments.muon:
        return
    world = distributed.join()
    for engine in arguments.engine or ["zero1", "null"]:
        ratios, waits = [], []
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_samples(folder / "train", LENGTH, SAMPLES)
            # The first round warms up both sides and is not counted.
            for number in range(arguments.rounds + 1):
                values = run_values(folder / "train", folder / f"run-{number}", engine, arguments.steps)
                checked = reading.from_dict(values, "benchmark")
                bare = bare_seconds(checked, world, arguments.steps)
                seconds, waited = trainer_seconds(checked, world, arguments.steps)
                if number > 0:
                    ratios.append(seconds / bare)
                    waits.append(waited)
        append("training_loop", engine, "time against bare loop", ratios, "ratio")
        append("training_loop", engine, "data_wait_fraction", waits, "fraction")
    distributed.leave(world)


if __name__ == "__main__":
    main()

"""How exactly an engine sums gradients up over micro-batches and ranks: in every rank that forked_ranks.py forks."""

import copy
import itertools

import torch
from deepspeed.utils import safe_get_full_grad
from torch.nn import functional

from longmix.trainer.engines.make import make_engine
from longmix.trainer.settings import reading

MICRO_BATCHES = 4


def report(values, gradients, world):
    """{"error": the relative RMS of what the optimizer is given against sums in fp32, "kind": of DeepSpeed's optimizer,
    "gradients": as the checkpoint says, "steps": whether a step changes the weights, "copies": the parameters of which
    some ranks keep a copy among them (hpZ)}."""
    torch.manual_seed(0)
    sizes = (33, 65, 65, 17)
    network = torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in itertools.pairwise(sizes)))
    batches = [
        [{"inputs": torch.randn(8, 33).bfloat16(), "targets": torch.randn(8, 17)} for _ in range(MICRO_BATCHES)]
        for _ in range(world.size)
    ]

    def forward(model, batch):
        loss = functional.mse_loss(model(batch["inputs"]).float(), batch["targets"])
        return loss / MICRO_BATCHES / world.size, torch.zeros(1)

    plain = copy.deepcopy(network).bfloat16()
    expected = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in plain.parameters()]
    for batch in itertools.chain.from_iterable(batches):
        # What one micro-batch gives is in bf16: that is the precision of the run.
        losses, _ = forward(plain, batch)
        for total, one in zip(expected, torch.autograd.grad(losses * world.size, plain.parameters()), strict=True):
            total += one.float() / world.size
    engine = make_engine(network, reading.from_dict(values, "job"), "bf16", gradients, world)
    engine.forward_backward(batches[world.rank], forward)
    found = [safe_get_full_grad(parameter).float() for parameter in network.parameters()]
    copies = sum(getattr(one, "ds_secondary_tensor", None) is not None for one in network.parameters())
    pairs = list(zip(found, expected, strict=True))
    error = sum((one - other).square().sum() for one, other in pairs) / sum(other.square().sum() for _, other in pairs)
    before = engine.gather()
    engine.step(1e-3)
    after = engine.gather()
    return {
        "error": error.sqrt().item(),
        "kind": type(engine.module.optimizer).__name__,
        "gradients": engine.layout.gradients,
        "copies": copies,
        "steps": not world.is_first or all(not torch.equal(before[name], after[name]) for name in before),
    }

"""Operations on a GPU, of which tests/card.py is a stand-in: what the Triton kernels' operators declare of their
results is what plain PyTorch gives, and nothing waits for the GPU or begins on the host.
"""

import functools
import importlib

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.selection import OPERATIONS

DTYPES = (torch.float16, torch.float64)
# Of the cases of an operation the one that most of its code is for.
COVERING = {
    "feature_attention": "two",
    "feature_map_attention": "three",
    "givens_mix": "two",
    "lifting_analysis": "three",
    "lifting_synthesis": "three",
    "linear_attention": "two-causal",
    "link_mix": "documents",
    "near_attention": "three",
    "random_feature_attention": "three",
    "spectral_filter": "three",
    "token_givens_mix": "three",
    "wavelet_analysis": "three-shared-taps",
    "wavelet_synthesis": "three-shared-taps",
}


def on_card(stand_in, module, name, dtype):
    """Shapes, dtypes and strides of an operation's result and gradients on the card, and the card."""
    arguments, keywords = module.inputs(name, torch.Generator().manual_seed(0))
    with stand_in.card() as card:
        moved = [card.holds(value) if isinstance(value, torch.Tensor) else value for value in arguments]
        for index in module.FLOATING:
            if moved[index] is not None:
                moved[index] = moved[index].to(dtype).detach().requires_grad_()
        keywords = {key: card.holds(v) if isinstance(v, torch.Tensor) else v for key, v in keywords.items()}
        result = getattr(ops, module.OPERATION)(*moved, **keywords)
        result.sum(dtype=torch.float32).backward()
        gradients = [moved[index].grad for index in module.FLOATING if moved[index] is not None]
        tensors = [result, *gradients]
        assert all(isinstance(tensor, stand_in.CardTensor) for tensor in tensors)
    return card, [(tensor.shape, tensor.dtype) for tensor in tensors]


def compare(stand_in, monkeypatch, module, name, dtype):
    operation = module.OPERATION
    folder = f"longmix.kernels.{OPERATIONS[operation]}"
    declared = functools.partial(getattr(importlib.import_module(f"{folder}.operator"), operation), "gpu_kernels")
    chosen = {
        "portable": lambda operation, device, implementations: implementations["portable"],
        "triton": lambda operation, device, implementations: declared,
    }
    seen = {}
    for implementation, select in chosen.items():
        monkeypatch.setattr(f"{folder}.interface.select", select)
        card, seen[implementation] = on_card(stand_in, module, name, dtype)
        assert (card.waits, card.narrow, card.made_on_host) == ([], [], [])
    assert seen["portable"][0][1] == dtype
    assert all(shapes == seen["portable"] for shapes in seen.values())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations(stand_in, monkeypatch, cases, operation):
    module = next(module for module, _ in cases if operation == module.OPERATION)
    compare(stand_in, monkeypatch, module, COVERING[operation], torch.bfloat16)


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_cases(stand_in, monkeypatch, case, dtype):
    compare(stand_in, monkeypatch, *case, dtype)

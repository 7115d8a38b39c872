"""Windows of rows: what lies around each block, its gradients, and what torch.compile makes of them."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from longmix.kernels import ops
from longmix.kernels.common.windows import Windows


@pytest.mark.parametrize(("positions", "reach"), [(1, 3), (9, 2), (70, 3), (100, 40), (129, 40)])
def test_what_lies_around_a_block(positions, reach):
    windows = Windows.over(positions, reach)
    x = torch.randn(2, 1, positions, 3, dtype=torch.float64, requires_grad=True)
    around = windows.around(x)
    wide = windows.size + 2 * windows.outside
    assert around.shape == (2, 1, windows.blocks, wide, 3)
    for block in range(windows.blocks):
        for place in range(wide):
            row = block * windows.size + place - windows.outside
            expected = x[:, :, row] if 0 <= row < positions else torch.zeros(2, 1, 3, dtype=torch.float64)
            assert torch.equal(around[:, :, block, place], expected)
    assert torch.autograd.gradcheck(windows.around, x[:1, :, :, :1].detach().requires_grad_())


class NearAttention(torch.nn.Module):
    def forward(self, query, key, value, estimate, lengths):
        tensors = (query, key, value, estimate, torch.ones(1, 81), torch.zeros(1))
        return ops.near_attention(*tensors, before=40, lengths=lengths)


def test_an_exported_program_has_blocks_at_any_length(monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")

    def inputs(positions):
        return *torch.randn(4, 2, 1, positions, 3), torch.tensor([positions, positions // 2])

    length = torch.export.Dim.AUTO(max=500)
    shapes = (*[{2: length}] * 4, None)
    module = torch.export.export(NearAttention(), inputs(150), dynamic_shapes=shapes, strict=False).module()
    # Up to 120 there is otherwise one block. torch keeps guards against whole blocks, which mean nothing.
    for positions in (101, 131, 299):
        given = inputs(positions)
        torch.testing.assert_close(module(*given), NearAttention()(*given))


@pytest.mark.parametrize(("positions", "reach"), [(1, 3), (70, 3), (100, 40), (129, 40)])
def test_the_flags_around_a_block(positions, reach):
    windows = Windows.over(positions, reach)
    flags = torch.randint(9, (2, positions))
    padded = functional.pad(flags, (windows.outside, windows.missing + windows.outside), value=-2)
    expected = padded.unfold(1, windows.size + 2 * windows.outside, windows.size)
    assert torch.equal(windows.around_flags(flags, fill=-2), expected)


@pytest.mark.full
@pytest.mark.slow
def test_a_compiled_derivative_stays_in_its_memory():
    """Of near attention on two threads: torch 2.13's code for the derivative of unfold ended the process."""
    code = """
import torch
from longmix.kernels import ops
tensors = [x.requires_grad_() for x in torch.randn(4, 2, 2, 9, 8).unbind(0)]
call = lambda *x: ops.near_attention(*x, torch.zeros(2, 5), torch.zeros(2), 2)
found = [torch.autograd.grad(run(*tensors).square().sum(), tensors) for run in (call, torch.compile(call))]
for expected, gradient in zip(*found):
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr

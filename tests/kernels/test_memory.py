"""Memory that the C++ kernels take, forward and backward: measured, in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Of the size of the value, beyond arguments, result and gradients. Paramixer's factors keep what goes into each of them
# for one block of 64 channels on each thread; what the attentions take does not grow with the length.
LIMITS = {
    "feature_attention": 0.25,
    "feature_map_attention": 0.25,
    "givens_mix": 2,
    "lifting_analysis": 1.5,
    "lifting_synthesis": 1.5,
    "linear_attention": 0.25,
    "link_mix": 12,
    "wavelet_analysis": 1,
    "wavelet_synthesis": 1,
}
CODE = """
import json
import torch
from longmix.kernels import ops

torch.set_num_threads(2)
BATCH, WIDTH = 2, 128


def inputs(operation, positions):
    rows = torch.randn(BATCH, positions, WIDTH)
    if operation == "givens_mix":
        value = rows.view(BATCH, positions, 1, WIDTH // 2, 2)
        angles = (torch.randn(BATCH, 1, 1, positions - 1, 3) for _ in range(2))
        return (value, *angles, torch.randn(BATCH, 1, positions)), ()
    if operation == "link_mix":
        offsets = torch.tensor([[0, *(2**link for link in range(12))]] * 12)
        return (rows, torch.randn(BATCH, positions, 12, 13) / 13), (offsets,)
    if operation.endswith("attention"):
        value = rows.view(BATCH, positions, 2, 64).transpose(1, 2).contiguous()
        more = ("elu",) if operation.startswith("feature_map") else ()
        return (torch.rand_like(value), torch.rand_like(value), value), more
    count = 1 if operation.startswith("wavelet") else 2
    more = (3, BATCH, positions) if operation.endswith("synthesis") else (3,)
    rows = rows.flatten(0, 1) if operation.endswith("synthesis") else rows
    return (rows, *(torch.randn(8, WIDTH) / 8 for _ in range(count))), more


def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def size(*tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def taken(operation, positions, options):
    tensors, more = inputs(operation, positions)
    cotangent = torch.randn_like(tensors[2 if operation.endswith("attention") else 0])
    for tensor in tensors:
        tensor.requires_grad_()
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is counted from now on
    result = getattr(ops, operation)(*tensors, *more, **options)
    gradients = torch.autograd.grad(result, tensors, cotangent.view(result.shape))
    return (status("VmHWM") - before - size(result, *gradients)) / size(cotangent)


found = {}
for operation in OPERATIONS:
    options = {"causal": True} if operation in ("feature_attention", "linear_attention") else {}
    taken(operation, 64, options)  # compiles
    found[operation] = [taken(operation, 16384, options)]
    found[operation].append(taken(operation, 16384, {**options, "lengths": torch.tensor([16384, 12000])}))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    """Operation -> peaks without and with padding, of the size of the value, beyond arguments, result and gradients."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the kernel counts no peaks of memory anew")
    code = f"OPERATIONS = {list(LIMITS)}\n{CODE}"
    # Freed tensors go back to the system at once, whatever their size.
    environment = {**os.environ, "LONGMIX_KERNELS": "cpu", "MALLOC_MMAP_THRESHOLD_": "65536"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("operation", LIMITS)
@pytest.mark.full
def test_memory_beyond_arguments_result_and_gradients(operation, padded, found, record_property):
    record_property("times the value", found[operation][padded])
    # Below zero by pages of memory that were free before.
    assert -0.1 < found[operation][padded] < LIMITS[operation]

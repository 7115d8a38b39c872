"""The inputs on which the GPU kit proves kernels."""

from longmix.kernels import ops


def test_every_kernel_meets_hard_inputs(script):
    cases = script("gpu_kit.hard_inputs").CASES
    assert cases.keys() == set(ops.OPERATIONS)
    assert all("one" in names and any("ragged" in name for name in names) for names in cases.values())

"""Attention from non-negative features in Triton."""

from ..attention.gpu import AttentionKernels

_kernels = AttentionKernels(logarithms=False)
forward, backward = _kernels.forward, _kernels.backward

"""Attention from log-features in Triton."""

from ..attention.gpu import AttentionKernels

_kernels = AttentionKernels(logarithms=True)
forward, backward = _kernels.forward, _kernels.backward

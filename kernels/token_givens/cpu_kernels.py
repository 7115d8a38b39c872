"""Converter's rotations of tokens on CPUs: angles and phases are plain PyTorch's, what follows is in C++."""

from ..givens_mix.cpu_kernels import FUNCTIONS as ROTATIONS

FUNCTIONS = {"token_givens_mix": ROTATIONS["givens_mix"]}

"""Attention from random features on CPUs: the features are plain PyTorch's, what follows is in C++."""

from ..attention.cpu_kernels import FUNCTIONS as ATTENTIONS

FUNCTIONS = {"random_feature_attention": ATTENTIONS["feature_attention"]}

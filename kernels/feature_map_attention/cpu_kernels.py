"""Attention from features of queries and keys on CPUs: the C++ of the linear attentions makes them."""

from ..attention.cpu_kernels import FUNCTIONS as ATTENTIONS

FUNCTIONS = {"feature_map_attention": ATTENTIONS["elu_attention"]}

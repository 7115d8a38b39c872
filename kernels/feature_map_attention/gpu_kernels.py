"""Attention from features of queries and keys in Triton: the launches of `linear_attention`, whose programs make the
features where they read queries and keys, and take the features' gradients back where they write those."""

from ..attention.features_gpu import MappedFeatures
from ..attention.gpu_kernels import attend, unattend
from ..common.rows import rows_like


def feature_map_attention(query, key, value, feature_map, lengths):
    """The operator of operator.py."""
    result = rows_like(value)
    features = (MappedFeatures(x, feature_map) for x in (query, key))
    attend(result, *features, value, lengths, None, False, "mapped")
    return result.transpose(1, 2)


def feature_map_attention_backward(gradient, query, key, value, feature_map, lengths):
    """Gradients of query, key and value."""
    of_value = rows_like(value)
    features = (MappedFeatures(x, feature_map) for x in (query, key))
    of_rows = unattend(gradient.transpose(1, 2), of_value, *features, value, lengths, None, False, "mapped")
    return *(of_x.to(x.dtype) for of_x, x in zip(of_rows, (query, key), strict=True)), of_value

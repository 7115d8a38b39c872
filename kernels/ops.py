"""The operations of the mixers, and of what is around them.

Every operation is in a folder beside this file: `interface.py` (what it means, and its checks), `reference.py` (the
equations in float64, obviously right) and `portable.py` (fast plain PyTorch); `selection.py` chooses between them.
Those worth writing by hand have kernels in C++ and Triton, too: CONTRIBUTING.md, "Adding a kernel", names the files.
"""

from .attention.interface import feature_attention, linear_attention
from .common.choice import CHOICES, ENVIRONMENT_VARIABLE
from .feature_map_attention.interface import feature_map_attention
from .givens_mix.interface import givens_mix
from .lifting.interface import lifting_analysis, lifting_synthesis
from .linear.interface import linear
from .linear.products import weight_gradient
from .linear_cross_entropy.interface import linear_cross_entropy
from .link_mix.interface import link_mix
from .near_attention.interface import near_attention
from .random_attention.interface import random_feature_attention
from .random_attention.places import Places
from .rotary_heads.interface import rotary_heads
from .selection import AROUND_MIXERS, OPERATIONS, implementation
from .spectral_filter.interface import spectral_filter
from .token_givens.interface import token_givens_mix
from .wavelet.interface import wavelet_analysis, wavelet_synthesis

__all__ = [
    "AROUND_MIXERS",
    "CHOICES",
    "ENVIRONMENT_VARIABLE",
    "OPERATIONS",
    "Places",
    "feature_attention",
    "feature_map_attention",
    "givens_mix",
    "implementation",
    "lifting_analysis",
    "lifting_synthesis",
    "linear",
    "linear_attention",
    "linear_cross_entropy",
    "link_mix",
    "near_attention",
    "random_feature_attention",
    "rotary_heads",
    "spectral_filter",
    "token_givens_mix",
    "wavelet_analysis",
    "wavelet_synthesis",
    "weight_gradient",
]

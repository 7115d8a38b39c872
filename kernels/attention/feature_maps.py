"""Feature maps of linear attention: from numbers of queries and keys to features, one by one."""

import torch

# elu(x) + 1 (Katharopoulos et al., Transformers are RNNs, eq. 7), and relu(x / d^(1/4)) + 0.001 of heads of d channels
# (Choromanski et al., Rethinking Attention with Performers, section 2.3).
FEATURE_MAPS = ("elu", "relu")
RELU_SHIFT = 1e-3


def relu_scale(channels: int) -> float:
    """What "relu" multiplies numbers of heads of so many channels with."""
    return channels**-0.25


def features_of(x: torch.Tensor, feature_map: str, dtype: torch.dtype) -> torch.Tensor:
    """Features (B, H, N, d) of x in fp32 or float64, exact to rounding also where they are small."""
    x = x.to(dtype)
    if feature_map == "elu":
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
    return torch.relu(x * relu_scale(x.shape[-1])) + RELU_SHIFT

"""Small layers that Converter's parts share."""

import math

import torch
from torch import nn
from torch.nn import functional
from transformers import initialization as init


class ScaledLinear(nn.Linear):
    """A linear layer whose weights start uniform, with standard deviation `std`, and whose bias starts at zero."""

    def __init__(self, in_features: int, out_features: int, std: float, bias: bool = True):
        super().__init__(in_features, out_features, bias)
        self.std = std
        self.reset()

    def reset(self) -> None:
        """Draw the weights."""
        bound = math.sqrt(3) * self.std
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.zeros_(self.bias)


class ScaleNorm(nn.Module):
    """Each token divided by its norm, times a gain for each channel that starts at one (CV-10).

    A complex token, given as real pairs, is divided by the norm of all its parts.
    """

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def reset(self) -> None:
        """Set the gain to one."""
        init.ones_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, N, D) or pairs (B, N, 2, D) -> the same shape; a token of zeros stays zero."""
        return unit_norm(x, self.eps) * self.weight


def unit_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Each token of x (B, N, D) or of pairs (B, N, 2, D) divided by its norm, in the dtype of x (FixNorm)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    norm = torch.linalg.vector_norm(wide, dim=tuple(range(2, x.dim())), keepdim=True)
    return (wide / (norm + eps)).to(x.dtype)


class GatedFeedForward(nn.Module):
    """GFFN: [softplus(Re x W_re) * tanh(Im x W_im)] W_o, from complex to real tokens (Converter, eq. 13).

    The layers have biases, as in the published code.
    """

    def __init__(self, width: int, hidden: int, dropout: float):
        super().__init__()
        std = math.sqrt(2 / (width + hidden))
        self.magnitude = ScaledLinear(width, hidden, std)
        self.sign = ScaledLinear(width, hidden, std)
        self.output = ScaledLinear(hidden, width, std)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pairs (B, N, 2, D) -> (B, N, D)."""
        real, imaginary = x.unbind(2)
        return self.output(self.dropout(functional.softplus(self.magnitude(real)) * self.sign(imaginary).tanh()))

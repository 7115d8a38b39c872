"""Small layers that Converter's parts share."""

import math

import torch
from torch import nn
from torch.nn import functional
from transformers import initialization as init

from longmix.kernels import ops

from ..derivatives import by_autograd


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


class LinearOfUnitRows(ScaledLinear):
    """A `ScaledLinear` of tokens that are divided by their root mean square. Its results are fp32 or wider."""

    def __init__(self, in_features: int, out_features: int, std: float, eps: float):
        super().__init__(in_features, out_features, std)
        self.eps = eps

    def forward(self, x: torch.Tensor, with_input: bool = False) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """(B, N, D) -> (B, N, out_features); `with_input`: x besides, for others who read it. The gradient of that one
        is added up with this layer's own in one pass.
        """
        result, passed = _OfNormalised.apply(x, self.weight, self.bias, self.eps)
        return (result, passed) if with_input else result


class _OfNormalised(torch.autograd.Function):
    """x / rms(x) W^T + b as (x W^T) / rms(x) + b, and x itself: it is the few results that are divided, and no copy of
    x is made."""

    @staticmethod
    def forward(
        ctx, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        product = ops.linear(x, weight)
        # In this dtype are the norm and with it the result, whatever product and bias are.
        wide = torch.promote_types(product.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        square = torch.rsub(norm.square(), eps, alpha=-1 / x.shape[-1])
        inverse = square.rsqrt()
        ctx.save_for_backward(x, weight, bias, product, square, inverse)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return torch.addcmul(bias, product, inverse), x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor | None, of_passed: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if gradient is None:
            return of_passed, None, None, None
        x, weight, bias, product, square, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():

            def again(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
                # No norm: the second derivative of that is NaN at a token of zeros.
                mean = x.to(inverse.dtype).square().mean(-1, keepdim=True)
                # In the dtype of the forward pass: autocast may be over by now.
                again_product = ops.linear(x.to(product.dtype), weight.to(product.dtype))
                return torch.addcmul(bias, again_product, (mean + ctx.eps).rsqrt())

            of_x, *of_parameters = by_autograd(again, [x, weight, bias], [gradient])
            return of_x if of_x is None or of_passed is None else of_x + of_passed, *of_parameters, None
        of_product = torch.mul(gradient, inverse, out=torch.empty_like(product))
        # d(1 / rms) / dx = -x / (D rms^3), of which the products have one; their mean is within the range of fp16.
        by_norm = (of_product * product).mean(-1, keepdim=True, dtype=square.dtype)
        by_norm = torch.div(by_norm, square, out=x.new_empty(by_norm.shape))
        of_x = _of_input(of_product, weight.to(product.dtype), x, by_norm, of_passed)
        of_weight = ops.weight_gradient(of_product.flatten(0, -2), x.flatten(0, -2).to(product.dtype))
        return of_x, of_weight.to(weight.dtype), gradient.flatten(0, -2).sum(0).to(bias.dtype), None


def _of_input(
    of_product: torch.Tensor,
    weight: torch.Tensor,
    x: torch.Tensor,
    by_norm: torch.Tensor,
    of_passed: torch.Tensor | None,
) -> torch.Tensor:
    """The gradient of x (B, N, D): of its products, of its norm by x times `by_norm` (B, N, 1), and of x itself."""
    share = -of_product.shape[-1] / x.shape[-1]
    if of_passed is not None and of_passed.dtype == x.dtype == of_product.dtype and _adds_products(x.device):
        of_x = torch.addcmul(of_passed, x, by_norm, value=share, out=x.new_empty(x.shape))
        of_x.view(-1, x.shape[-1]).addmm_(of_product.flatten(0, -2), weight)
        return of_x
    of_x = torch.addcmul(ops.linear(of_product, weight.mT).to(x.dtype), x, by_norm, value=share)
    return of_x if of_passed is None else of_x + of_passed


def _adds_products(device: torch.device) -> bool:
    """Whether a product is added to what there is in one pass: on GPUs. On CPUs `ops.linear` chooses who multiplies."""
    return device.type != "cpu" and not torch.compiler.is_compiling()


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
    """Each token of x (B, N, D) or of pairs (B, N, 2, D) divided by its norm, in the dtype of x (FixNorm).

    A token of zeros stays zero and has a gradient; its second derivative is NaN.
    """
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

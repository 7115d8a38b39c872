"""The cross entropy of a linear layer's logits on CPUs: C++ (cpu.cpp) between torch's products of matrices.

Some hundred rows at a time: their logits become losses and gradients while a cache has them. So a step saves the passes
over memory of a softmax, its derivative and a maximum, and room for all logits several times.
"""

import torch

from ..build import INTEGERS, REALS, SIZE, WIDE_REALS, Function
from ..linear.products import few_rows, is_chosen, multiplies, product, weight_gradient
from .labels import IGNORED_LABEL, refuse_other_labels

FUNCTIONS = {
    "linear_cross_entropy": Function(
        "linear_cross_entropy/cpu.cpp", "forward", (REALS, INTEGERS, *[WIDE_REALS] * 3, INTEGERS, *[SIZE] * 4)
    )
}
# Logits of one product of matrices; more in half precision, where each product's share of the weight's gradient is
# rounded and takes a pass of its own.
PRODUCT, PRODUCT_IN_HALF = 1 << 22, 1 << 23


def linear_cross_entropy(hidden, weight, bias, labels, of_hidden, of_parameters):
    """See operator.py; there is a row."""
    (count, width), vocabulary = hidden.shape, len(weight)
    refuse_other_labels(labels, vocabulary)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    # Of fewer rows than there are channels, adding a product to the weight's gradient would cost more than the product.
    rows = max((PRODUCT if hidden.dtype == wide else PRODUCT_IN_HALF) // vocabulary, width)
    if is_chosen() and hidden.dtype == torch.float32:
        rows = few_rows(rows)
    logits = hidden.new_empty(min(rows, count), vocabulary)
    wide_bias = None if bias is None else bias.to(wide)
    losses, is_right = hidden.new_empty(count, dtype=wide), torch.empty_like(labels)
    of_rows = hidden.new_empty(hidden.shape if of_hidden else (0,))
    of_weight = weight.new_empty(weight.shape if of_parameters else (0,), dtype=wide)
    of_bias = weight.new_zeros(weight.shape[:1] if of_parameters and bias is not None else (0,), dtype=wide)
    for first in range(0, count, rows):
        part = slice(first, first + rows)
        read = hidden[part]
        by_onednn = multiplies(read, weight)
        made = product(read, weight) if by_onednn else torch.mm(read, weight.T, out=logits[: count - first])
        _to_gradients(made, wide_bias, labels[part], losses[part], is_right[part], of_hidden or of_parameters, of_bias)
        if of_hidden:
            if by_onednn:
                of_rows[part] = product(made, weight.T)
            else:
                torch.mm(made, weight, out=of_rows[part])
        if of_parameters:
            _add_product(of_weight, made, read, first == 0)
    return losses.sum(), is_right.bool(), of_rows, of_weight, of_bias


def _add_product(total, made, read, is_first):
    """Add made^T read to the total, which has no numbers yet where it is the first."""
    if made.dtype == torch.float16:  # sums over rows that nothing scales are too large for it
        made, read = made.to(total.dtype), read.to(total.dtype)
    if total.dtype == made.dtype and not multiplies(read, total):
        torch.addmm(total, made.T, read, beta=0 if is_first else 1, out=total)
    elif is_first:
        total.copy_(weight_gradient(made, read))
    else:
        total.add_(weight_gradient(made, read))


def _to_gradients(logits, bias, labels, losses, is_right, differentiates, of_bias):
    """Write losses, whether labels are right, and, in place of the logits, which lack their bias, the losses' gradients
    by them; add those by the bias, unless it has no room for them.
    """
    # Compilers for CPUs may not know fp16.
    read = logits.to(losses.dtype) if logits.dtype == torch.float16 else logits
    FUNCTIONS["linear_cross_entropy"](
        read,
        labels,
        bias,
        losses,
        of_bias if of_bias.numel() else None,
        is_right,
        *read.shape,
        IGNORED_LABEL,
        differentiates,
    )
    if differentiates and read is not logits:
        logits.copy_(read)


def linear_cross_entropy_backward(gradient, of_hidden, of_weight, of_bias):
    """See operator.py."""
    return tuple((part * gradient).to(of_hidden.dtype) for part in (of_hidden, of_weight, of_bias))

"""Triton code of products of matrices on tensor cores.

They go by a rule. "tf32": of factors with 11 binary digits, as many as half precision has; "tf32x3": of three such
products, which keep fp32's digits; "ieee": one multiplication after the other.
"""

import triton
import triton.language as tl

from .interpreter import interpreted

INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def rounded(x, RULE: tl.constexpr):
    """To the nearest number of tensor cores, which would cut off the other digits, and so make sums smaller."""
    if RULE == "tf32" and not INTERPRETED:
        x = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], tl.float32, True, 1)
    elif RULE == "tf32":
        bits = x.to(tl.int32, bitcast=True)
        # Not more than what is NaN after it, too: the largest bits, an NVIDIA card's own NaN, would turn into zero.
        size = (tl.minimum(bits & 0x7FFFFFFF, 0x7FFFEFFF) + 0x1000) & -0x2000
        x = (size | (bits & -0x80000000)).to(tl.float32, bitcast=True)
    return x

"""Triton code that reads numbers of half precision as those of fp32."""

import triton
from triton import language as tl

from .interpreter import interpreted

INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def exact(numbers):
    """Numbers in fp32; those of float64 as they are."""
    if numbers.dtype == tl.bfloat16 and not INTERPRETED:
        # Two of them are the halves of a word, and the upper one is a number of fp32 once the lower one is cleared; the
        # compiler would take it out, and shift it back.
        numbers = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=&r,=r,r", [numbers], tl.float32, True, 2
        )
    elif numbers.dtype != tl.float64:
        numbers = numbers.to(tl.float32)
    return numbers

"""Grids of programs that CUDA launches."""

MOST = (2**31 - 1, 65535, 65535)


def checked(*programs: int) -> tuple[int, ...]:
    """The numbers of programs along each axis of a grid, as they are.

    Raises:
        ValueError: CUDA launches no grid of so many.
    """
    for axis, (count, most) in enumerate(zip(programs, MOST, strict=False)):
        if count > most:
            raise ValueError(
                f"a Triton kernel has {count} programs along axis {axis} of its grid, one for each sample; "
                f"allowed: at most {most}; give fewer samples at once, or set LONGMIX_KERNELS=portable"
            )
    return programs

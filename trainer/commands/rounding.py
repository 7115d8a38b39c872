"""Estimates as people read them: two digits, and a unit that fits."""

_TIMES = ((86400 * 365.25, "years"), (86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_COUNTS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand"))
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def about_time(seconds: float) -> str:
    """`about 3.2 days`: in the largest unit of which there are at least two."""
    size, unit = next(((size, unit) for size, unit in _TIMES if seconds >= 2 * size), _TIMES[-1])
    return f"about {_two_digits(seconds / size)} {unit}"


def about_count(number: float) -> str:
    """`92 million`."""
    return _scaled(number, _COUNTS, "")


def about_bytes(number: float) -> str:
    """`1.4 GiB`."""
    return _scaled(number, _BYTES, "bytes")


def _scaled(number: float, units: tuple[tuple[float, str], ...], smallest: str) -> str:
    size, unit = next(((size, unit) for size, unit in units if number >= size), (1, smallest))
    return f"{_two_digits(number / size)} {unit}".rstrip()


def _two_digits(number: float) -> str:
    """Two digits that count, or all before the point."""
    if number >= 10:
        return f"{number:,.0f}"
    return f"{number:.2g}" if number < 1 else f"{number:.1f}".removesuffix(".0")

"""Right before fast: a result that is wrong is not timed."""

import torch
from kernel.kinds import Layer, Operation, using

# Here everything is compared with the equations themselves, which are slow.
SMALL = 67
# Relative root mean square error of the result, and of each gradient.
TOLERANCES = {
    torch.float64: (1e-10, 1e-10),
    torch.float32: (1e-5, 1e-4),
    torch.float16: (2e-2, 2e-2),
    torch.bfloat16: (2e-2, 2e-2),
}


class WrongResultError(Exception):
    """An implementation computes something else than the equations."""


def check(
    case: Operation | Layer, implementations: list[str], length: int, device: torch.device, dtype: torch.dtype
) -> None:
    """Compare result and gradients with the truth in float64: the equations at length SMALL; beyond it plain PyTorch,
    which is one of those that are compared with the equations there.

    Raises:
        WrongResultError: with what is wrong, and by how much.
    """
    truth = truth_of(case, length, device, dtype)
    for implementation in implementations:
        for index, error in enumerate(errors_of(case, implementation, length, device, dtype, truth)):
            allowed = TOLERANCES[dtype][min(index, 1)]
            if not error <= allowed:  # a NaN is wrong too
                what = f"gradient {index}" if index else "result"
                raise WrongResultError(
                    f"{case.name}, {implementation}, N={length}: the {what} is off by {error:.1e}; allowed: {allowed}"
                )


def errors_of(
    case: Operation | Layer,
    implementation: str,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
    truth: list[torch.Tensor],
) -> list[float]:
    """The relative errors of the result and of each gradient, against `truth_of` the same case."""
    with using(implementation):
        found = case.prepare(length, device, dtype).gradients()
    return [relative_error(tensor, expected) for tensor, expected in zip(found, truth, strict=True)]


def truth_of(
    case: Operation | Layer,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
    exact: torch.dtype = torch.float64,
) -> list[torch.Tensor]:
    """Result and gradients in `exact` of the inputs that `dtype` rounds: by the equations up to length SMALL, beyond it
    by plain PyTorch."""
    prepared = case.prepare(length, device, exact)
    if dtype != exact:
        rounded = case.prepare(length, device, dtype)
        with torch.no_grad():
            for leaf, value in zip(prepared.leaves, rounded.leaves, strict=True):
                leaf.copy_(value)
    with using("reference" if length <= SMALL else "portable"):
        return prepared.gradients()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|; the absolute error where nothing is expected."""
    size = expected.double().norm().item()
    return (found.double() - expected.double()).norm().item() / (size or 1.0)

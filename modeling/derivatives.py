"""Second derivatives of functions whose gradient is written by hand, and may write where autograd cannot follow."""

from collections.abc import Callable, Sequence

import torch


def by_autograd(
    function: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]],
    inputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
) -> list[torch.Tensor | None]:
    """Gradients of `function(*inputs)` that can be differentiated, None for inputs that have none.

    A backward pass returns these where gradients are enabled within it (`create_graph=True`). torch's own
    `once_differentiable` would lose, without an error, what the gradient owes to values that it has saved.

    Args:
        function: a function of `inputs`, in operations that autograd knows.
        inputs: inputs of the forward pass as they were saved, not made from them: those have no graph.
        gradients: what came in, for each result.
    """
    # Views: an input that is given twice has two gradients.
    apart = [tensor.view_as(tensor) for tensor in inputs]
    wanted = [tensor for tensor in apart if tensor.requires_grad]
    found = iter(torch.autograd.grad(function(*apart), wanted, gradients, create_graph=True))
    return [next(found) if tensor.requires_grad else None for tensor in apart]

"""Running combinations of blocks: linear work, logarithmic depth."""

from collections.abc import Callable

import torch

from .devices import must_be_deterministic

Items = tuple[torch.Tensor, ...]


def prefix(join: Callable[[Items, Items], Items], items: Items) -> Items:
    """Item c of the result is items 0 .. c joined in their order.

    Neighbours are joined to pairs, the pairs' prefixes found in the same way, and those between them filled in.

    Args:
        join: associative; (left items, right items), elementwise along axis 2.
        items: tensors whose axis 2 counts the items, at least one.
    """
    count = items[0].shape[2]
    if count == 1:
        return items
    left = tuple(item[:, :, 0::2] for item in items)
    right = tuple(item[:, :, 1::2] for item in items)
    pairs = prefix(join, join(tuple(item[:, :, : count // 2] for item in left), right))
    between = join(
        tuple(item[:, :, : (count - 1) // 2] for item in pairs),
        tuple(item[:, :, 1:] for item in left),
    )
    return tuple(
        _interleave(torch.cat([first[:, :, :1], rest], 2), second)
        for first, rest, second in zip(left, between, pairs, strict=True)
    )


def running_sum(x: torch.Tensor) -> torch.Tensor:
    """x.cumsum(-1), also on a GPU under `torch.use_deterministic_algorithms`, where torch refuses it."""
    if not must_be_deterministic(x):
        return x.cumsum(-1)
    if x.numel() == 0:
        return x
    (summed,) = prefix(lambda left, right: (left[0] + right[0],), (x.reshape(1, -1, x.shape[-1]),))
    return summed.view(x.shape)


def entering(
    join: Callable[[Items, Items], Items], items: Items, nothing: tuple[float, ...], backwards: bool = False
) -> Items:
    """The items before each item, or `backwards` those behind it, joined; before the first one stands `nothing`."""
    if backwards:
        items = tuple(item.flip(2) for item in items)
    items = tuple(
        torch.cat([torch.full_like(item[:, :, :1], fill), item[:, :, :-1]], 2)
        for item, fill in zip(prefix(join, items), nothing, strict=True)
    )
    return tuple(item.flip(2) for item in items) if backwards else items


def _interleave(even: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """even[0], odd[0], even[1], ... along axis 2; `even` may have one more."""
    count = odd.shape[2]
    together = torch.stack([even[:, :, :count], odd], 3).flatten(2, 3)
    return together if even.shape[2] == count else torch.cat([together, even[:, :, count:]], 2)

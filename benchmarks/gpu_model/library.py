"""What PyTorch's operators launch on a GPU, and how much they move: of every dispatched operator a Launch."""

import math

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .cards import Launch

# Operators without a launch, which no schema marks as views.
FREE = {
    "_reshape_alias",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
# name, name_like and new_name.
_FORMS = ("{}", "{}_like", "new_{}")
FILLS = {
    "arange",
    "eye",
    "scalar_tensor",
    *(form.format(name) for name in ("zeros", "ones", "full") for form in _FORMS),
}
OVERWRITES = {"copy_", "fill_", "zero_"}
GATHERS = {"index_select", "gather", "embedding", "index", "take"}
SCATTERS = {"scatter", "index_copy", "index_put", "index_add", "scatter_add"}
ADDING_SCATTERS = {"index_add", "scatter_add"}
# Zeros, and a copy into a part of them.
INTO_ZEROS = {
    "constant_pad_nd",
    "slice_backward",
    "select_backward",
    "diagonal_backward",
    "unfold_backward",
    "diag_embed",
}
# Others that take more launches than one, each of which reads and writes what the operator does.
PASSES = {"sort": 6, "argsort": 6, "topk": 2, "nonzero": 3, "masked_fill": 2, "repeat": 2}
# Fourier transforms of (tensor, axes, normalization, ..).
FOURIER = {"_fft_r2c", "_fft_c2c", "_fft_c2r"}
HALF = (torch.float16, torch.bfloat16)


def unique_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements that differ in their place: what is expanded counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride != 0 or size == 0:
            count *= size
    return count * tensor.element_size()


def launch_of(function: torch._ops.OpOverload, args: tuple, kwargs: dict, result: object) -> Launch | None:
    """The launch of an operator that has been called; None: it launches nothing."""
    name = function.overloadpacket.__name__
    if function.is_view or name in FREE:
        return None
    given = {key: value for key, value in kwargs.items() if key != "out"}
    read = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, torch.Tensor)]
    written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    fills = name.endswith("_") or kwargs.get("out") is not None
    if not fills and written and all(any(_shares(w, r) for r in read) for w in written):
        return None  # a view after all, as of reshape
    launches, size = _traffic(name, args, read, written)
    operations, unit = _operations(function, name, args, kwargs, result, read, written)
    return Launch(name, launches, size, operations, unit)


def _shares(written: torch.Tensor, read: torch.Tensor) -> bool:
    return written.untyped_storage()._cdata == read.untyped_storage()._cdata


def _traffic(name: str, args: tuple, read: list[torch.Tensor], written: list[torch.Tensor]) -> tuple[int, int]:
    """Launches, and bytes read and written."""
    of_read, of_written = sum(map(unique_bytes, read)), sum(map(unique_bytes, written))
    if name in FILLS:
        return 1, of_written
    if name in OVERWRITES:
        return 1, sum(map(unique_bytes, read[1:])) + of_written
    indices = sum(unique_bytes(tensor) for tensor in read if tensor.dtype == torch.int64)
    if name in GATHERS:
        return 1, 2 * of_written + indices
    in_place = name.endswith("_")
    if name.removesuffix("_") in SCATTERS:
        # Functions copy the tensor first. The rows are read, and written to their places, to be added there read too.
        rows = max(unique_bytes(tensor) for tensor in read[1:])
        moved = (3 if name.removesuffix("_") in ADDING_SCATTERS else 2) * rows + indices
        return (1, moved) if in_place else (2, moved + 2 * of_written)
    if name in INTO_ZEROS:
        return 2, of_written + 2 * of_read
    if name in ("_embedding_bag", "_embedding_bag_forward_only"):
        table, index = args[:2]
        return 1, _rows(table, index) + of_read - unique_bytes(table) + of_written
    if name == "_embedding_bag_per_sample_weights_backward":
        _, table, index = args[:3]
        return 1, _rows(table, index) + of_read - unique_bytes(table) + of_written
    if name == "native_layer_norm_backward":
        # One kernel for the rows, one for the weights: both read gradient and input.
        return 2, of_read + sum(map(unique_bytes, args[:2])) + of_written
    if name in ("convolution", "convolution_backward") and _channels_last(args):
        # No layout changes. Forward the bias is added at last; backward are two products, and the sum for the bias.
        if name == "convolution":
            return 2, of_read + 3 * of_written
        return 3, 2 * of_read + unique_bytes(args[0]) + of_written
    if name == "convolution":
        # All three tensors change their layout: read and written once more; the bias is added at last.
        return 5, 3 * of_read + 5 * of_written
    if name == "convolution_backward":
        # Two products of three tensors each, with changes of layout, and the sum for the bias.
        return 9, 6 * of_read + 3 * of_written
    if name in FOURIER:
        # From complex to real the input is copied first, for cuFFT overwrites it; a scale is a launch of its own.
        copied, scaled = int(name == "_fft_c2r"), int(args[2] != 0)
        return 1 + copied + scaled, (1 + 2 * copied) * of_read + (1 + 2 * scaled) * of_written
    passes = PASSES.get(name, 1)
    return passes, passes * (of_read + of_written)


def _channels_last(args: tuple) -> bool:
    """Whether all images among the arguments of a convolution have the layout of its kernels."""
    images = [tensor for tensor in args if isinstance(tensor, torch.Tensor) and tensor.dim() == 4]
    return bool(images) and all(image.is_contiguous(memory_format=torch.channels_last) for image in images)


def _rows(table: torch.Tensor, index: torch.Tensor) -> int:
    """Bytes of the rows of a table that indices read."""
    return index.numel() * table.shape[1] * table.element_size()


def _operations(
    function: torch._ops.OpOverload,
    name: str,
    args: tuple,
    kwargs: dict,
    result: object,
    read: list[torch.Tensor],
    written: list[torch.Tensor],
) -> tuple[int, str]:
    """Operations and their unit: of products what they have, of everything else that computes one for each element."""
    floating = [tensor for tensor in (*read, *written) if tensor.dtype.is_floating_point or tensor.dtype.is_complex]
    wide = any(tensor.dtype in (torch.float64, torch.complex128) for tensor in floating)
    unit = "fp64" if wide else "fp32"
    if function.overloadpacket in flop_registry:
        half = all(tensor.dtype in HALF for tensor in floating)
        count = flop_registry[function.overloadpacket](*args, **kwargs, out_val=result)
        return int(count), "tensor core" if half else unit
    largest = max((tensor.numel() for tensor in floating), default=0)
    if name in FOURIER:
        length = max(tensor.shape[-1] for tensor in (*read, *written))
        return int(2.5 * largest * math.log2(max(2, length))), unit
    if name in FILLS or name in OVERWRITES or name in GATHERS or name in ("clone", "_to_copy", "cat"):
        return 0, unit
    return largest, unit

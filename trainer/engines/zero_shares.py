"""Which numbers of a parameter each rank keeps in DeepSpeed's ZeRO: for an optimizer that needs matrices whole, and for
a checkpoint's model.
"""

import math
from typing import Any

import torch

from longmix.data_prep.errors import UserError

from ..optimization.matrices import View
from ..optimization.muon import Piece, Share
from ..processes.world import World


def shares_of(zero: Any, stage: int, views: dict[int, View], world: World, name: str) -> dict[torch.Tensor, Share]:
    """The share of this rank in each flat tensor that holds matrices, by that tensor. Every rank must call it.

    Args:
        zero: DeepSpeed's optimizer of this stage, 1 to 3.
        views: the matrices, by the id of the parameter that holds them.
        name: of DeepSpeed's file.

    Raises:
        UserError: on every rank: the file lets DeepSpeed share parameters out in a way that is not known here.
    """
    shares = {}
    for flat, parameters, pieces in _flat_tensors(zero, stage, world):
        if id(parameters[0]) not in views:
            continue
        held = world.gather([piece.count for piece in pieces])
        sizes = [math.prod(views[id(one)]) for one in parameters]
        if [sum(counts) for counts in zip(*held, strict=True)] != sizes:
            raise UserError(
                f"deepspeed: {name} shares parameters out in a way that optim.name muon cannot follow: take "
                f"deepspeed=zero{stage}, or set optim.name=adamw"
            )
        holders = [
            frozenset(rank for rank, counts in enumerate(held) if counts[index]) for index in range(len(parameters))
        ]
        shares[flat] = Share([views[id(one)] for one in parameters], pieces, holders)
    return shares


def cast_shares(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast a model that was built in shares (see `in_shares`), as DeepSpeed casts others; those are left alone."""
    parameters = list(model.parameters())
    if not any(hasattr(parameter, "ds_tensor") for parameter in parameters):
        return
    for parameter in parameters:
        parameter.data = parameter.data.to(dtype)
        # The share, and the copy that some ranks keep among them (hpZ), by which the backward pass goes.
        for name in ("ds_tensor", "ds_secondary_tensor"):
            share = getattr(parameter, name, None)
            if share is not None:
                share.data = share.data.to(dtype)


# Numbers of each rank that are exchanged at a time: rank 0 holds this many of all ranks on its device.
GATHERED = 2**24


def gathered_masters(zero: Any, stage: int, world: World) -> dict[int, torch.Tensor]:
    """The fp32 values that stages 1 to 3 keep of trained parameters, whole and on the CPU of rank 0, by the id of each
    parameter; an empty map elsewhere. Every rank must call it.

    DeepSpeed's own function sums up each parameter over all ranks, onto all of them. Here each rank sends what it has.
    """
    masters = {}  # copies: files of models hold no views of something larger
    if stage < 3:
        for index, flat in enumerate(zero.single_partition_of_fp32_groups):
            whole = _gathered(flat, world).flatten()
            group, offsets = zero.round_robin_bit16_groups[index], zero.round_robin_bit16_offsets[index]
            for parameter, offset in zip(group, offsets, strict=True) if world.is_first else ():
                values = whole[offset : offset + parameter.numel()]
                masters[id(parameter)] = values.reshape(parameter.shape).clone()
    else:
        for flat, parameters in zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups, strict=True):
            whole, start = _gathered(flat, world), 0
            for parameter in parameters:
                part = parameter.partition_numel()
                if world.is_first:
                    values = whole[:, start : start + part].flatten()[: parameter.ds_numel]
                    masters[id(parameter)] = values.reshape(parameter.ds_shape).clone()
                start += part
    return masters


def _gathered(flat: torch.Tensor, world: World) -> torch.Tensor:
    """(world size, n): the flat tensors (n,) of all ranks on the CPU of rank 0; (world size, 0) elsewhere."""
    whole = torch.empty(world.size, flat.numel() if world.is_first else 0)
    for first in range(0, flat.numel(), GATHERED):
        piece = flat.detach()[first : first + GATHERED].to(world.device)
        parts = [torch.empty_like(piece) for _ in range(world.size)] if world.is_first else None
        if world.size > 1:
            torch.distributed.gather(piece, parts)
        else:
            parts = [piece]
        for rank, part in enumerate(parts or ()):
            whole[rank, first : first + GATHERED] = part
    return whole


def _flat_tensors(zero: Any, stage: int, world: World):
    """(flat tensor of this rank, the parameters that it stands for, the pieces of them that it holds)."""
    if stage < 3:
        # One tensor of all parameters of a group, cut into as many equal parts as there are ranks.
        for index, flat in enumerate(zero.single_partition_of_fp32_groups):
            start, end = world.rank * flat.numel(), (world.rank + 1) * flat.numel()
            parameters = zero.round_robin_bit16_groups[index]
            pieces = []
            for parameter, offset in zip(parameters, zero.round_robin_bit16_offsets[index], strict=True):
                first, last = max(start, offset), min(end, offset + parameter.numel())
                held = last > first
                pieces.append(Piece(first - start, first - offset, last - first) if held else Piece(0, 0, 0))
            yield flat, parameters, pieces
    else:
        # Each parameter is cut into as many equal parts as there are ranks, and a rank's parts stand one after another.
        for flat, parameters in zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups, strict=True):
            pieces, place = [], 0
            for parameter in parameters:
                part = parameter.partition_numel()
                start = min(world.rank * part, parameter.ds_numel)
                pieces.append(Piece(place, start, min(part, parameter.ds_numel - start)))
                place += part
            yield flat, parameters, pieces

"""Converter's rotations in Triton, of several orders or permuted: one kernel for each sweep over the rows.

The stages are those of stages.py. A program takes some channels of one sample and head, and the rows in chunks: within
a chunk the carries are one small triangular matrix product, from chunk to chunk one row is handed on.
"""

import torch
import triton
import triton.language as tl
from torch.nn import functional

from ..common.interpreter import interpreted
from .phases import stage_tables, transposed_stage_tables

# Longer chunks do not fit into the registers of a program's threads, as benchmarks/gpu_model shows.
CHUNK, CHANNELS = 16, 16 if interpreted() else 32
WARPS, REGISTERS = 4, 255

# Parts of a sweep: turns by phases, a chunk's rotations as one small matrix product, rows in memory.


@triton.jit
def _turn(real, imaginary, cosines, sines, row, valid, sign):
    """Rows (rows, channels) multiplied by cosine + i * sign * sine of their places in the tables."""
    cosine = tl.load(cosines + row, mask=valid, other=0.0)[:, None]
    sine = tl.load(sines + row, mask=valid, other=0.0)[:, None] * sign
    return real * cosine - imaginary * sine, real * sine + imaginary * cosine


@triton.jit
def _rotate(x, carry, products, to_carry, cosine, sine, first):
    """A chunk of rotations on one part of the rows: what each got from the one behind it, what it wrote, the carry."""
    got = tl.dot(products, cosine * x, input_precision="ieee") + to_carry * carry
    carry = tl.sum(tl.where(first, cosine * x - sine * got, 0.0), 0)[None, :]
    return got, sine * x + cosine * got, carry


@triton.jit
def _cross(real, imaginary, of_real, of_imaginary):
    """The derivative by the angle of a turn, the same before and after it."""
    return tl.sum(of_imaginary * real - of_real * imaginary, 1)


@triton.jit
def _products(sines, base, count, line, CHUNK: tl.constexpr, ASCENDING: tl.constexpr):
    """Factors by which a chunk's rows reach its rotations: [k, j] = prod_{k < i < j} -sin_i for k < j, else 0.

    The second result has those of its carry. Rotations behind the last one hand on what they get.
    """
    line, column = line[:, None], line[None, :]
    before = base + column - 1
    chained = (column > line + 1) & (before < count - 1)
    before = tl.where(ASCENDING, count - 2 - before, before)
    factors = -tl.load(sines + before + line * 0, mask=chained, other=-1.0)
    products = tl.where(column > line, tl.cumprod(factors, 1), 0.0)
    last = base + CHUNK - 1
    last_factor = -tl.load(sines + tl.where(ASCENDING, count - 2 - last, last), mask=last < count - 1, other=-1.0)
    to_carry = tl.sum(tl.where(column == CHUNK - 1, products, 0.0), 1)[:, None] * last_factor
    return products, tl.where(line == CHUNK - 1, 1.0, to_carry)


@triton.jit
def _read(
    x, of_x, offsets, mask, part, cosines, sines, sums, row, valid, sign, TURN: tl.constexpr, GRADIENT: tl.constexpr
):
    """Rows (rows, channels) and their gradients, or the rows twice, turned; `sums` get the derivative by that turn."""
    real = tl.load(x + offsets, mask=mask, other=0.0)
    imaginary = tl.load(x + offsets + part, mask=mask, other=0.0)
    of_real, of_imaginary = real, imaginary
    if GRADIENT:
        of_real = tl.load(of_x + offsets, mask=mask, other=0.0)
        of_imaginary = tl.load(of_x + offsets + part, mask=mask, other=0.0)
    if TURN:
        if GRADIENT:
            tl.store(sums + row, _cross(real, imaginary, of_real, of_imaginary), mask=valid)
            of_real, of_imaginary = _turn(of_real, of_imaginary, cosines, sines, row, valid, sign)
        real, imaginary = _turn(real, imaginary, cosines, sines, row, valid, sign)
    return real, imaginary, of_real, of_imaginary


@triton.jit
def _write(
    x,
    of_x,
    offsets,
    mask,
    part,
    cosines,
    sines,
    sums,
    row,
    valid,
    sign,
    real,
    imaginary,
    of_real,
    of_imaginary,
    TURN: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    """Turn rows and leave them, and their gradients; `sums` get the derivative by that turn."""
    if TURN:
        if GRADIENT:
            tl.store(sums + row, _cross(real, imaginary, of_real, of_imaginary), mask=valid)
            of_real, of_imaginary = _turn(of_real, of_imaginary, cosines, sines, row, valid, sign)
        real, imaginary = _turn(real, imaginary, cosines, sines, row, valid, sign)
    tl.store(x + offsets, real, mask=mask)
    tl.store(x + offsets + part, imaginary, mask=mask)
    if GRADIENT:
        tl.store(of_x + offsets, of_real, mask=mask)
        tl.store(of_x + offsets + part, of_imaginary, mask=mask)


@triton.jit
def _offsets(rows, row, valid, row_stride, channels, PERMUTED: tl.constexpr):
    place = row
    if PERMUTED:
        place = tl.load(rows + row, mask=valid, other=0)
    return place[:, None].to(tl.int64) * row_stride + channels


@triton.jit
def _sweep(
    source,
    of_source,
    result,
    of_result,
    cosines,
    sines,
    rotation,
    before,
    after,
    before_sign,
    after_sign,
    sums,
    lengths,
    from_rows,
    to_rows,
    positions,
    heads,
    width,
    tables,
    head_stride,
    channel_stride,
    part,
    order_stride,
    ASCENDING: tl.constexpr,
    BEFORE: tl.constexpr,
    AFTER: tl.constexpr,
    FROM: tl.constexpr,
    TO: tl.constexpr,
    GRADIENT: tl.constexpr,
    CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One stage: turn the rows, sweep over them from the last to the first (ASCENDING: their mirror image), turn them.

    Row k of the stage is row from_rows[k] of `source`, and goes to row to_rows[k] of `result`. `rotation`, `before` and
    `after` are the numbers of tables in cosines and sines (B, H, tables, N). With GRADIENT the rows have gradients
    beside them, and `sums` (3, channel blocks, B, H, N) get the derivatives by the angles of rotations and turns.
    """
    pair, block = tl.program_id(0), tl.program_id(1)
    sample = pair // heads
    count = tl.load(lengths + sample).to(tl.int32)
    if count == 0:
        return
    line = tl.arange(0, CHUNK)
    first = line == 0
    channel = block * CHANNELS + tl.arange(0, CHANNELS)
    inside = (channel < width)[None, :]
    row_stride = 2 * heads * width
    start = sample.to(tl.int64) * positions * row_stride + (pair % heads) * head_stride
    channels = (start + channel * channel_stride)[None, :]
    table = pair.to(tl.int64) * tables * positions
    rotation_cosines, rotation_sines = cosines + table + rotation * positions, sines + table + rotation * positions
    before_cosines, before_sines = cosines + table + before * positions, sines + table + before * positions
    after_cosines, after_sines = cosines + table + after * positions, sines + table + after * positions
    size = tl.num_programs(0).to(tl.int64) * positions
    by_rotation = sums + block * size + pair * positions
    by_before = by_rotation + tl.num_programs(1) * size
    by_after = by_before + tl.num_programs(1) * size
    from_rows += sample * order_stride
    to_rows += sample * order_stride

    # The row that the sweep begins with is all that is handed on; it stands alone in a tile.
    row = tl.where(first, tl.where(ASCENDING, 0, count - 1), 0)
    offsets = _offsets(from_rows, row, first, row_stride, channels, FROM)
    mask = first[:, None] & inside
    real, imaginary, of_real, of_imaginary = _read(
        source, of_source, offsets, mask, part, before_cosines, before_sines, by_before, row, first, before_sign,
        BEFORE, GRADIENT,
    )  # fmt: skip
    carry_real, carry_imaginary = tl.sum(real, 0)[None, :], tl.sum(imaginary, 0)[None, :]
    of_carry_real, of_carry_imaginary = tl.sum(of_real, 0)[None, :], tl.sum(of_imaginary, 0)[None, :]

    chunks = tl.cdiv(count - 1, CHUNK)
    for number in range(chunks):
        # Rotation k reads row k and writes row k + 1, counted from where the sweep ends.
        base = (chunks - 1 - number) * CHUNK
        k = base + line
        valid = k < count - 1
        mask = valid[:, None] & inside
        row = tl.where(ASCENDING, count - 1 - k, k)
        offsets = _offsets(from_rows, row, valid, row_stride, channels, FROM)
        real, imaginary, of_real, of_imaginary = _read(
            source, of_source, offsets, mask, part, before_cosines, before_sines, by_before, row, valid, before_sign,
            BEFORE, GRADIENT,
        )  # fmt: skip

        at = tl.where(ASCENDING, count - 2 - k, k)
        cosine = tl.load(rotation_cosines + at, mask=valid, other=0.0)[:, None]
        sine = tl.load(rotation_sines + at, mask=valid, other=-1.0)[:, None]
        products, to_carry = _products(rotation_sines, base, count, line, CHUNK, ASCENDING)
        top = first[:, None]
        got_real, done_real, carry_real = _rotate(real, carry_real, products, to_carry, cosine, sine, top)
        got_imaginary, done_imaginary, carry_imaginary = _rotate(
            imaginary, carry_imaginary, products, to_carry, cosine, sine, top
        )
        of_done_real, of_done_imaginary = done_real, done_imaginary
        if GRADIENT:
            of_got_real, of_done_real, of_carry_real = _rotate(
                of_real, of_carry_real, products, to_carry, cosine, sine, top
            )
            of_got_imaginary, of_done_imaginary, of_carry_imaginary = _rotate(
                of_imaginary, of_carry_imaginary, products, to_carry, cosine, sine, top
            )
            crossed = of_real * got_real - of_got_real * real
            crossed += of_imaginary * got_imaginary - of_got_imaginary * imaginary
            tl.store(by_rotation + at, tl.sum(crossed, 1), mask=valid)

        row = tl.where(ASCENDING, count - 2 - k, k + 1)
        offsets = _offsets(to_rows, row, valid, row_stride, channels, TO)
        _write(
            result, of_result, offsets, mask, part, after_cosines, after_sines, by_after, row, valid, after_sign,
            done_real, done_imaginary, of_done_real, of_done_imaginary, AFTER, GRADIENT,
        )  # fmt: skip

    # What the last rotation hands on is the row that the sweep ends with.
    row = tl.where(first, tl.where(ASCENDING, count - 1, 0), 0)
    offsets = _offsets(to_rows, row, first, row_stride, channels, TO)
    mask = first[:, None] & inside
    zeros = tl.zeros([CHUNK, CHANNELS], tl.float32)
    _write(
        result, of_result, offsets, mask, part, after_cosines, after_sines, by_after, row, first, after_sign,
        zeros + carry_real, zeros + carry_imaginary, zeros + of_carry_real, zeros + of_carry_imaginary, AFTER, GRADIENT,
    )  # fmt: skip


# Launches: the order of the sweeps and their tables, forward and, from the result alone, backward.


def givens_mix(value, upper, lower, phase, lengths, order, planes):
    """Phi^-1 exp(i phase) Phi value in fp32; see operator.py."""
    stages = _Stages(value, upper, lower, phase, lengths, order, planes)
    return stages.run(value.float()).to(value.dtype)


def givens_mix_backward(gradient, mixed, upper, lower, phase, lengths, order, planes):
    """Gradients of value, upper, lower and phase from that of the result `mixed`, and from the result itself."""
    stages = _Stages(mixed, upper, lower, phase, lengths, order, planes)
    # Inverse and adjoint are one: what takes the result back to the value does so with its gradient as well.
    of_value = stages.run(mixed.float(), gradient.float())
    return of_value.to(mixed.dtype), *stages.angle_gradients()


class _Stages:
    """The sweeps of stages.py, each one launched as a kernel, and what they add up for the angles."""

    def __init__(self, value, upper, lower, phase, lengths, order, planes):
        self.batch, self.positions = value.shape[:2]
        self.heads, self.width = value.shape[3:] if planes else value.shape[2:4]
        self.orders, self.order, self.planes = upper.shape[2], order, planes
        position = torch.arange(self.positions, device=value.device)
        if lengths is None:
            lengths = torch.full((self.batch,), self.positions, device=value.device)
        self.lengths = lengths
        self.valid = position < lengths[:, None, None]
        both = self.valid[:, :, None, 1:, None]
        upper, lower = torch.where(both, upper, 0.0), torch.where(both, lower, 0.0)
        phase = torch.where(self.valid, phase, 0.0)
        rotations, phases = stage_tables(upper, lower, phase, order)
        angles = torch.cat([functional.pad(rotations, (0, 1)), phases], 2)
        self.cosines, self.sines = angles.cos().float().contiguous(), angles.sin().float().contiguous()
        self.sums = torch.zeros_like(self.cosines)

    def run(self, x: torch.Tensor, gradient: torch.Tensor | None = None) -> torch.Tensor:
        """Result of all stages on the rows or, given gradients too, on the way back: the gradients of what went in."""
        rows = [x, torch.empty_like(x), torch.zeros_like(x)]
        gradients = rows if gradient is None else [gradient, torch.empty_like(x), torch.zeros_like(x)]
        source, target = 0, 1
        for sweep in self._sweeps(-1 if gradient is not None else 1):
            self._launch(rows[source], gradients[source], rows[target], gradients[target], gradient is not None, *sweep)
            source, target = target, 3 - target
        return gradients[source]

    def _sweeps(self, eigenvalues: int):
        """(rotation's table, ascending, (phases' table, sign) before and after or None, order read and written)."""
        phases = 2 * self.orders
        for number in reversed(range(self.orders)):
            upper, lower = 2 * number, 2 * number + 1
            turn = (4 * self.orders, eigenvalues) if number == 0 else None
            yield upper, False, (phases + upper, 1), None, number, None
            yield lower, True, (phases + lower, 1), turn, None, None
        for number in range(self.orders):
            upper, lower = 2 * number, 2 * number + 1
            yield lower, False, None, (phases + lower, -1), None, None
            yield upper, True, None, (phases + upper, -1), None, number

    def _launch(self, x, of_x, y, of_y, gradient, rotation, ascending, before, after, read, written):
        blocks = triton.cdiv(self.width, CHANNELS)
        pairs = self.batch * self.heads
        sums = torch.zeros(3, blocks if gradient else 0, *self.cosines[:, :, 0].shape, device=x.device)
        head, channel, part = (self.width, 1, self.heads * self.width) if self.planes else (2 * self.width, 2, 1)
        rows = [self.lengths if self.order is None or n is None else self.order[:, n] for n in (read, written)]
        _sweep[(pairs, blocks)](
            *(x, of_x, y, of_y, self.cosines, self.sines),
            *(rotation, before[0] if before else 0, after[0] if after else 0),
            *(before[1] if before else 1, after[1] if after else 1, sums, self.lengths, *rows),
            *(self.positions, self.heads, self.width, self.cosines.shape[2], head, channel, part),
            0 if self.order is None or self.order.shape[0] == 1 else self.order.stride(0),
            ASCENDING=ascending,
            BEFORE=before is not None,
            AFTER=after is not None,
            FROM=self.order is not None and read is not None,
            TO=self.order is not None and written is not None,
            GRADIENT=gradient,
            CHUNK=CHUNK,
            CHANNELS=CHANNELS,
            num_warps=WARPS,
            maxnreg=REGISTERS,
        )
        if gradient:
            by_rotation, *by_turns = sums.sum(1).unbind(0)
            self.sums[:, :, rotation] += by_rotation
            for turn, by_turn in zip((before, after), by_turns, strict=True):
                if turn is not None:
                    self.sums[:, :, turn[0]] -= turn[1] * by_turn

    def angle_gradients(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of upper, lower and phase, float64."""
        rotations, phases = self.sums.double().split([2 * self.orders, 2 * self.orders + 1], 2)
        upper, lower, phase = transposed_stage_tables(rotations[..., :-1], phases, self.order)
        both = self.valid[:, :, None, 1:, None]
        return torch.where(both, upper, 0.0), torch.where(both, lower, 0.0), torch.where(self.valid, phase, 0.0)

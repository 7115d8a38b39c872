"""Images of Pathfinder, generated: are the two discs of an image joined by one dashed path?

An image follows the settings that Long Range Arena states for its 32x32 images (lra_benchmarks/data/
pathfinder.py; the task is Linsley et al. 2018's and Kim et al. 2020's): two paths of 6, 9 or 14 dashes of 2 pixels
that begin 7 pixels apart and grow together, at each joint turned by an angle of density cos^2, and 20 dashes in
distractors of a third of that length, as many of them as find room. Both classes share one distribution of scenes: a
disc marks the begin of the first path, another the end of that path, or of the second.

It is stricter than the release in one thing. Two dashes of one path come within JOINED pixels of each other, row- and
column-wise, whereas different paths never do: a flood fill that takes such steps finds the label of every image. In
the release paths may come so close that the image does not tell.

An image is a pure function of (seed, split, its number).
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from longmix.data_prep.split_names import SPLITS

SIDE = 32
PATH_LENGTHS = (6, 9, 14)  # dashes of a path: easy, intermediate, hard
JOINED = 2  # farthest step of a path: at most one empty pixel between two dashes
DISC, DASH = 255, 191  # gray values; the stated contrast of dashes is 0.75
_FORMAT = 1  # raise it when the same settings are to give other samples

# Positions are whole numbers of 1 / _UNITS pixel, directions of 1 / _DIRECTIONS turn: few stamps then serve all dashes.
_UNITS, _DIRECTIONS = 4, 64
_DASH_LENGTH, _MARGIN, _DISC_RADIUS = 2, 1, 1.5
_PITCH = _DASH_LENGTH + 2 * _MARGIN
_SEED_DISTANCE = 7
_PADDING = 1
_DISTRACTING_DASHES = 20
_DISTRACTOR_TRIALS = 200
_TURNS = np.arange(-(_DIRECTIONS // 4) + 1, _DIRECTIONS // 4)  # below a right angle
# A dash's brightness falls to zero at the first distance in pixels; what is fainter than the second is left out.
_FADE, _FAINTEST = 1.0, 0.25

# Pixels are bits of an integer: a frame around the image lets stamps and dilation reach over its edge.
_FRAME = 5
_STRIDE = SIDE + 2 * _FRAME
_REACH = 4  # pixels of a stamp to each side


@dataclass(frozen=True)
class _Scene:
    """Two paths and their surroundings, before a label is chosen.

    Attributes:
        dashes: the stamps of all paths, as (offset, stamp).
        begin: the middle of the disc at the first path's begin, (row, column) in 1 / _UNITS pixel.
        ends: those of the discs at the ends of the first path and of the second.
    """

    dashes: tuple[tuple[int, "_Stamp"], ...]
    begin: tuple[int, int]
    ends: tuple[tuple[int, int], tuple[int, int]]


def make_image(path_length: int, seed: int, split: str, index: int) -> tuple[np.ndarray, int]:
    """Image `index` of a split, (SIDE, SIDE) uint8, and whether its discs are joined (1) or not (0).

    Of the images 2 k and 2 k + 1 one is joined: every split is balanced.

    Args:
        path_length: dashes of a path, one of PATH_LENGTHS.
        seed: another one gives other images.
    """
    key = [_FORMAT, seed, SPLITS.index(split)]
    label = int(np.random.default_rng([*key, 0, index // 2]).integers(2)) ^ (index % 2)
    generator = np.random.default_rng([*key, 1, index])
    scene = None
    while scene is None:
        scene = _make_scene(generator, path_length)
    return _draw(scene.dashes, (scene.begin, scene.ends[0] if label else scene.ends[1])), label


@dataclass(frozen=True)
class _Stamp:
    """A shape about the pixel that holds its position: its pixels as bits, from `-_REACH` rows and columns on, and
    their brightness (2 _REACH + 1, 2 _REACH + 1)."""

    bits: int
    brightness: np.ndarray


@dataclass
class _Path:
    """A path that grows.

    Attributes:
        row, column: where its next dash begins, in 1 / _UNITS pixel.
        direction: of the last dash.
        tip: where that dash is tipped by a disc: its begin for a first dash, else its end.
        older: the pixels before the last dash.
        last: those of the last dash, and of the disc that is reserved there.
    """

    row: int
    column: int
    direction: int
    tip: tuple[int, int]
    older: int
    last: int


# -----------------------------------------------------------------------------
# A scene: two paths that grow by turns, then distractors. Every dash is checked against all pixels around it.


def _make_scene(generator: np.random.Generator, length: int) -> _Scene | None:
    """A scene; None where the paths got stuck."""
    middle = SIDE * _UNITS // 2
    spread = (SIDE - 4 * _SEED_DISTANCE) * _UNITS // 2
    row, column = (int(value) for value in generator.integers(middle - spread, middle + spread, 2))
    away = 2 * math.pi * generator.random()
    beside = (
        row + round(_SEED_DISTANCE * _UNITS * math.sin(away)),
        column + round(_SEED_DISTANCE * _UNITS * math.cos(away)),
    )
    blocked = _OUTSIDE
    dashes: list[tuple[int, _Stamp]] = []
    begins, paths = [], []
    for start in ((row, column), beside):
        # Discs are reserved at all four ends, so that the space around an end does not tell whether it is marked.
        path = _begin(generator, *start, blocked, dashes, with_disc=True)
        if path is None:
            return None
        begins.append(path.tip)
        paths.append(path)
        blocked |= _dilate(path.last)
    # Each may not touch the other's pixels, nor its own older ones.
    for number in range(1, length):
        for path, other in (paths, paths[::-1]):
            around = _OUTSIDE | _dilate(other.older | other.last)
            if not _extend(generator, path, around, dashes, with_disc=number == length - 1):
                return None
    blocked = _OUTSIDE
    for path in paths:
        blocked |= _dilate(path.older | path.last)
    distractor = length // 3
    for _ in range(_DISTRACTING_DASHES // distractor):
        for _ in range(_DISTRACTOR_TRIALS):
            pixels = _distract(generator, distractor, blocked, dashes)
            if pixels:
                blocked |= _dilate(pixels)
                break
    return _Scene(tuple(dashes), begins[0], (paths[0].tip, paths[1].tip))


def _distract(generator: np.random.Generator, length: int, blocked: int, dashes: list[tuple[int, _Stamp]]) -> int:
    """Add a path of `length` dashes anywhere outside `blocked`; returns its pixels, 0 where there was no room."""
    tried: list[tuple[int, _Stamp]] = []
    row, column = (int(value) for value in generator.integers(0, SIDE * _UNITS, 2))
    path = _begin(generator, row, column, blocked, tried, with_disc=False)
    if path is None:
        return 0
    for _ in range(length - 1):
        if not _extend(generator, path, blocked, tried, with_disc=False):
            return 0
    dashes.extend(tried)
    return path.older | path.last


def _begin(
    generator: np.random.Generator,
    row: int,
    column: int,
    blocked: int,
    dashes: list[tuple[int, _Stamp]],
    with_disc: bool,
) -> _Path | None:
    """The first dash of a path that leaves (row, column) in any direction; None if that is blocked."""
    direction = int(generator.integers(_DIRECTIONS))
    tip = _step(row, column, direction, _MARGIN)
    placed = _place(row, column, direction, blocked, tip if with_disc else None)
    if placed is None:
        return None
    offset, stamp, pixels = placed
    dashes.append((offset, stamp))
    return _Path(*_step(row, column, direction, _PITCH), direction, tip, 0, pixels)


def _extend(
    generator: np.random.Generator, path: _Path, blocked: int, dashes: list[tuple[int, _Stamp]], with_disc: bool
) -> bool:
    """Add a dash to a path, within JOINED pixels of its last one and farther from all else; False if none fits."""
    blocked |= _dilate(path.older)
    near = _dilate(path.last)
    # Ordered by keys of this density, the first turn that fits is a draw from those that fit.
    keys = np.log(generator.random(len(_TURNS))) / np.cos(2 * math.pi * _TURNS / _DIRECTIONS) ** 2
    for turn in _TURNS[np.argsort(-keys)].tolist():
        direction = (path.direction + turn) % _DIRECTIONS
        tip = _step(path.row, path.column, direction, _MARGIN + _DASH_LENGTH)
        placed = _place(path.row, path.column, direction, blocked, tip if with_disc else None)
        if placed is None or not placed[2] & near:
            continue
        offset, stamp, pixels = placed
        dashes.append((offset, stamp))
        path.older |= path.last
        path.last = pixels
        path.row, path.column = _step(path.row, path.column, direction, _PITCH)
        path.direction, path.tip = direction, tip
        return True
    return False


def _place(
    row: int, column: int, direction: int, blocked: int, disc: tuple[int, int] | None
) -> tuple[int, _Stamp, int] | None:
    """The dash that leaves (row, column): (offset, stamp, its pixels and those of the disc); None if it is blocked."""
    offset = _offset(row, column)
    if offset is None:
        return None
    stamp = _dash_stamp(row % _UNITS, column % _UNITS, direction)
    pixels = stamp.bits << offset
    if disc is not None:
        disc_offset = _offset(*disc)
        if disc_offset is None:
            return None
        pixels |= _disc_stamp(disc[0] % _UNITS, disc[1] % _UNITS).bits << disc_offset
    return None if pixels & blocked else (offset, stamp, pixels)


# -----------------------------------------------------------------------------
# Geometry: positions to bits of an integer, with which one AND tells whether two shapes come too close.


def _step(row: int, column: int, direction: int, pixels: float) -> tuple[int, int]:
    """The place beside (row, column) in a direction."""
    angle = 2 * math.pi * direction / _DIRECTIONS
    return row + round(pixels * _UNITS * math.sin(angle)), column + round(pixels * _UNITS * math.cos(angle))


def _offset(row: int, column: int) -> int | None:
    """The bit at which a stamp for (row, column) starts; None if it would leave the frame."""
    top, left = row // _UNITS - _REACH + _FRAME, column // _UNITS - _REACH + _FRAME
    size = 2 * _REACH + 1
    if top < 0 or left < 0 or top + size > _STRIDE or left + size > _STRIDE:
        return None
    return top * _STRIDE + left


def _dilate(bits: int) -> int:
    """All pixels within JOINED rows and columns of those."""
    for unit in (1, _STRIDE):
        bits |= functools.reduce(
            lambda found, step, unit=unit, bits=bits: found | bits << step * unit | bits >> step * unit,
            range(1, JOINED + 1),
            0,
        )
    return bits


# -----------------------------------------------------------------------------
# Drawing: there are few positions below a pixel and few directions, so each shape is drawn once.


@functools.cache
def _dash_stamp(row: int, column: int, direction: int) -> _Stamp:
    """A dash that begins _MARGIN pixels from (row, column), below one pixel, in 1 / _UNITS of it."""
    angle = 2 * math.pi * direction / _DIRECTIONS
    rows, columns = _grid(row, column)
    along = rows * math.sin(angle) + columns * math.cos(angle)
    across = columns * math.sin(angle) - rows * math.cos(angle)
    beyond = along - np.clip(along, _MARGIN, _MARGIN + _DASH_LENGTH)
    brightness = 1 - np.hypot(beyond, across) / _FADE
    return _stamp(DASH * np.where(brightness >= _FAINTEST, brightness, 0))


@functools.cache
def _disc_stamp(row: int, column: int) -> _Stamp:
    """A disc about (row, column), below one pixel, in 1 / _UNITS of it."""
    return _stamp(DISC * (np.hypot(*_grid(row, column)) <= _DISC_RADIUS))


def _grid(row: int, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a stamp's pixel middles, in pixels from (row, column)."""
    pixels = np.arange(-_REACH, _REACH + 1) + 0.5
    return pixels[:, None] - row / _UNITS, pixels[None, :] - column / _UNITS


def _stamp(brightness: np.ndarray) -> _Stamp:
    brightness = np.rint(brightness).astype(np.uint8)
    bits = sum(1 << int(row) * _STRIDE + int(column) for row, column in np.argwhere(brightness))
    return _Stamp(bits, brightness)


def _draw(dashes: tuple[tuple[int, _Stamp], ...], discs: tuple[tuple[int, int], ...]) -> np.ndarray:
    """The image, (SIDE, SIDE) uint8."""
    canvas = np.zeros((_STRIDE, _STRIDE), dtype=np.uint8)
    size = 2 * _REACH + 1
    marks = [(_offset(*disc), _disc_stamp(disc[0] % _UNITS, disc[1] % _UNITS)) for disc in discs]
    for offset, stamp in (*dashes, *marks):
        top, left = divmod(offset, _STRIDE)
        part = canvas[top : top + size, left : left + size]
        np.maximum(part, stamp.brightness, out=part)
    return canvas[_FRAME:-_FRAME, _FRAME:-_FRAME]


def _outside() -> int:
    inner = range(_FRAME + _PADDING, _FRAME + SIDE - _PADDING)
    return sum(
        1 << row * _STRIDE + column
        for row in range(_STRIDE)
        for column in range(_STRIDE)
        if row not in inner or column not in inner
    )


_OUTSIDE = _outside()

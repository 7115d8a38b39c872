"""Horizontal lines of a plot: what counting, or always answering the most frequent class, reaches."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Level:
    """A horizontal line.

    Attributes:
        letters: of the rows that it is for; they stand on it, for it looks like those of other rows. "" where there are
            no others.
        name: the same for the levels of all rows.
    """

    place: float
    letters: str
    name: str
    colour: str
    dashes: tuple[int, int]


def draw_levels(axes: Any, levels: list[Level]) -> None:
    """Draw levels, those of one name as one entry of the legend. Their letters stand side by side: levels may be close
    to each other.
    """
    groups = list(dict.fromkeys(level.letters for level in levels))
    named: set[str] = set()
    for level in levels:
        label = None if level.name in named else level.name
        named.add(level.name)
        axes.axhline(level.place, color=level.colour, linewidth=0.9, linestyle=(0, level.dashes), label=label)
        if level.letters:
            after = groups[groups.index(level.letters) + 1 :]
            axes.annotate(
                level.letters,
                (1, level.place),
                (-5 - sum(5 + 5 * len(letters) for letters in after), 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=7,
                color="#333333",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )


def levels_note(levels: list[Level]) -> str:
    """What is said of the letters on levels, if there are any."""
    return "; levels: of the rows of the letters on them" if any(level.letters for level in levels) else ""

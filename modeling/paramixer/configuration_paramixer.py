"""Configuration of Paramixer."""

from typing import Any, ClassVar

from ..configuration import MixerConfig

PROTOCOLS = ("chord", "cdil")
WEIGHT_SOURCES = ("embeddings", "input")
# The published code's number of links under CDIL.
CDIL_LINKS = 9
LARGEST_OFFSET = 2**31


class ParamixerConfig(MixerConfig):
    """Mixing by a product of sparse factors; see MixerConfig for the shared fields. There are no heads.

    Args:
        protocol: chord (in every factor a position links to those 1, 2, 4, ... further on) | cdil (in factor m = 0, 1,
            ... to its neighbours on both sides, 2^m positions apart).
        links: K, links of a position in each factor, the one to itself included; None: cdil 9; chord
            ceil(log2(max_position_embeddings)) + 1, with symmetric twice as many besides the one to itself.
        factors: M; fewest: ceil(log2(max_position_embeddings)), at least 1, with symmetric half as many, rounded up,
            which reach every token too; None: not half as many, as in earlier versions.
        symmetric: chord links lead both ways, 1, 2, 4, ... positions on and back.
        weights_from: embeddings (what entered the first block) | input (of the block): what the weights of the links
            are computed from.
        link_hidden_size: hidden width of the networks that compute the weights, one for each factor.
        value_hidden_size: hidden width of the network that computes the values; None: hidden_size. In the paper it is
            link_hidden_size.
        value_dropout_prob: dropout at the end of the paper's block; None: hidden_dropout_prob.
    """

    model_type = "paramixer"
    earlier_defaults: ClassVar[dict[str, Any]] = {"factors": None}

    protocol: str = "chord"
    links: int | None = None
    factors: int | str | None = "fewest"
    symmetric: bool = False
    weights_from: str = "embeddings"
    link_hidden_size: int = 64
    value_hidden_size: int | None = None
    value_dropout_prob: float | None = None

    def fill_defaults(self) -> None:
        """See MixerConfig."""
        super().fill_defaults()
        if not isinstance(self.max_position_embeddings, int):
            return  # check() refuses it
        if self.factors is None:
            self.factors = doublings(self.max_position_embeddings)
        if self.factors == "fewest":
            self.factors = self._fewest(self.max_position_embeddings)
        if self.links is None:
            sides = 2 if self.symmetric else 1
            is_chord = self.protocol == "chord"
            self.links = 1 + sides * doublings(self.max_position_embeddings) if is_chord else CDIL_LINKS
        if self.value_hidden_size is None:
            self.value_hidden_size = self.hidden_size

    def check(self) -> None:
        """See MixerConfig."""
        super().check()
        self.require_one_of("protocol", PROTOCOLS)
        self.require_one_of("weights_from", WEIGHT_SOURCES)
        self.require("factors", not isinstance(self.factors, str), "at least 1, fewest, or null")
        for name in ("factors", "link_hidden_size", "value_hidden_size"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        value = self.value_dropout_prob
        self.require("value_dropout_prob", value is None or 0 <= value < 1, "0 <= probability < 1")
        if self.symmetric:
            self.require("symmetric", self.protocol == "chord", "false with cdil, whose links lead both ways anyway")
            self.require("is_causal", not self.is_causal, "false with symmetric links")
        if self.two_sided:
            self.require("links", self.links >= 3 and self.links % 2 == 1, "odd and at least 3, for links both ways")
        self.require("links", self.links >= 2, "at least 2, the one to itself included")
        fits = self.longest_link < LARGEST_OFFSET
        self.require(self.lengthens_links, fits, f"what keeps every link shorter than {LARGEST_OFFSET} positions")

    @property
    def two_sided(self) -> bool:
        """Whether links lead both ways."""
        return not self.is_causal and (self.symmetric or self.protocol == "cdil")

    @property
    def lengthens_links(self) -> str:
        """The field by which links become longer."""
        return "links" if self.protocol == "chord" else "factors"

    @property
    def longest_link(self) -> int:
        """How many positions the longest link leads over."""
        steps = (self.links - 1) // 2 if self.two_sided else self.links - 1
        return 2 ** (steps - 1) if self.protocol == "chord" else steps * 2 ** (self.factors - 1)

    def resize_positions(self, positions: int) -> None:
        """See MixerConfig. Each doubling of the length adds a factor, with symmetric every other one; and, to chord, a
        link to each side.
        """
        before = self.max_position_embeddings
        super().resize_positions(positions)
        self.factors += self._fewest(positions) - self._fewest(before)
        if self.protocol == "chord":
            self.links += (2 if self.symmetric else 1) * (doublings(positions) - doublings(before))

    def _fewest(self, positions: int) -> int:
        """The default number of factors, by which every token reaches all others (PX-1).

        Links to one side: an offset below 2^L is a sum of at most L powers of two. Links to both sides: modulo n every
        offset is one of at most n / 2 to either side, which is a sum and difference of at most ceil(L / 2) of them (the
        non-adjacent form: of two adjacent powers it has one at most).
        """
        steps = doublings(positions)
        return (steps + 1) // 2 if self.symmetric else steps


def doublings(positions: int) -> int:
    """L = ceil(log2(positions)), at least 1."""
    return max(1, (positions - 1).bit_length())

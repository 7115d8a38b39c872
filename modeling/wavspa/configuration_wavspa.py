"""Configuration of WavSpA."""

from collections.abc import Mapping
from typing import Any, ClassVar

from ..attention import ATTENTIONS, PERFORMER_FEATURES
from ..configuration import MixerConfig
from .wavelets import orthogonal_wavelets

SPACES = ("none", "fourier", "fourier_forward", "fixed", "adaptive", "orthogonal", "lifting")
WAVELET_SPACES = ("fixed", "adaptive", "orthogonal", "lifting")
DEFAULT_WAVELETS = {"fixed": "db2", "adaptive": "db8"}
DEFAULT_LEVELS = {"fixed": 1, "adaptive": 1, "orthogonal": 1, "lifting": 3}
DEFAULT_FILTER_LENGTH = 16
# Those whose queries and keys may be rotated: the others sum over features of them, or over projected keys.
ROTARY_ATTENTIONS = ("softmax", "windowed")


class WavSpAConfig(MixerConfig):
    """Attention in a transformed space; see MixerConfig for the shared fields.

    Args:
        space: none | fourier | fourier_forward (never transformed back) | fixed (a wavelet of PyWavelets) | adaptive
            (trainable taps for each channel, which start as such a wavelet) | orthogonal (taps made from trainable
            angles) | lifting.
        attention: softmax | linear | performer | linformer | windowed.
        wavelet: name of an orthogonal wavelet of PyWavelets, for fixed (None: db2) and adaptive (None: db8).
        levels: J of a wavelet space, which has J + 1 bands; None: 3 for lifting, 1 for the others.
        filter_length: taps of orthogonal and of learnable lifting, None: 16; else None, the wavelet's own.
        share_bands: one attention for all bands; false: one for each.
        two_dimensional: transform the channels too (fixed, fourier, fourier_forward), as the paper does.
        dc_normalised: the taps of orthogonal sum to sqrt(2), as those of a low-pass filter; else to anything.
        learnable: the steps of lifting are trained; else they are the paper's.
        performer_features: positive (random ones, FAVOR+) | relu (none, of normalised inputs: the published code's).
        num_random_features: m of performer's positive features, None: int(d ln d) for heads of d channels.
        linformer_rank: k, keys and values of linformer; no other attention reads it.
        attention_window: w of windowed, in tokens; at level j it spans w / 2^j coefficients, where bands do not share.
            No other attention reads it.
        attention_probs_dropout_prob: dropout of the attention weights, where an attention has such.
    """

    model_type = "wavspa"
    not_causal_because: ClassVar[str | None] = (
        "coefficients mix what is before and after a position, and the way back spreads them over both"
    )

    space: str = "adaptive"
    attention: str = "softmax"
    wavelet: str | None = None
    levels: int | None = None
    filter_length: int | None = None
    share_bands: bool = False
    two_dimensional: bool = False
    dc_normalised: bool = False
    learnable: bool = False
    performer_features: str = "positive"
    num_random_features: int | None = None
    linformer_rank: int = 128
    attention_window: int = 512
    attention_probs_dropout_prob: float = 0.0

    def fill_defaults(self) -> None:
        """See MixerConfig."""
        super().fill_defaults()
        if not isinstance(self.space, str):
            return  # check() refuses it
        if self.wavelet is None:
            self.wavelet = DEFAULT_WAVELETS.get(self.space)
        if self.levels is None:
            self.levels = DEFAULT_LEVELS.get(self.space)
        if self.filter_length is None and self._makes_filters():
            self.filter_length = DEFAULT_FILTER_LENGTH

    @classmethod
    def why_not_causal(cls, fields: Mapping[str, Any]) -> str | None:
        """See MixerConfig. Without a transform it is the attention: none of those here has a causal form."""
        if fields.get("space") != "none":
            return cls.not_causal_because
        if fields.get("attention") == "linformer":
            return "its projections mix the keys and values of all N positions"
        return "its attention looks to both sides of a position"

    def why_no_rope(self) -> str | None:
        """See MixerConfig. Without a transform the attention is among tokens."""
        if self.space != "none":
            return "queries and keys are coefficients, which stand for no position (space none has tokens)"
        if self.attention not in ROTARY_ATTENTIONS:
            return f"attention {self.attention} compares no queries with keys ({', '.join(ROTARY_ATTENTIONS)} do)"
        return None

    def _makes_filters(self) -> bool:
        return self.space == "orthogonal" or (self.space == "lifting" and self.learnable is True)

    def check(self) -> None:
        """See MixerConfig."""
        super().check()
        self.require_one_of("space", SPACES)
        self.require_one_of("attention", ATTENTIONS)
        self._check_wavelet()
        self._check_levels()
        self._check_filter_length()
        for name, spaces in (
            ("share_bands", WAVELET_SPACES),
            ("two_dimensional", ("fixed", "fourier", "fourier_forward")),
            ("dc_normalised", ("orthogonal",)),
            ("learnable", ("lifting",)),
        ):
            allowed = f"false for space {self.space}; true for {', '.join(spaces)}"
            self.require(name, not getattr(self, name) or self.space in spaces, allowed)
        self._check_performer()
        for name in ("linformer_rank", "attention_window"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        self.require("attention_probs_dropout_prob", 0 <= self.attention_probs_dropout_prob < 1, "0 <= probability < 1")

    def _check_performer(self) -> None:
        self.require_one_of("performer_features", PERFORMER_FEATURES)
        if self.attention != "performer":
            self.require("performer_features", self.performer_features == "positive", "positive, unless for performer")
        if self.num_random_features is not None:
            read = self.attention == "performer" and self.performer_features == "positive"
            self.require("num_random_features", read, "null, unless for performer with positive features")
            self.require("num_random_features", self.num_random_features >= 1, "null or at least 1")

    def _check_wavelet(self) -> None:
        if self.space in DEFAULT_WAVELETS:
            self.require(
                "wavelet",
                self.wavelet in orthogonal_wavelets(),
                f"orthogonal wavelets of PyWavelets: {', '.join(orthogonal_wavelets())}",
            )
        else:
            self.require("wavelet", self.wavelet is None, f"null for space {self.space}")

    def _check_levels(self) -> None:
        if self.space not in WAVELET_SPACES:
            self.require("levels", self.levels is None, f"null for space {self.space}")
            return
        deepest = self.max_position_embeddings.bit_length() - 1
        self.require(
            "levels",
            self.levels is not None and 1 <= self.levels <= deepest,
            f"1 .. {deepest}, so that 2^levels is at most max_position_embeddings ({self.max_position_embeddings})",
        )
        if self.two_dimensional:
            self.require(
                "hidden_size",
                self.hidden_size % 2**self.levels == 0,
                f"multiples of 2^levels ({2**self.levels}) for two_dimensional",
            )

    def _check_filter_length(self) -> None:
        length = self.filter_length or 0
        if self.space == "orthogonal":
            least = 4 if self.dc_normalised else 2
            self.require("filter_length", length >= least and length % 2 == 0, f"even, at least {least}")
        elif self._makes_filters():
            self.require("filter_length", length >= 1, "at least 1")
        else:
            self.require("filter_length", self.filter_length is None, f"null for space {self.space}")

"""Configuration of S3Attention."""

from typing import Any, ClassVar

from ..configuration import MixerConfig

NORMALIZATIONS = ("layer", "batch")
STEM_ACTIVATIONS = ("relu", "elu")
SPECTRUM_INITIALIZATIONS = ("unit_gain", "kaiming")


class S3AttentionConfig(MixerConfig):
    """Smoothed skeleton sketching attention; see MixerConfig for the shared fields.

    Args:
        segments: r, the channels are averaged in r segments before the Fourier convolution.
        row_landmarks: s1, tokens that the row attention attends to.
        column_landmarks: s2, channels of each head that the column attention attends to.
        n_fft: period of the Fourier convolution, in positions; None: max_position_embeddings.
        normalization: layer | batch (per position, as published), after the convolution stem.
        stem_activation: relu (paper) | elu (published code).
        spectrum_initialization: kaiming (the paper's: the smoother begins as almost nothing) | unit_gain (D / sqrt(2 r)
            times larger: the smoothed signal of a full sequence is as large as the input), which models of earlier
            versions began with.
        decay_spectrum: weight decay of the spectrum, which pulls the smoother towards nothing; only models of earlier
            versions have it.
        smoother_dropout_prob: dropout of what the smoother gives; None: hidden_dropout_prob.
        attention_probs_dropout_prob: dropout of both attention weights.
        harmonics: of the Fourier series that forecasts are read from (Algorithm 4); None: horizon, as in the published
            code, which is all of them wherever 2 * horizon + 1 reaches input_length.
    """

    model_type = "s3attention"
    not_causal_because: ClassVar[str | None] = (
        "the Fourier convolution wraps around and the column attention sums over the whole sequence"
    )

    no_rope_because: ClassVar[str | None] = (
        "its keys are a few smoothed tokens, and its columns read the same queries without a position"
    )
    earlier_defaults: ClassVar[dict[str, Any]] = {"decay_spectrum": True, "spectrum_initialization": "unit_gain"}

    segments: int = 8
    row_landmarks: int = 8
    column_landmarks: int = 8
    n_fft: int | None = None
    normalization: str = "layer"
    stem_activation: str = "relu"
    spectrum_initialization: str = "kaiming"
    decay_spectrum: bool = False
    smoother_dropout_prob: float | None = None
    attention_probs_dropout_prob: float = 0.0
    harmonics: int | None = None

    def fill_defaults(self) -> None:
        """See MixerConfig."""
        super().fill_defaults()
        if self.n_fft is None:
            self.n_fft = self.max_position_embeddings

    def resize_positions(self, positions: int) -> None:
        """See MixerConfig; the period of the convolution grows with the positions."""
        super().resize_positions(positions)
        self.n_fft = max(self.n_fft, positions)

    def check(self) -> None:
        """See MixerConfig."""
        super().check()
        head_size = self.hidden_size // self.num_attention_heads
        self.require(
            "segments",
            self.segments >= 1 and self.hidden_size % self.segments == 0,
            f"divisors of hidden_size ({self.hidden_size})",
        )
        self.require(
            "row_landmarks",
            1 <= self.row_landmarks <= self.max_position_embeddings,
            f"1 .. max_position_embeddings ({self.max_position_embeddings})",
        )
        self.require(
            "column_landmarks", 1 <= self.column_landmarks <= head_size, f"1 .. channels of a head ({head_size})"
        )
        self.require(
            "n_fft",
            self.n_fft >= self.max_position_embeddings,
            f"at least max_position_embeddings ({self.max_position_embeddings})",
        )
        self.require_one_of("normalization", NORMALIZATIONS)
        self.require_one_of("stem_activation", STEM_ACTIVATIONS)
        self.require_one_of("spectrum_initialization", SPECTRUM_INITIALIZATIONS)
        for name in ("smoother_dropout_prob", "attention_probs_dropout_prob"):
            value = getattr(self, name)
            self.require(name, value is None or 0 <= value < 1, "0 <= probability < 1")
        self.require("harmonics", self.harmonics is None or self.harmonics >= 0, "null or at least 0")

"""The configuration fields that every mixer shares."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, get_args

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

POSITION_EMBEDDING_TYPES = ("none", "sinusoidal", "learned", "rope", "gru")
BLOCK_STYLES = ("prenorm", "paper")
POOLINGS = ("mean", "first")
ATTENTION_IMPLEMENTATIONS = (None, "eager", "sdpa")
PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")


class MixerConfig(PreTrainedConfig):
    """Fields shared by all mixers. A configuration checks itself when it is made; `check()` does it again.

    Args:
        vocab_size: tokens in the vocabulary.
        hidden_size: width D.
        num_hidden_layers: number of blocks.
        num_attention_heads: heads; None: as many as divide hidden_size into heads of at least 64 channels.
        intermediate_size: width of the feed-forward layer; None: 4 * hidden_size.
        hidden_act: activation of the feed-forward layer, a name that transformers knows.
        max_position_embeddings: longest sequence, in positions; a longer one is refused by the model.
        position_embedding_type: none | sinusoidal | learned | rope (queries and keys are rotated, in mixers that
            have them) | gru (a recurrent network over the embeddings, added).
        rope_theta: base of rope's wavelengths, which are 2 pi to 2 pi * rope_theta positions.
        type_vocab_size: kinds of `token_type_ids`; 0: no such embedding.
        hidden_dropout_prob: dropout of embeddings, mixers, feed-forward layers and heads.
        classifier_dropout: dropout before a classifier; None: hidden_dropout_prob.
        classifier_pooling: mean (over the valid tokens) | first (the first valid token).
        pad_token_id: id of padding in the vocabulary; the model itself reads only attention_mask.
        block_style: prenorm (pre-norm residual blocks with a feed-forward layer) | paper (that of the mixer's paper).
        is_causal: a position sees only itself and what is before it; refused by mixers that cannot.
        input_channels: None: tokens; else the number C of channels of real-valued inputs `values` (B, N, C).
        input_length: past steps that a forecast is made from; None for all other heads.
        horizon: future steps that are forecast; None for all other heads.
        buffer_seed: random buffers are a pure function of it and of the layer.
        initializer_range: standard deviation of weights at initialisation.
        layer_norm_eps: epsilon of the layer normalisations.
        tie_word_embeddings: the heads of language models use the embedding matrix.
        auxiliary_loss_weight: eta, training minimises (1 - eta) * loss + eta * auxiliary_loss (Converter, eq. 14);
            None: 0.001 where the mixer has such a loss, else 0, which is all that is allowed there.

    Raises:
        ValueError: with the field, its value and what is allowed.
    """

    # What transformers' Trainer does not collect as predictions.
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["hidden_states", "auxiliary_loss", "task_loss"]

    not_causal_because: ClassVar[str | None] = None
    no_rope_because: ClassVar[str | None] = "it has no queries and keys that stand at positions"
    # What fields meant in the configurations and runs that earlier versions saved, which did not have them, or had
    # another default: those keep it. Every field is saved, so that one which is missing is from before.
    earlier_defaults: ClassVar[dict[str, Any]] = {}

    vocab_size: int = 32000
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int | None = None
    intermediate_size: int | None = None
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    position_embedding_type: str = "learned"
    rope_theta: float = 10000.0
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.0
    classifier_dropout: float | None = None
    classifier_pooling: str = "mean"
    pad_token_id: int | None = 0
    block_style: str = "prenorm"
    is_causal: bool = False
    input_channels: int | None = None
    input_length: int | None = None
    horizon: int | None = None
    buffer_seed: int = 0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    auxiliary_loss_weight: float | None = None

    # Completed, then checked, whenever one is made: a model can be built from every configuration that exists.

    def __post_init__(self, **kwargs):
        # Anything else in a config.json would have transformers fetch kernels of that name, and run them.
        for name in ("attn_implementation", "_attn_implementation"):
            if kwargs.get(name) not in ATTENTION_IMPLEMENTATIONS:
                allowed = ", ".join(value or "null" for value in ATTENTION_IMPLEMENTATIONS)
                raise ValueError(f"{name} is {kwargs[name]!r}; allowed: {allowed}")
        self.fill_defaults()
        self.check()
        super().__post_init__(**kwargs)

    def fill_defaults(self) -> None:
        """Derive the fields that are None from the others."""
        if self.num_attention_heads is None and isinstance(self.hidden_size, int) and self.hidden_size > 0:
            self.num_attention_heads = max(
                (heads for heads in range(1, self.hidden_size // 64 + 1) if self.hidden_size % heads == 0), default=1
            )
        if self.intermediate_size is None and isinstance(self.hidden_size, int):
            self.intermediate_size = 4 * self.hidden_size

        if self.auxiliary_loss_weight is None:
            self.auxiliary_loss_weight = 1e-3 if self.has_auxiliary_loss else 0.0

    @property
    def has_auxiliary_loss(self) -> bool:
        """Whether the mixers' auxiliary_loss is anything but None."""
        return False

    def check(self) -> None:
        """Raise ValueError with the field, its value and what is allowed, for the first field that is wrong."""
        self.check_types()
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
        ):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("type_vocab_size", "buffer_seed"):
            self.require(name, getattr(self, name) >= 0, "at least 0")
        self.require("initializer_range", 0 < self.initializer_range < math.inf, "above 0, and finite")
        self.require("num_labels", self.num_labels is None or self.num_labels >= 1, "at least 1")
        for name in ("hidden_dropout_prob", "classifier_dropout"):
            value = getattr(self, name)
            self.require(name, value is None or 0 <= value < 1, "0 <= probability < 1")
        self.require("auxiliary_loss_weight", 0 <= self.auxiliary_loss_weight < 1, "0 <= weight < 1")
        allowed = f"0 for this {self.model_type}, which has no auxiliary loss"
        self.require("auxiliary_loss_weight", self.auxiliary_loss_weight == 0 or self.has_auxiliary_loss, allowed)
        self.require("layer_norm_eps", 0 < self.layer_norm_eps < math.inf, "above 0, and finite")
        self.require_one_of("position_embedding_type", POSITION_EMBEDDING_TYPES)
        self.require_one_of("block_style", BLOCK_STYLES)
        self.require_one_of("classifier_pooling", POOLINGS)
        self.require_one_of("problem_type", PROBLEM_TYPES)
        self.require("hidden_act", self.hidden_act in ACT2FN, f"one of {', '.join(sorted(ACT2FN))}")
        self.require(
            "num_attention_heads",
            self.hidden_size % self.num_attention_heads == 0,
            f"divisors of hidden_size ({self.hidden_size})",
        )
        if self.position_embedding_type == "sinusoidal":
            self.require("hidden_size", self.hidden_size % 2 == 0, "even, for sinusoidal positions")
        self._check_rope()
        if self.pad_token_id is not None and self.input_channels is None:
            self.require(
                "pad_token_id",
                0 <= self.pad_token_id < self.vocab_size,
                f"null or 0 .. vocab_size - 1 = {self.vocab_size - 1}",
            )
        if self.input_channels is not None:
            self.require("input_channels", self.input_channels >= 1, "null (tokens) or at least 1")
        if self.horizon is not None:
            self.require("horizon", self.horizon >= 1, "null or at least 1")
        if self.input_length is not None:
            self.require(
                "input_length",
                2 <= self.input_length <= self.max_position_embeddings,
                f"null or 2 .. max_position_embeddings ({self.max_position_embeddings})",
            )
        because = self.why_not_causal(vars(self))
        if self.is_causal and because:
            self.require("is_causal", False, f"false for {self.model_type}, because {because}")

    def _check_rope(self) -> None:
        self.require("rope_theta", 1 <= self.rope_theta < math.inf, "at least 1, and finite")
        if self.position_embedding_type != "rope":
            return
        because = self.why_no_rope()
        others = ", ".join(kind for kind in POSITION_EMBEDDING_TYPES if kind != "rope")
        self.require("position_embedding_type", because is None, f"{others} for {self.model_type}, because {because}")
        size = self.hidden_size // self.num_attention_heads
        allowed = "those that give heads an even number of channels, for rope; or another position_embedding_type"
        self.require("num_attention_heads", size % 2 == 0, allowed)

    def why_no_rope(self) -> str | None:
        """Why this model cannot have rotary positions; None if it can."""
        return self.no_rope_because

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "MixerConfig":
        """See PreTrainedConfig; what an earlier version saved keeps its meaning."""
        return super().from_dict({**cls.earlier_defaults, **config_dict}, **kwargs)

    @classmethod
    def why_not_causal(cls, fields: Mapping[str, Any]) -> str | None:
        """Why a model of this type with these fields cannot be causal; None if it can."""
        return cls.not_causal_because

    def resize_positions(self, positions: int) -> None:
        """Set max_position_embeddings, and what depends on it in subclasses.

        Raises:
            ValueError: fewer positions than now.
        """
        if not isinstance(positions, int) or positions < self.max_position_embeddings:
            allowed = f"integers of at least max_position_embeddings ({self.max_position_embeddings})"
            raise ValueError(f"positions is {positions!r}; allowed: {allowed}")
        self.max_position_embeddings = positions

    def check_types(self) -> None:
        """Each field of ours holds a value of its declared type (an integer passes for a float)."""
        for name, hint in self.own_fields().items():
            kinds = get_args(hint) or (hint,)
            value = getattr(self, name)
            fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
            if not fits and not (float in kinds and isinstance(value, int) and not isinstance(value, bool)):
                allowed = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
                raise ValueError(f"{name} is {value!r} ({type(value).__name__}); allowed: {allowed}")

    @classmethod
    def own_fields(cls) -> dict[str, type]:
        """Name and type of every field that this package adds to PreTrainedConfig."""
        inherited = {field.name for field in fields(PreTrainedConfig)}
        return {field.name: field.type for field in fields(cls) if field.name not in inherited}

    # What checks are written with, here and in the mixers' configurations: one form for all messages.

    def require(self, name: str, condition: bool, allowed: str) -> None:
        """Raise ValueError about field `name` unless `condition` holds."""
        if not condition:
            raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")

    def require_one_of(self, name: str, allowed: tuple[str | None, ...]) -> None:
        """Raise ValueError unless field `name` has one of the `allowed` values; None is spelt null, as in run files."""
        self.require(name, getattr(self, name) in allowed, ", ".join(value or "null" for value in allowed))

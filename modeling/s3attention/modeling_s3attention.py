"""S3Attention: a Fourier and convolution smoother, then attention to a few tokens and to a few channels.

Labels such as S3-4 are those of docs/mixers/s3attention.md, which says how and why this differs from paper and code.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional
from transformers import initialization as init

from longmix.kernels import ops

from ..attention.dot_product import dot_product_attention
from ..block import BarePreNormBlock, Mixer, buffer_generator
from ..context import BatchContext
from ..forecasting import MixerForForecasting
from ..heads import MixerForSequenceClassification, MixerForSequencePairClassification, MixerForTokenClassification
from ..language_models import MixerForMaskedLM
from ..masking import keep_valid
from ..model import MixerModel, MixerPreTrainedModel
from ..wide_sums import LayerNorm
from .batch_norm import MaskedBatchNorm
from .column_attention import column_attention
from .configuration_s3attention import S3AttentionConfig
from .fourier_extrapolation import FourierExtrapolation
from .landmarks import FRACTION_BITS, Landmarks, make_landmarks, project_to_landmarks
from .mean_projection import project_mean


class S3Attention(Mixer):
    """Smoothed skeleton sketching attention (S3Attention, eqs. 1 to 4; Algorithms 1 and 2).

    Deviations from the paper and its published code:
    - padding is masked before the Fourier convolution and before the stem; landmarks are fractions of the valid length,
      without repetition, and all tokens of a sample that has no more than s1; the scale is 1 / sqrt(n_b);
    - the transform has one fixed length for all batches, so that no length is tied to the batch;
    - segment means go to the channels of their own segment (eq. 4), not in turns (S3-4);
    - ReLU as in the paper (S3-2; `stem_activation="elu"` is the code's), kernel of 3 (S3-1);
    - layer normalisation in place of batch normalisation per position (`normalization="batch"` is the paper's);
    - the two normalised attentions are averaged, as in Algorithm 1 and the code, not added as in eq. 1 (S3-5);
    - the numbers of landmark tokens and of landmark channels are separate, as in the paper (S3-7);
    - the spectrum is drawn from a normal distribution, as in Algorithm 2 (S3-3), at a scale where the smoothed signal
      is as large as its input (S3-12, with `spectrum_initialization="unit_gain"`).
    """

    paper_block = BarePreNormBlock

    def __init__(self, config: S3AttentionConfig, layer_index: int):
        super().__init__(config, layer_index)
        self.smoother = Smoother(config)
        self.attention = SkeletonAttention(config, layer_index)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """See Mixer."""
        if hidden_states.shape[1] == 0:
            return hidden_states  # no token, and the stem's kernel would be longer than the padded sequence
        mask = context.mask
        smoothed = self.smoother(hidden_states, mask, context.lengths)
        return keep_valid(self.attention(smoothed, context), mask)

    @classmethod
    def share(
        cls, mixers: Sequence["S3Attention"], hidden_states: torch.Tensor, context: BatchContext
    ) -> list[Landmarks]:
        """See Mixer; the landmarks of each layer."""
        return shared_landmarks([mixer.attention for mixer in mixers], hidden_states, context)


# The smoother: it mixes all positions at the cost of a Fourier transform, so that a few tokens can stand for the rest.


class Smoother(nn.Module):
    """Fourier convolution of segment means, and a convolution stem over it and its input (Algorithm 2)."""

    def __init__(self, config: S3AttentionConfig):
        super().__init__()
        width = config.hidden_size
        self.config = config
        self.n_fft = config.n_fft
        self.spectrum = nn.Parameter(torch.empty(config.n_fft // 2 + 1, width, 2))
        self.stem = RowConvolution(2 * width, width, kernel_size=3, padding=1)
        self.norm = (
            LayerNorm(width, eps=config.layer_norm_eps)
            if config.normalization == "layer"
            else MaskedBatchNorm(config.max_position_embeddings, config.layer_norm_eps)
        )
        self.activation = nn.ReLU() if config.stem_activation == "relu" else nn.ELU()
        dropout = config.smoother_dropout_prob
        self.dropout = nn.Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.reset()

    def reset(self) -> None:
        """Draw the spectrum.

        unit_gain: a full sequence comes out as large as it went in. A mean of s = D / r independent channels has
        variance 1 / s, and n_fft lags of a kernel whose spectrum has parts of variance v amplify it by 2 v.

        kaiming: `kaiming_normal_` of the spectrum (n_fft / 2 + 1, D, 2) as Algorithm 2 has it, with a fan-in of 2 D.
        """
        width = self.config.hidden_size
        is_kaiming = self.config.spectrum_initialization == "kaiming"
        init.normal_(self.spectrum, std=math.sqrt(1 / width if is_kaiming else width / self.config.segments / 2))

    def stacked_matrices(self) -> dict[str, tuple[int, int, int]]:
        """The stem as the map of three positions' channels that it is: (matrices, rows, columns)."""
        outputs, inputs, kernel = self.stem.weight.shape
        return {"stem.weight": (1, outputs, inputs * kernel)}

    def resize_positions(self) -> None:
        """Bring the spectrum to the configuration's period: the same kernel, with zeros at the lags it lacked.

        What does not wrap around, sequences of up to half the old period, is convolved as before.
        """
        if isinstance(self.norm, MaskedBatchNorm):
            self.norm.extend(self.config.max_position_embeddings)
        old = self.spectrum
        if self.n_fft == self.config.n_fft:
            return
        self.spectrum = nn.Parameter(longer_period(old.detach(), self.n_fft, self.config.n_fft), old.requires_grad)
        self.n_fft = self.config.n_fft

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None, lengths: torch.Tensor | None
    ) -> torch.Tensor:
        """(B, N, D) -> (B, N, D); rows of padding are finite and mean nothing."""
        both = ops.spectral_filter(
            hidden_states, self.spectrum, self.n_fft, segments=self.config.segments, lengths=lengths, beside=True
        )
        stem = self.stem(both)
        normalised = self.norm(stem) if isinstance(self.norm, nn.LayerNorm) else self.norm(stem, mask)
        return self.dropout(self.activation(normalised))


class RowConvolution(nn.Conv1d):
    """Conv1d of rows, whose channels lie beside each other: libraries take images so without a change of layout."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(B, N, channels) -> (B, N, channels)."""
        weight = self.weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        images = rows.transpose(1, 2).unsqueeze(2)
        return functional.conv2d(images, weight, self.bias, padding=(0, *self.padding)).squeeze(2).transpose(1, 2)


def longer_period(spectrum: torch.Tensor, old_period: int, new_period: int) -> torch.Tensor:
    """The spectrum (new_period // 2 + 1, D, 2) of the kernel of `spectrum`, its lags kept and zeros between them.

    Lag old_period / 2 of an even period, which is also lag -old_period / 2, is halved between the two.
    """
    wide = torch.promote_types(spectrum.dtype, torch.float32)
    response = spectrum.to(wide).clone(memory_format=torch.contiguous_format)
    # Imaginary parts without effect, which libraries for GPUs may not ignore.
    response[:: old_period // 2 if old_period % 2 == 0 else len(response), :, 1] = 0
    kernel = torch.fft.irfft(torch.view_as_complex(response), n=old_period, dim=0)
    longer = kernel.new_zeros(new_period, kernel.shape[1])
    after, before = (old_period - 1) // 2 + 1, (old_period - 1) // 2
    longer[:after] = kernel[:after]
    longer[new_period - before :] = kernel[old_period - before :]
    if old_period % 2 == 0:
        middle = kernel[old_period // 2] / 2
        longer[old_period // 2] += middle
        longer[new_period - old_period // 2] += middle
    return torch.view_as_real(torch.fft.rfft(longer, dim=0)).to(spectrum.dtype)


# The attention: cheap for it looks at a few landmark tokens, and at a few channels of all tokens.


class SkeletonAttention(nn.Module):
    """Row attention to s1 tokens and column attention to s2 channels, normalised and averaged (Algorithm 1)."""

    def __init__(self, config: S3AttentionConfig, layer_index: int):
        super().__init__()
        width = config.hidden_size
        self.config = config
        self.layer_index = layer_index
        self.heads = config.num_attention_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.row_norm = LayerNorm(width, eps=config.layer_norm_eps)
        self.column_norm = LayerNorm(width, eps=config.layer_norm_eps)
        self.output = nn.Linear(width, width)
        self.register_buffer("landmark_fractions", torch.empty(config.row_landmarks, dtype=torch.int64))
        self.register_buffer("column_channels", torch.empty(config.column_landmarks, dtype=torch.int64))
        self.reset()

    def reset(self) -> None:
        """Draw the landmarks: one token in each of s1 equal parts of the sequence, and s2 channels of a head."""
        generator = buffer_generator(self.config, self.layer_index)
        count = self.config.row_landmarks
        part = 2**FRACTION_BITS // count
        offsets = torch.randint(part, (count,), generator=generator, device="cpu")
        init.copy_(self.landmark_fractions, offsets + part * torch.arange(count, device="cpu"))
        head_size = self.config.hidden_size // self.heads
        channels = torch.randperm(head_size, generator=generator, device="cpu")[: self.config.column_landmarks]
        init.copy_(self.column_channels, channels.sort().values)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """(B, N, D), finite everywhere -> (B, N, D); rows of padding are finite and mean nothing."""
        batch, _, width = hidden_states.shape
        shared = context.shared
        if shared is None:
            (shared,) = shared_landmarks([self], hidden_states, context)
        tokens, counts, shares, columns, dense, own_heads = shared
        projected, rows = project_to_landmarks(
            hidden_states, tokens, columns, dense, (self.query, self.key, self.value)
        )
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        query, column = column_attention(projected, shares, own_heads, dropout)
        key_rows, value_rows = rows.view(batch, self.config.row_landmarks, 2, self.heads, width // self.heads).unbind(2)
        row = dot_product_attention(
            query.unflatten(2, (self.heads, -1)).transpose(1, 2),
            key_rows.transpose(1, 2),
            value_rows.transpose(1, 2),
            attn_mask=counts,
            dropout_p=dropout,
        )
        return project_mean(self.row_norm(row.transpose(1, 2).flatten(2)), self.column_norm(column), self.output)


def shared_landmarks(
    attentions: Sequence[SkeletonAttention], hidden_states: torch.Tensor, context: BatchContext
) -> list[Landmarks]:
    """The landmarks of each of several layers in a batch of hidden states (B, N, D)."""
    return make_landmarks(
        [attention.landmark_fractions for attention in attentions],
        [attention.column_channels for attention in attentions],
        attentions[0].heads,
        hidden_states,
        context,
    )


# The frame's models around this mixer. Written out, one class each: config.json and saved code name them.


class S3AttentionPreTrainedModel(MixerPreTrainedModel):
    """Base of the S3Attention models."""

    config_class = S3AttentionConfig
    mixer_class = S3Attention

    @property
    def no_weight_decay(self) -> tuple[str, ...]:
        """See MixerPreTrainedModel; models of earlier versions let their spectrum decay."""
        return () if self.config.decay_spectrum else ("smoother.spectrum",)


class S3AttentionModel(S3AttentionPreTrainedModel, MixerModel):
    """See MixerModel."""


class S3AttentionForMaskedLM(S3AttentionPreTrainedModel, MixerForMaskedLM):
    """See MixerForMaskedLM."""

    encoder_class = S3AttentionModel


class S3AttentionForSequenceClassification(S3AttentionPreTrainedModel, MixerForSequenceClassification):
    """See MixerForSequenceClassification."""

    encoder_class = S3AttentionModel


class S3AttentionForTokenClassification(S3AttentionPreTrainedModel, MixerForTokenClassification):
    """See MixerForTokenClassification."""

    encoder_class = S3AttentionModel


class S3AttentionForSequencePairClassification(S3AttentionPreTrainedModel, MixerForSequencePairClassification):
    """See MixerForSequencePairClassification."""

    encoder_class = S3AttentionModel


class S3AttentionForForecasting(S3AttentionPreTrainedModel, MixerForForecasting):
    """See MixerForForecasting; forecasts are read from the Fourier series of what comes out (Algorithms 3 and 4)."""

    encoder_class = S3AttentionModel
    decoder_class = FourierExtrapolation

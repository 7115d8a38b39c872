"""Converter: convolution on a synthetic directed graph, by a unitary matrix made of Givens rotations.

Labels such as CV-5 are those of docs/mixers/converter.md, which says how and why this differs from the paper and its
published code.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn
from transformers import initialization as init

from longmix.kernels.common.documents import document_starts

from ..block import Mixer, buffer_generator
from ..context import BatchContext
from ..forecasting import MixerForForecasting
from ..heads import MixerForSequenceClassification, MixerForSequencePairClassification, MixerForTokenClassification
from ..language_models import MixerForMaskedLM
from ..masking import keep_valid
from ..model import MixerModel, MixerPreTrainedModel
from ..plain_linear import linear
from .block import ConverterBlock
from .configuration_converter import ConverterConfig
from .kernel_polynomial import KernelPolynomial, kernel_polynomial_loss
from .layers import ScaledLinear
from .parameter_heads import HEADS


class Converter(Mixer):
    """Synvolution Phi^-1 exp(i Lambda) Phi V (Converter, eq. 8) or Kernelution Phi^-1 exp(i p(Lambda)) Phi V (eq. 12).

    Phi is the order-L DHHP matrix of eq. 7 and V the complex values of the tokens; both, and Lambda, come from the
    tokens. Complex numbers are real pairs throughout.

    Deviations from the paper and its published code:
    - no token is lost at the ends of the sweeps, so that Phi is unitary (CV-1), and its inverse is its inverse (CV-2);
    - the eigenvalues are exp(i p), as in eq. 12 and the code; Algorithm 3 has p itself (CV-3);
    - every token's angles are its own (CV-4); the diagonal D of eq. 7 cancels and is left out (CV-5);
    - the coefficients of the polynomial belong to heads, not to places in the batch (CV-6), and w_0 = mu_0 / 2 (CV-7);
      the Gibbs factors are those of table 6 (CV-8), the kernel polynomial loss eq. 11 as stated (CV-9);
    - heads have their own eigenvalues and angles, and by default they come from one linear map with ranges that reach
      far (`parameter_head="siren"` is the paper's);
    - values start as large as the tokens (CV-11), and zeta is a sigmoid that starts at one half (CV-10);
    - padding and the bounds of documents are rotated by zero, which isolates them, but for the rounding of phases that
      are added up along the row.

    In pre-norm blocks the output is W [Re z; Im z] + b with z = Phi^-1 exp(i p) Phi V - exp(i p) V, what the tokens get
    from each other: a token itself goes by the residual connection, and its own value, nearly all of Phi^-1 exp(i p)
    Phi V at first, would drown them. In the paper's blocks it is zeta Re + (1 - zeta) Im, and nothing is subtracted.
    """

    isolates_documents = True
    paper_block = ConverterBlock

    def __init__(self, config: ConverterConfig, layer_index: int):
        super().__init__(config, layer_index)
        width = config.hidden_size
        self.value = ScaledLinear(width, 2 * width, std=(2 * width) ** -0.5, bias=False)
        self.parameter_head = HEADS[config.parameter_head](config)
        self.polynomial = KernelPolynomial(config) if config.operator == "kernelution" else None
        self.readout = LinearReadout(width) if config.block_style == "prenorm" else BlendedReadout()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        if config.permutations:
            # Sorted, the first n keys are the permutation of n tokens: that of a shorter sequence is its restriction.
            shape = (config.orders, config.max_position_embeddings)
            self.register_buffer("permutation_keys", torch.empty(shape, dtype=torch.int64))
            self.reset()

    def stacked_matrices(self) -> dict[str, tuple[int, int, int]]:
        """Real and imaginary part of the values: (matrices, rows, columns) of the parameter that stacks them."""
        rows, columns = self.value.weight.shape
        return {"value.weight": (2, rows // 2, columns)}

    def reset(self) -> None:
        """Draw the permutations."""
        if self.config.permutations:
            init.copy_(self.permutation_keys, self._draw_keys())

    def resize_positions(self) -> None:
        """Draw the keys of more positions; the permutations of shorter sequences stay what they are."""
        if self.config.permutations:
            old = self.permutation_keys
            keys = self._draw_keys().to(old.device)
            keys[:, : old.shape[1]] = old
            self.permutation_keys = keys

    def _draw_keys(self) -> torch.Tensor:
        """(L, max_position_embeddings) int64."""
        shape = (self.config.max_position_embeddings, self.config.orders)
        generator = buffer_generator(self.config, self.layer_index, "permutations")
        return torch.randint(2**62, shape, generator=generator, device="cpu").T.contiguous()

    def forward(self, hidden_states: torch.Tensor, context: BatchContext, as_pairs: bool = False) -> torch.Tensor:
        """See Mixer; `as_pairs`: the complex result of eq. 8 or 12, before it becomes real, (B, N, 2, D)."""
        hidden_states = keep_valid(hidden_states, context.mask)
        # In the paper's block a third one reads them: the residual connection.
        joins = not as_pairs and self.parameter_head.joins(hidden_states)
        if joins:
            drawn, hidden_states = self.parameter_head(hidden_states, with_tokens=True)
        value = self.dropout(self.value(hidden_states)).unflatten(2, (2, self.config.num_attention_heads, -1))
        if not joins:
            drawn = self.parameter_head(hidden_states)
        without_own = self.config.block_style == "prenorm" and not as_pairs
        mixed = self._mix(value.permute(0, 1, 3, 4, 2), drawn, context, without_own)
        pairs = mixed.permute(0, 1, 4, 2, 3).flatten(3)
        return pairs if as_pairs else keep_valid(self.readout(pairs), context.mask)

    def mixing_matrix(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """The unitary matrix of each sample and head for these tokens, (B, H, N, N, 2), zero on padding.

        Entry (b, h, i, j) is what token i gets of the value of token j, as a real and an imaginary part. The mask
        may have any dtype.

        Raises:
            ValueError: a mask that is not right-padded.
        """
        context = context.checked()
        hidden_states = keep_valid(hidden_states, context.mask)
        batch, positions = hidden_states.shape[:2]
        wide = torch.promote_types(hidden_states.dtype, torch.float32)
        real = torch.eye(positions, device=hidden_states.device, dtype=wide)
        value = torch.stack([real, torch.zeros_like(real)], -1)[None, :, None]
        value = value.expand(batch, -1, self.config.num_attention_heads, -1, -1)
        drawn = self.parameter_head(hidden_states)
        return self._mix(value, drawn, context).transpose(1, 2).contiguous()

    def _mix(
        self,
        value: torch.Tensor,
        drawn: torch.Tensor | tuple[torch.Tensor, ...],
        context: BatchContext,
        without_own: bool = False,
    ) -> torch.Tensor:
        """Value (B, N, H, d, 2) mixed by what the head has drawn."""
        documents = context.document_ids
        coefficients = None if self.polynomial is None else self.polynomial()
        permutation = None
        if self.config.permutations:
            keys = self.permutation_keys[:, : value.shape[1]]
            permutation = keys.argsort(-1) if documents is None else permute_documents(keys, documents)
        return self.parameter_head.mix(value, drawn, context, coefficients, permutation, without_own)

    @classmethod
    def auxiliary_loss(cls, mixers: Sequence["Converter"]) -> torch.Tensor | None:
        """The kernel polynomial losses (eq. 11) of kernelutions with the dirichlet kernel, else None."""
        return kernel_polynomial_loss([mixer.polynomial for mixer in mixers if mixer.polynomial is not None])


def permute_documents(keys: torch.Tensor, document_ids: torch.Tensor) -> torch.Tensor:
    """Permutations (B, L, N) within documents (B, N), runs of equal ids: what keys (L, N) are for each one alone."""
    positions = torch.arange(document_ids.shape[1], device=document_ids.device)
    start = document_starts(document_ids)
    rank = keys.argsort(-1).argsort(-1)[:, positions - start].transpose(0, 1)
    return (start[:, None] * keys.shape[1] + rank).argsort(-1)


# From complex to real tokens: learned in pre-norm blocks, the paper's blend in its own.


class LinearReadout(nn.Module):
    """W [Re z; Im z] + b."""

    def __init__(self, width: int):
        super().__init__()
        self.projection = nn.Linear(2 * width, width)

    def forward(self, mixed: torch.Tensor) -> torch.Tensor:
        """Pairs (B, N, 2, D) -> (B, N, D)."""
        return linear(self.projection, mixed.flatten(2))


class BlendedReadout(nn.Module):
    """zeta Re z + (1 - zeta) Im z with one learnable zeta between 0 and 1 (Converter, section 4.3)."""

    def __init__(self):
        super().__init__()
        # The published code clamps zeta and starts it at 1, from where one step can end its gradient (CV-10).
        self.zeta_logit = nn.Parameter(torch.zeros(1))

    def reset(self) -> None:
        """Set zeta to one half."""
        init.zeros_(self.zeta_logit)

    def forward(self, mixed: torch.Tensor) -> torch.Tensor:
        """Pairs (B, N, 2, D) -> (B, N, D)."""
        real, imaginary = mixed.unbind(2)
        return torch.lerp(imaginary, real, self.zeta_logit.sigmoid())


# The frame's models around this mixer. Written out, one class each: config.json and saved code name them.


class ConverterPreTrainedModel(MixerPreTrainedModel):
    """Base of the Converter models."""

    config_class = ConverterConfig
    mixer_class = Converter
    no_weight_decay: ClassVar[tuple[str, ...]] = ("polynomial.coefficients",)
    _no_split_modules: ClassVar[list[str]] = [*MixerPreTrainedModel._no_split_modules, "ConverterBlock"]


class ConverterModel(ConverterPreTrainedModel, MixerModel):
    """See MixerModel."""


class ConverterForMaskedLM(ConverterPreTrainedModel, MixerForMaskedLM):
    """See MixerForMaskedLM."""

    encoder_class = ConverterModel


class ConverterForSequenceClassification(ConverterPreTrainedModel, MixerForSequenceClassification):
    """See MixerForSequenceClassification."""

    encoder_class = ConverterModel


class ConverterForTokenClassification(ConverterPreTrainedModel, MixerForTokenClassification):
    """See MixerForTokenClassification."""

    encoder_class = ConverterModel


class ConverterForSequencePairClassification(ConverterPreTrainedModel, MixerForSequencePairClassification):
    """See MixerForSequencePairClassification."""

    encoder_class = ConverterModel


class ConverterForForecasting(ConverterPreTrainedModel, MixerForForecasting):
    """See MixerForForecasting."""

    encoder_class = ConverterModel

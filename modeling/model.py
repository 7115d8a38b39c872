"""The encoder: embeddings, blocks, and the conventions of transformers."""

import copy
import importlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils import ModelOutput, can_return_tuple

from .block import Mixer, PreNormBlock
from .configuration import MixerConfig
from .context import BatchContext, Segments
from .embeddings import Embeddings
from .losses import mix_auxiliary_loss
from .masking import Compaction, as_mask
from .wide_sums import LayerNorm


def _whole(parameters: Iterable[nn.Parameter]) -> AbstractContextManager[object]:
    """Context in which parameters that transformers' DeepSpeed stage 3 has in shares are whole; every rank keeps what
    the first one writes.
    """
    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    # What an import statement names must be installed to load a self-contained model from the hub.
    deepspeed = importlib.import_module("deepspeed")
    return deepspeed.zero.GatheredParameters(list(parameters), modifier_rank=0)


@dataclass
class MixerModelOutput(ModelOutput):
    """Output of the encoder.

    Args:
        last_hidden_state: (B, N, D), zero on padding.
        hidden_states: the embeddings and each block's output, (B, N, D) each; the last one is last_hidden_state.
        auxiliary_loss: scalar, the sum of the mixers' auxiliary losses; None where no mixer has one.
    """

    last_hidden_state: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    auxiliary_loss: torch.Tensor | None = None


class MixerPreTrainedModel(PreTrainedModel):
    """Base of all our models: initialisation, loading, saving."""

    config_class = MixerConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["PreNormBlock", "BarePreNormBlock", "PostNormBlock"]
    mixer_class: ClassVar[type[Mixer]]
    # Parts of the names of parameters that describe a shape (a filter, a mask): decay would deform it.
    no_weight_decay: ClassVar[tuple[str, ...]] = ()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module; what was loaded already is left alone."""
        super()._init_weights(module)
        if isinstance(module, nn.GRU):
            bound = module.hidden_size**-0.5
            for parameter in module.parameters():
                init.uniform_(parameter, -bound, bound)
        if hasattr(module, "reset"):
            module.reset()

    @classmethod
    def from_pretrained(cls, *arguments: Any, output_loading_info: bool = False, **options: Any) -> Any:
        """As in transformers, but a head is taken whole or not at all.

        Heads of different kinds have parts of the same name. The dense layer of a language model's head, which feeds
        another activation, would saturate the classifier's tanh: it starts anew, as the parts do that are missing.
        """
        model, info = super().from_pretrained(*arguments, output_loading_info=True, **options)
        incomplete = {name.partition(".")[0] for name in info["missing_keys"]}
        heads = [] if model.base_model is model else model.named_children()
        for name, part in heads:
            if name in incomplete and part is not model.base_model:
                renewed = model._renew(part)
                info["missing_keys"] = {*info["missing_keys"], *(f"{name}.{parameter}" for parameter in renewed)}
        return (model, info) if output_loading_info else model

    @torch.no_grad()
    def _renew(self, part: nn.Module) -> list[str]:
        """Initialise a module beside the encoder anew, but for weights that it shares with that; the names of what is
        new."""
        shared = {id(parameter) for parameter in self.base_model.parameters()}
        renewed = []
        for prefix, module in part.named_modules():
            own = dict(module.named_parameters(recurse=False))
            if own and not any(id(parameter) in shared for parameter in own.values()):
                for parameter in own.values():
                    parameter._is_hf_initialized = False  # by which transformers leaves what was loaded alone
                with _whole(own.values()):
                    self._init_weights(module)
                renewed += [f"{prefix}.{name}".lstrip(".") for name in own]
        return renewed

    @property
    def isolates_documents(self) -> bool:
        """Whether documents that share a row see nothing of each other, given document_ids.

        Recurrent positions (gru) run across the row in any mixer.
        """
        return self.mixer_class.isolates_documents and self.config.position_embedding_type != "gru"

    def _training_loss(
        self,
        loss: torch.Tensor,
        outputs: MixerModelOutput,
        own_items: int | torch.Tensor,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The loss to minimise, and `loss` detached where an auxiliary loss was mixed in (in training), else None."""
        weight = self.config.auxiliary_loss_weight
        if not self.training or weight == 0 or outputs.auxiliary_loss is None:
            return loss, None
        mixed = mix_auxiliary_loss(loss, outputs.auxiliary_loss, weight, own_items, num_items_in_batch)
        return mixed, loss.detach()

    def _told_auxiliary_loss(self, outputs: MixerModelOutput, labels: torch.Tensor | None) -> torch.Tensor | None:
        """The auxiliary loss that a head's output holds: answers have none, for it is one number for all samples."""
        return outputs.auxiliary_loss if self.training or labels is not None else None

    # Longer sequences after training. The model only goes round: each module knows itself how to grow, and a new
    # configuration is put in place first, for modules read the new length from it.

    def resize_positions(self, positions: int) -> None:
        """Extend the model to a longer maximum: what is tied to the length grows, and new parts start anew.

        Args:
            positions: the new config.max_position_embeddings, at least the present one.

        Raises:
            ValueError: fewer positions than now.
        """
        old, new = self.config, copy.deepcopy(self.config)
        new.resize_positions(positions)
        new.check()
        # Other models may share the old configuration.
        for module in self.modules():
            if getattr(module, "config", None) is old:
                module.config = new
        for module in self.modules():
            if hasattr(module, "resize_positions") and not isinstance(module, PreTrainedModel):
                module.resize_positions()


class MixerModel(MixerPreTrainedModel):
    """Embeddings and blocks of one mixer: (B, N) tokens or (B, N, C) values -> (B, N, D)."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        config.check()
        block_class = PreNormBlock if config.block_style == "prenorm" else self.mixer_class.paper_block
        self.embeddings = Embeddings(config, block_class.normalises_embeddings)
        self.layers = nn.ModuleList(
            block_class(config, self.mixer_class(config, index)) for index in range(config.num_hidden_layers)
        )
        self.shared = self.mixer_class.shared_module(config)
        if self.shared is not None:
            for layer in self.layers:
                layer.mixer.use_shared(self.shared)
        self.final_norm = (
            LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if block_class.needs_final_norm else nn.Identity()
        )
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding | None:
        """The token embeddings; None for real-valued inputs."""
        return getattr(self.embeddings, "word_embeddings", None)

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the token embeddings."""
        self.embeddings.word_embeddings = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
        segment_offsets: torch.Tensor | None = None,
        longest_segment: int | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> MixerModelOutput:
        """Encode a batch.

        Args:
            input_ids: (B, N) int64. Exactly one of input_ids, inputs_embeds and values is given.
            attention_mask: (B, N), non-zero on valid tokens, which may lie anywhere; None: all valid.
            token_type_ids: (B, N) int64, e.g. sentence A and B; None: all 0.
            inputs_embeds: (B, N, D), in place of the token embeddings.
            values: (B, N, C), real-valued inputs of a model with input_channels.
            document_ids: (B, N) int64, equal on the tokens of one packed document.
            coordinates: (B, N, l), positions of the tokens in l dimensions.
            segment_offsets: (S + 1,) int32, beside document_ids of a right-padded batch: where each document and each
                row's padding begins among the B N positions, row by row, and B N. Without it softmax attention on GPUs
                waits for the device once to find it, or makes an (N, N) mask where it cannot: under torch.compile. Its
                values are trusted: to check them would wait too.
            longest_segment: positions of the longest of these segments.
            output_hidden_states: return the embeddings and each block's output as well.
            output_attentions: None or False, which libraries around models pass.

        Raises:
            ValueError: output_attentions, which no mixer has; none or several inputs, a wrong shape, or more than
                max_position_embeddings positions.
        """
        if output_attentions:
            raise ValueError(
                "output_attentions is true, but the mixers have no matrices of attention weights to return"
            )
        shape = self._check_inputs(input_ids, inputs_embeds, values)
        self._check_shapes(shape, token_type_ids, document_ids, coordinates)
        documents = self._documents(shape, document_ids, segment_offsets, longest_segment)
        mask, compaction = None, None
        if attention_mask is not None:
            mask = as_mask(attention_mask)
            if mask.shape != shape:
                raise ValueError(
                    f"attention_mask has shape {tuple(mask.shape)}; allowed: that of the inputs, {tuple(shape)}"
                )
            compaction = Compaction(mask)
            mask = compaction.mask
            input_ids, token_type_ids, inputs_embeds, values, document_ids, coordinates = map(
                compaction.compact, (input_ids, token_type_ids, inputs_embeds, values, document_ids, coordinates)
            )
        embeddings = self.embeddings(input_ids, token_type_ids, inputs_embeds, values, mask)
        contexts = self.contexts(BatchContext(mask, document_ids, embeddings, coordinates, documents))
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        states = [embeddings]
        hidden_states = embeddings
        for layer, context in zip(self.layers, contexts, strict=True):
            hidden_states = layer(hidden_states, context)
            if output_hidden_states:
                states.append(hidden_states)
        hidden_states = self.final_norm(hidden_states)
        states[-1] = hidden_states
        if compaction is not None:
            states = [compaction.restore(state) for state in states]
        return MixerModelOutput(
            last_hidden_state=states[-1],
            hidden_states=tuple(states) if output_hidden_states else None,
            auxiliary_loss=self.mixer_class.auxiliary_loss([layer.mixer for layer in self.layers]),
        )

    def contexts(self, context: BatchContext) -> list[BatchContext]:
        """The context of each layer: with what `shared` or the mixers' `share` makes of it and the embeddings.

        It is made for all layers at once and outside of them, so that recomputing one does not make it again. Reentrant
        checkpointing goes backward through each layer on its own: there each makes its own.
        """
        recompute = getattr(self, "_gradient_checkpointing_func", None)
        reentrant = getattr(recompute, "keywords", {}).get("use_reentrant", True)
        if self.training and self.gradient_checkpointing and reentrant:
            return [context] * len(self.layers)
        if self.shared is not None:
            context = context.with_shared(self.shared(context.embeddings, context))
        shared = self.mixer_class.share([layer.mixer for layer in self.layers], context.embeddings, context)
        if shared is None:
            return [context] * len(self.layers)
        return [context.with_shared(of_layer) for of_layer in shared]

    # Checks of the inputs. A wrong shape would often broadcast to a wrong result, silently, or fail deep in a kernel.

    def _check_inputs(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, values: torch.Tensor | None
    ) -> torch.Size:
        """Shape (B, N) of the one input that is given; ValueError for none, several, or one that does not fit."""
        given = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "values": values}
        given = {name: tensor for name, tensor in given.items() if tensor is not None}
        channels = self.config.input_channels
        allowed = ("input_ids" if channels is None else "values", "inputs_embeds")
        if len(given) != 1 or next(iter(given)) not in allowed:
            raise ValueError(
                f"given are {', '.join(given) or 'no inputs'}; allowed: exactly one of {' and '.join(allowed)}, "
                f"since input_channels is {channels}"
            )
        name, tensor = next(iter(given.items()))
        width = {"input_ids": (), "inputs_embeds": (self.config.hidden_size,), "values": (channels,)}[name]
        if tensor.dim() != 2 + len(width) or tensor.shape[2:] != width:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; allowed: {('B', 'N', *width)}")
        if tensor.shape[1] > self.config.max_position_embeddings:
            raise ValueError(
                f"the sequences have {tensor.shape[1]} positions; allowed: at most max_position_embeddings = "
                f"{self.config.max_position_embeddings}"
            )
        return tensor.shape[:2]

    def _check_shapes(
        self,
        shape: torch.Size,
        token_type_ids: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        coordinates: torch.Tensor | None,
    ) -> None:
        """Raise ValueError unless the tensors beside inputs of `shape` (B, N) have that shape too."""
        for name, tensor in (("token_type_ids", token_type_ids), ("document_ids", document_ids)):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}; allowed: that of the inputs, {tuple(shape)}")
        if coordinates is not None and (coordinates.dim() != 3 or coordinates.shape[:2] != shape):
            raise ValueError(
                f"coordinates has shape {tuple(coordinates.shape)}; allowed: {(*shape, 'l')}, as the inputs are"
            )

    def _documents(
        self,
        shape: torch.Size,
        document_ids: torch.Tensor | None,
        segment_offsets: torch.Tensor | None,
        longest_segment: int | None,
    ) -> Segments | None:
        """The documents as segments, or None; ValueError for half of them, for none to describe or a wrong form."""
        if segment_offsets is None and longest_segment is None:
            return None
        if document_ids is None or segment_offsets is None or longest_segment is None:
            raise ValueError(
                "given is only a part of document_ids, segment_offsets and longest_segment; allowed: all three, or "
                "document_ids alone"
            )
        if segment_offsets.dim() != 1 or segment_offsets.dtype != torch.int32:
            raise ValueError(
                f"segment_offsets has shape {tuple(segment_offsets.shape)} and {segment_offsets.dtype}; allowed: "
                "(S + 1,) for S segments, torch.int32"
            )
        if not 1 <= longest_segment <= max(shape[1], 1):
            raise ValueError(f"longest_segment is {longest_segment}; allowed: 1 to the {shape[1]} positions of a row")
        return Segments(segment_offsets, longest_segment)

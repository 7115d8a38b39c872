"""What stage 2 times: blocks of the models, the operations at their width, and attention by every way there is."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from gpu_kit.processes import NotHereError
from gpu_kit.setting import CONFIGS, installed
from kernel.kinds import Operation, Prepared
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from longmix.modeling import BatchContext
from longmix.modeling.attention.variable_length import kernel_for, variable_length_attention
from longmix.modeling.context import Segments
from longmix.trainer.settings.run_file import parse_yaml

# Tokens of a packed document, on average.
DOCUMENT = 512
# Of the attentions: the width of a head in the models of BERT-base's shape.
HEAD_WIDTH = 64


@dataclass(frozen=True)
class Block:
    """One block of a model: mixer, feed-forward layer and residual connections, with weights as precise as its inputs.

    Attributes:
        file: of configs/model, without its ending.
        documents: whether rows hold several.
        compiled: by torch.compile.
    """

    name: str
    file: str
    batch: int
    documents: bool = False
    compiled: bool = False

    @property
    def fields(self) -> dict[str, object]:
        """Of the model's configuration."""
        path = CONFIGS / "model" / f"{self.file}.yaml"
        return dict(parse_yaml(path.read_text(encoding="utf-8"), str(path))["model"])

    @property
    def blocks(self) -> int:
        """How many the model has: other mixers may have fewer, for equal parameters."""
        return self.fields["num_hidden_layers"]

    def prepare(self, length: int, device: torch.device, dtype: torch.dtype) -> Prepared:
        """The call, initialised as in a model; differentiable in the input and all parameters."""
        fields = {**self.fields, "num_hidden_layers": 1, "vocab_size": 8, "max_position_embeddings": length}
        generator = torch.Generator().manual_seed(0)
        shape = (2, self.batch, length, fields["hidden_size"])
        x, weights = torch.randn(shape, generator=generator).to(device, dtype)
        x = x.clone().requires_grad_(True)
        config = transformers.AutoConfig.for_model(**fields)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = transformers.AutoModel.from_config(config)
        # Buffers stay in fp32, as in training.
        model = model.to(device) if dtype != torch.float64 else model.to(device, dtype)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        block = model.layers[0].train()
        context = BatchContext(embeddings=x)
        if self.documents:
            ids = document_ids(self.batch, length)
            # As the collate gives them: without segments softmax attention would search them, and wait for the GPU.
            segments = segments_of(self.batch, length, ids, device)
            context = BatchContext(document_ids=ids.to(device), embeddings=x, documents=segments)
        # What a model makes once for all of its layers is no part of a block.
        made = model.contexts(context)[0]
        shared, leaves = made.shared, []
        if shared is not None:
            leaves = [one.detach().requires_grad_() for one in shared if one is not None and one.requires_grad]
            waiting = iter(leaves)
            parts = (next(waiting) if one is not None and one.requires_grad else one for one in shared)
            made = made.with_shared(type(shared)(*parts) if hasattr(shared, "_fields") else tuple(parts))
        call = torch.compile(block, dynamic=False) if self.compiled else block
        return Prepared(lambda: call(x, made), [x, *block.parameters(), *leaves], weights)


def document_ids(batch: int, length: int) -> torch.Tensor:
    """(B, N) ids of packed documents of unequal lengths, the same for every device; DOCUMENT tokens on average."""
    generator = torch.Generator().manual_seed(1)
    begins = torch.rand(batch, length, generator=generator) < 1 / min(DOCUMENT, max(2, length // 4))
    return begins.cumsum(1)


def segments_of(batch: int, length: int, ids: torch.Tensor | None, device: torch.device) -> Segments:
    """The documents `ids` (B, N) on the CPU as segments on a device; None: one document a row."""
    starts = torch.ones(batch, length, dtype=torch.bool)
    starts[:, 1:] = False if ids is None else ids[:, 1:] != ids[:, :-1]
    offsets = torch.cat([starts.flatten().nonzero().flatten(), torch.tensor([batch * length])])
    return Segments(offsets.to(device, torch.int32), int(offsets.diff().max()))


# -----------------------------------------------------------------------------
# Softmax attention by itself: rows (B, N, H, d), of which each way has views (B, H, N, d).


def attention(way: str, batch: int, heads: int, length: int, documents: bool) -> Operation:
    """Softmax attention, computed in one of WAYS.

    Raises:
        NotHereError: this torch has no such way.
    """
    ids = document_ids(batch, length) if documents else None

    def make(positions, generator):
        return list(torch.randn(3, batch, positions, heads, HEAD_WIDTH, generator=generator))

    attend = WAYS[way](ids)

    def apply(*rows):  # as a layer's projection has them, of which a way may or may not want a copy
        return attend(*(x.transpose(1, 2) for x in rows)).transpose(1, 2)

    return Operation(f"attention {way}", (), f"H={heads} d={HEAD_WIDTH}", make, apply, values=2, batch=batch)


def _pairs(ids: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if ids is None else (ids[:, None, :, None] == ids[:, None, None, :]).to(device)


def _sdpa(backend: SDPBackend, ids: torch.Tensor | None) -> Callable:
    mask = {}

    def apply(query, key, value):
        if not mask:  # once, as in a model
            mask["pairs"] = _pairs(ids, query.device)
        try:
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask["pairs"])
        except RuntimeError as error:
            if "No available kernel" in str(error):
                raise NotHereError(f"{backend.name} does not take this here") from None
            raise

    return apply


def _flex(ids: torch.Tensor | None) -> Callable:
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError:
        raise NotHereError("this torch has no flex attention") from None
    compiled, mask = torch.compile(flex_attention, dynamic=False), {}

    def apply(query, key, value):
        if not mask:
            mask["block"] = None
            if ids is not None:
                there = ids.to(query.device)

                def same(b, h, q, k):
                    return there[b, q] == there[b, k]

                mask["block"] = create_block_mask(same, len(ids), None, *ids.shape[1:], ids.shape[1], query.device)
        return compiled(query, key, value, block_mask=mask["block"])

    return apply


def _varlen(ids: torch.Tensor | None) -> Callable:
    places = {}

    def apply(query, key, value):
        kernel = kernel_for(query, 0.0)
        if kernel is None:
            raise NotHereError("this card or dtype has no variable-length attention")
        if not places:  # once, as in a model
            places["segments"] = segments_of(query.shape[0], query.shape[2], ids, query.device)
        return variable_length_attention(query, key, value, places["segments"], kernel, causal=False, dropout=0.0)

    return apply


WAYS = {
    "sdpa flash": functools.partial(_sdpa, SDPBackend.FLASH_ATTENTION),
    "sdpa memory-efficient": functools.partial(_sdpa, SDPBackend.EFFICIENT_ATTENTION),
    "sdpa cudnn": functools.partial(_sdpa, SDPBackend.CUDNN_ATTENTION),
    "sdpa math": functools.partial(_sdpa, SDPBackend.MATH),
    "flex": _flex,
    "variable-length": _varlen,
}
# What the others are compared with, in float64.
PLAIN = "sdpa math"


# -----------------------------------------------------------------------------
# Another library's linear attention.


def fla(case: Operation) -> Operation:
    """`case`, causal linear attention, by flash-linear-attention.

    Raises:
        NotHereError: it is not installed.
    """
    if not installed("fla"):
        raise NotHereError("flash-linear-attention (fla) is not installed")
    from fla.ops.linear_attn import chunk_linear_attn

    def apply(query, key, value):
        rows = (x.transpose(1, 2).contiguous() for x in (query, key, value))
        found = chunk_linear_attn(*rows, normalize=True)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return Operation(f"{case.name} fla", (), case.dimensions, case.make, apply, values=2, batch=case.batch)

"""What a layer of each mixer launches: the layers of an encoder, forward and backward, by those of the transformer."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
import yaml
from transformers import AutoConfig, AutoModel

import longmix.modeling
from longmix.modeling.attention import SoftmaxAttention
from longmix.modeling.context import BatchContext
from longmix.modeling.wavspa import band_attention
from longmix.trainer.models.kept import KeptTensors

from .cards import Launch
from .counting import DEVICE, Launches, counting
from .live import LiveMemory
from .softmax import variable_length

CONFIGURATIONS = Path(__file__).parents[2] / "configs" / "model"
BASELINE = "transformer"
LINEAR, LIFTING = "wavspa-linear", "wavspa-lifting"
MIXERS = (BASELINE, "flt", "paramixer", "converter", "s3attention", "wavspa", LINEAR, LIFTING)
# Mixers that are others with some fields of their own, of as many parameters.
VARIED = {
    LINEAR: ("wavspa", {"attention": "linear"}),
    LIFTING: ("wavspa", {"space": "lifting", "learnable": True, "share_bands": True, "intermediate_size": 3072}),
}
TOKENS = 16384
LENGTHS = (512, 2048, 8192)
MEAN_DOCUMENT = 512
# What is asked of a mixer with its kernels on an A100: multiples of the transformer's time, by whether documents are
# packed and by N; and launches of a layer.
GOALS = {False: {512: 1.3, 2048: 1.0, 8192: 0.6}, True: {512: 1.4, 2048: 1.2, 8192: 1.2}}
MOST_LAUNCHES = 60
PORTABLE = "portable"
DENSE_MASK = "dense mask"


@dataclass(frozen=True)
class Case:
    """One row of the tables.

    Args:
        mixer: of MIXERS.
        documents: several are packed into each sample.
        positions: N, of each sample.
        variant: None, the Triton kernels and the best softmax attention; PORTABLE, plain PyTorch; DENSE_MASK, softmax
            attention under a matrix of all pairs.
    """

    mixer: str
    documents: bool
    positions: int
    variant: str | None = None

    @property
    def needs_triton(self) -> bool:
        """Whether it runs the Triton kernels."""
        return self.variant != PORTABLE

    @property
    def layer(self) -> str:
        """Its name in tables."""
        return self.mixer if self.variant is None else f"{self.mixer}, {self.variant}"


def fields_of(mixer: str) -> dict[str, object]:
    """The fields of a mixer's base model."""
    if mixer in VARIED:
        base, own = VARIED[mixer]
        return {**fields_of(base), **own}
    text = (CONFIGURATIONS / f"{mixer}_base.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["model"]


def isolates_documents(mixer: str) -> bool:
    """Whether packed documents see nothing of each other: only then there is a row for them."""
    model_type, _ = VARIED.get(mixer, (mixer, {}))
    return longmix.modeling.model_class(model_type, "Model").mixer_class.isolates_documents


def cases(mixers: tuple[str, ...] = MIXERS, lengths: tuple[int, ...] = LENGTHS) -> list[Case]:
    """All rows of the tables."""
    made = []
    for documents in (False, True):
        for mixer in mixers:
            if documents and not isolates_documents(mixer):
                continue
            variants = [None, PORTABLE]
            if mixer == BASELINE and documents:
                variants.append(DENSE_MASK)
            made += [Case(mixer, documents, length, variant) for variant in variants for length in lengths]
    return made


def document_lengths(positions: int, tokens: int = TOKENS) -> list[int]:
    """Lengths of the packed documents of a batch, the same stream of documents for every mixer and length.

    They are drawn from an exponential distribution, and cut where a sample ends.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    lengths, taken = [], 0
    while taken < tokens:
        drawn = max(1, round(torch.empty(()).exponential_(1 / MEAN_DOCUMENT, generator=generator).item()))
        while drawn > 0 and taken < tokens:
            piece = min(drawn, positions - taken % positions, tokens - taken)
            lengths.append(piece)
            drawn, taken = drawn - piece, taken + piece
    return lengths


@dataclass(frozen=True)
class Counted:
    """What a layer costs: all of the encoder's, by the transformer's number of layers.

    Args:
        launches: how often each is made, forward and backward.
        kept: bytes that the forward pass keeps for the backward pass, without parameters and buffers.
        peak: bytes that one of its own layers takes at most, forward and backward, beside parameters, buffers and rows
            that go in; gradients are among them.
    """

    launches: dict[Launch, float]
    kept: float
    peak: float


def count(
    case: Case, dtype: torch.dtype, flash: bool, tokens: int = TOKENS, fields: dict[str, object] | None = None
) -> Counted:
    """The costs of a layer.

    Args:
        case: which row.
        dtype: of weights and activations; buffers stay fp32.
        flash: see `counting`.
        tokens: of the batch.
        fields: in place of those of the mixer's base model.
    """
    fields = fields_of(case.mixer) if fields is None else fields
    (one, kept, peak), (two, kept_of_two, _) = (_run(case, fields, n, dtype, flash, tokens) for n in (1, 2))
    every_other = two.copy()
    every_other.subtract(one)
    total, others = Launches(one), fields["num_hidden_layers"] - 1
    for launch, number in every_other.items():
        total[launch] += others * number
    layers = fields_of(BASELINE)["num_hidden_layers"]
    launches = {launch: number / layers for launch, number in total.items() if number != 0}
    return Counted(launches, (kept + others * (kept_of_two - kept)) / layers, peak)


def _run(
    case: Case, fields: dict, layers: int, dtype: torch.dtype, flash: bool, tokens: int
) -> tuple[Launches, int, int]:
    """What the first layers launch, forward and backward, the bytes that they keep between the two, and the most."""
    model = _encoder(fields, layers, case.positions, dtype)
    shape = (tokens // case.positions, case.positions)
    embeddings = torch.empty(*shape, model.config.hidden_size, dtype=dtype, device=DEVICE, requires_grad=True)
    ids = torch.zeros(shape, dtype=torch.int64, device=DEVICE) if case.documents else None
    lengths = document_lengths(case.positions, tokens) if case.documents else None
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(LiveMemory([embeddings, *model.parameters(), *model.buffers()]))
        launches = stack.enter_context(counting(case.needs_triton, flash, lengths))
        bands = _lengths_of_bands(model, *shape)
        if bands:
            stack.enter_context(mock.patch.object(band_attention, "kernel_for", lambda query, dropout: "of a GPU"))
        if bands or (case.documents and case.variant != DENSE_MASK):
            attend = variable_length(launches.record, flash, bands or lengths)
            stack.enter_context(mock.patch.object(SoftmaxAttention, "attend", attend))
        kept = KeptTensors(model)
        with kept:
            contexts = model.contexts(BatchContext(document_ids=ids, embeddings=embeddings))
            hidden_states = embeddings
            for layer, context in zip(model.layers, contexts, strict=True):
                hidden_states = layer(hidden_states, context)
            loss = model.mixer_class.auxiliary_loss([layer.mixer for layer in model.layers])
        results = [hidden_states] if loss is None else [hidden_states, loss]
        torch.autograd.backward(results, [torch.empty_like(result) for result in results])
    return launches, kept.bytes, live.peak


def _lengths_of_bands(model: torch.nn.Module, batch: int, positions: int) -> list[int]:
    """Lengths of all samples' bands that softmax attention takes at once as segments; none where bands have one."""
    space = getattr(model.layers[0].mixer, "space", None)
    if space is None or model.config.attention != "softmax":
        return []
    shapes = space.shapes(batch, positions)
    return [rows for samples, rows in shapes for _ in range(samples)] if len(shapes) > 1 else []


def _encoder(fields: dict, layers: int, positions: int, dtype: torch.dtype) -> torch.nn.Module:
    fields = {**fields, "num_hidden_layers": layers, "max_position_embeddings": positions, "vocab_size": 16}
    config = AutoConfig.for_model(**fields)
    with torch.device(DEVICE):
        model = AutoModel.from_config(config).train()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model

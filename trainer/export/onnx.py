"""A model as ONNX beside its weights, `model.onnx`, for runtimes that have neither torch nor longmix."""

import contextlib
import logging
import os
import pydoc
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import transformers

from longmix.data_prep.errors import MachineFault, UserError, reason_of
from longmix.kernels.common.choice import ENVIRONMENT_VARIABLE
from longmix.kernels.common.windows import SMALLEST_BLOCK

from ..models.folder import objective_of
from ..models.loading import load_config, load_model
from ..settings.libraries import require_libraries
from ..settings.objectives import OBJECTIVES

ONNX = "model.onnx"
# Beside it where the weights are more than a file of ONNX can hold, 2 GB.
ONNX_WEIGHTS = f"{ONNX}.data"
MODEL_TYPES = ("transformer", "wavspa", "paramixer", "flt")
# Why the others are not among them.
_REASONS = {
    "converter": "torch.onnx translates no operator of its Givens rotations' phases (prims.prod)",
    "s3attention": "its Fourier convolution is an operator of longmix's own, which torch.onnx does not translate",
}
# Those of them that are exported unless they are causal.
_NOT_CAUSAL = {"flt": "the number of steps that its sums over earlier tokens take depends on the length"}
_OBJECTIVES = ("mlm", "clm", "classification", "regression", "token_classification")
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
# Relative root mean square of the difference from torch; fp32 leaves 1e-7 of a small model, and more of a deep one.
_TOLERANCE = 1e-4
_LOGGERS = ("onnxscript", "onnx_ir", "torch.onnx", "torch.export", "torch._dynamo", "torch.fx")


def check_onnx(folder: Path) -> None:
    """Raise UserError unless the libraries are there, and the model of a folder is one that ONNX can express."""
    require_libraries("--onnx needs", _NEEDED, "onnx")
    config = load_config(str(folder))
    if config.model_type not in MODEL_TYPES:
        why = _REASONS.get(config.model_type, "of other types optimum exports some (optimum-cli export onnx)")
        raise UserError(f"--onnx exports {', '.join(MODEL_TYPES)}; {folder} is a {config.model_type}: {why}")
    if config.model_type in _NOT_CAUSAL and config.is_causal:
        why = _NOT_CAUSAL[config.model_type]
        raise UserError(f"--onnx exports no {config.model_type} that is causal, as {folder} is: {why}")
    objective = objective_of(str(folder), config).name
    if objective not in _OBJECTIVES:
        raise UserError(f"--onnx exports models of {', '.join(_OBJECTIVES)}; {folder} is one of {objective}")
    if config.input_channels is not None:
        raise UserError(f"--onnx exports models of tokens; {folder} reads real values")
    if getattr(config, "coordinate_dimensions", 0):
        raise UserError(f"--onnx exports models of tokens alone; {folder} reads coordinates, too")


def add_onnx(folder: Path) -> None:
    """Write model.onnx into a model folder, and compare what onnxruntime makes of it with torch.

    Its inputs are `input_ids` (B, N) and `attention_mask` (B, N) and, where the model has such embeddings,
    `token_type_ids` (B, N), all int64; B is any number, N any up to max_position_embeddings. Its output is `logits`, as
    the model's in fp32. Each row is one document.

    Raises:
        UserError: torch cannot express this model, or not for any batch and length, or onnxruntime refuses it.
        MachineFault: what it made gives something else.
    """
    config = load_config(str(folder))
    auto_class = pydoc.locate(OBJECTIVES[objective_of(str(folder), config).name].auto_class.replace(":", "."))
    model = load_model(str(folder), auto_class).eval()
    with _plain_and_quiet():
        program = _export(model)
        program.save(folder / ONNX)
        worst = max(_difference(folder / ONNX, model, *shape) for shape in _shapes(config))
    if not worst < _TOLERANCE:
        differ = f"--onnx: onnxruntime's results differ from torch's by {worst:.1e} (relative root mean square)"
        raise MachineFault(f"{differ}: nothing was written")


def _export(model: transformers.PreTrainedModel) -> "torch.onnx.ONNXProgram":
    inputs = example(model.config, batch=3, length=_example_length(model.config))
    try:
        batch = torch.export.Dim("batch", min=1, max=2**16)
        length = torch.export.Dim("length", min=1, max=model.config.max_position_embeddings)
        program = torch.onnx.export(
            _Logits(model),
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes=({0: batch, 1: length},) * len(inputs),
            input_names=list(inputs),
            output_names=["logits"],
            verbose=False,
        )
    except Exception as error:  # the exporter's own kinds are private
        reason = reason_of(error.__cause__ or error)
        raise UserError(f"--onnx: torch.onnx cannot express this model: {reason[:300]}") from None
    _require_any_shape(program.model.graph.inputs)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces, with the paths of this machine
        node.doc_string = None
    return program


def _require_any_shape(inputs: Iterable) -> None:
    """Raise UserError where torch.onnx has made a constant of a dimension, which it does without a word."""
    for value in inputs:
        for name, size in zip(("batch", "length"), value.shape, strict=True):
            if isinstance(size, int):
                only = f"of {value.name} only the {name} {size} that it was tried with"
                raise UserError(f"--onnx: torch.onnx cannot express this model: it takes {only}")


def _example_length(config: transformers.PreTrainedConfig) -> int:
    """The length that a model is exported at: several blocks of windows where it may have so many positions, for of one
    block torch.onnx makes one whatever the length is.
    """
    reach = max(SMALLEST_BLOCK, getattr(config, "attention_window", 0) // 2, getattr(config, "exact_reach", 0))
    return min(5 * reach + 8, config.max_position_embeddings)


class _Logits(torch.nn.Module):
    """A model as a function of its inputs to its logits."""

    def __init__(self, model: transformers.PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits


def example(config: transformers.PreTrainedConfig, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs (batch, length) of random tokens; each row but the first has a third of padding, of random tokens too."""
    generator = torch.Generator().manual_seed(batch + length)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1:, length - length // 3 :] = 0
    inputs = {"input_ids": torch.randint(config.vocab_size, (batch, length), generator=generator)}
    inputs["attention_mask"] = mask
    if config.type_vocab_size:
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, (batch, length), generator=generator)
    return inputs


def _shapes(config: transformers.PreTrainedConfig) -> list[tuple[int, int]]:
    """Batches and lengths to compare at: others than that of the export, longer, odd ones, and one token alone."""
    shapes = ((1, 1), (1, 31), (2, 17), (5, 64), (2, _example_length(config) * 3 // 2))
    return [(batch, min(length, config.max_position_embeddings)) for batch, length in shapes]


def _difference(path: Path, model: transformers.PreTrainedModel, batch: int, length: int) -> float:
    import onnxruntime

    inputs = example(model.config, batch, length)
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})[0])
    except Exception as error:  # its kinds have no common parent
        raise UserError(f"--onnx: onnxruntime refuses this model: {reason_of(error)[:300]}") from None
    with torch.no_grad():
        expected = model(**inputs).logits
    return relative_difference(found, expected, inputs["attention_mask"])


def relative_difference(found: torch.Tensor, expected: torch.Tensor, attention_mask: torch.Tensor) -> float:
    """Root mean square of the difference, of that of `expected`; of logits of tokens at the valid ones alone."""
    if expected.dim() == 3:
        found, expected = (logits[attention_mask.bool()] for logits in (found, expected))
    return ((found - expected).square().mean() / expected.square().mean()).sqrt().item()


@contextlib.contextmanager
def _plain_and_quiet() -> Iterator[None]:
    """A context in which operations are plain PyTorch, which the exporter can read, and it says nothing of its own."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    os.environ[ENVIRONMENT_VARIABLE] = "portable"
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if chosen is None:
            del os.environ[ENVIRONMENT_VARIABLE]
        else:
            os.environ[ENVIRONMENT_VARIABLE] = chosen

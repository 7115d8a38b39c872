"""Rates in proportion to the weights: what pre-training has let grow has to move further to change."""

import transformers
from torch import nn

import longmix.modeling

from ..models.loading import load_config, load_model
from ..optimization.matrices import matrix_views

# Root mean square of the matrices of a new model, for which learning rates are made.
NEW_RMS = 0.02


def is_relative_by_default(model_type: str) -> bool:
    """Whether fine-tuning takes rates in proportion to the weights where nobody has said so.

    It does for longmix's own models, which Muon may have let grow: docs/learning.md has what that is worth. The
    published rates of other encoders are for one rate.
    """
    return model_type in longmix.modeling.MODEL_TYPES


def relative_factors(checkpoint: str) -> dict[str, float]:
    """`optim.lr_factors` with which each matrix and embedding moves by the same share of its size in a step.

    A step of AdamW has the size of the rate, whatever that of the weights: where pre-training has let these grow, the
    same rate changes a model less. The factor of a matrix of the layers, or of a table of embeddings, is its root mean
    square over NEW_RMS, in two digits, where that is more than 1 (the relative steps of Adafactor, Shazeer and Stern
    2018, section 8, with the sizes of the beginning). Vectors and the new head keep the rate itself.

    Raises:
        UserError: the checkpoint cannot be loaded.
    """
    model = load_model(checkpoint, transformers.AutoModelForSequenceClassification, load_config(checkpoint))
    sized = {*matrix_views(model)}
    sized |= {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    sizes = {
        name: parameter.detach().square().mean().sqrt().item()
        for name, parameter in model.named_parameters()
        if id(parameter) in sized
    }
    factors = {name: float(f"{size / NEW_RMS:.2g}") for name, size in sizes.items()}
    return {name: factor for name, factor in factors.items() if factor > 1}

"""Training steps and evaluations of every model in every objective on a GPU, of which tests/card.py is a stand-in.

What the variants of a mixer promise there is in tests/modeling/test_devices.py.
"""

import itertools

import numpy as np
import pytest
import torch
from transformers import AutoConfig

import longmix.modeling
from longmix.data_prep.manifest import Manifest
from longmix.trainer.engines.base import spread_non_finite, to_device
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.optimization.optimizer import make_guarded_optimizer, parameter_groups
from longmix.trainer.settings.sections import ObjectiveSection, OptimSection

LENGTHS = [12, 7, 9]
TOKENS, VALUES = {"vocab_size": 60}, {"input_channels": 3}
# Name -> (objective, fields of the model, columns of a sample beside its inputs).
CASES = {
    "mlm": ("mlm", TOKENS, ("document_starts",)),
    "clm": ("clm", TOKENS, ("document_starts",)),
    "classification": ("classification", TOKENS, ("label",)),
    "classification-values": ("classification", VALUES, ("label",)),
    "classification-coordinates": ("classification", {**TOKENS, "coordinate_dimensions": 2}, ("label", "coordinates")),
    "regression": ("regression", VALUES, ("label",)),
    "pair_classification": ("pair_classification", TOKENS, ("label", "second")),
    "pair_classification-values": ("pair_classification", VALUES, ("label", "second")),
    "token_classification": ("token_classification", TOKENS, ("labels", "document_starts")),
    "token_classification-values": ("token_classification", VALUES, ("labels",)),
    "forecasting": ("forecasting", {**VALUES, "input_length": 12, "horizon": 4}, ("horizon",)),
}
COLUMNS = {
    "input_ids": {"dtype": "int32", "shape": [None]},
    "values": {"dtype": "float32", "shape": [None, 3]},
    "class": {"dtype": "int64", "shape": []},
    "value": {"dtype": "float32", "shape": []},
    "classes": {"dtype": "int64", "shape": [None]},
    "horizon": {"dtype": "float32", "shape": [4, 3]},
}
NORM = "_local_scalar_dense in trainer/optimization/optimizer.py, step"
PLACE = "copy to the host in trainer/objectives/"
# Where the host waits for the GPU: in a forward and backward pass, and in an evaluation, of each objective.
WAITS = {
    "mlm": ([], []),
    "clm": ([], []),
    "token_classification": ([], []),
    "forecasting": ([], [PLACE + "forecasting.py, evaluation"]),
    **dict.fromkeys(
        ("classification", "regression", "pair_classification"), ([], [PLACE + "labelled_samples.py, evaluation"])
    ),
}
# Dtypes of the weights and of autocast, as Accelerate and DeepSpeed have them. All of them are in
# tests/modeling/test_devices.py.
PRECISIONS = {"bf16-autocast": (torch.float32, torch.bfloat16), "fp16-weights": (torch.float16, None)}
# By default each objective is seen with one mixer, and not each mixer with every objective.
DEFAULT = {
    ("mlm", "converter", "bf16-autocast"),
    ("clm", "transformer", "fp16-weights"),
    ("classification-coordinates", "flt", "bf16-autocast"),
    ("regression", "paramixer", "fp16-weights"),
    ("pair_classification", "s3attention", "bf16-autocast"),
    ("token_classification", "wavspa", "fp16-weights"),
    ("forecasting", "s3attention", "fp16-weights"),
}
NOT_CAUSAL = ("converter", "s3attention", "wavspa")  # the models say so: tests/modeling/test_heads.py
GRID = [
    pytest.param(*key, marks=[] if key in DEFAULT else [pytest.mark.full])
    for key in itertools.product(CASES, longmix.modeling.MODEL_TYPES, PRECISIONS)
    if key[0] != "clm" or key[1] not in NOT_CAUSAL
]


def samples_of(case, generator):
    """Ragged samples, as a data set gives them, and the columns of its manifest."""
    objective, fields, extra = CASES[case]
    name = "input_ids" if "vocab_size" in fields else "values"
    is_pair = "second" in extra
    columns = {name + suffix: COLUMNS[name] for suffix in ("", "_b")[: 1 + is_pair]}
    kind = {"regression": "value", "token_classification": "classes", "forecasting": "horizon"}.get(objective, "class")
    if objective not in ("mlm", "clm"):
        columns["labels"] = COLUMNS[kind]
    samples = []
    for length in [12] * 3 if objective == "forecasting" else LENGTHS:
        sample = {}
        for suffix in ("", "_b")[: 1 + is_pair]:
            own = length - len(suffix)
            values = generator.integers(5, 60, own) if name == "input_ids" else generator.normal(size=(own, 3))
            sample[name + suffix] = values.astype("int32" if name == "input_ids" else "float32")
        if "labels" in columns:
            sample["labels"] = {
                "class": np.int64(length % 2),
                "value": np.float32(length),
                "classes": generator.integers(0, 2, length),
                "horizon": generator.normal(size=(4, 3)).astype("float32"),
            }[kind]
        if "document_starts" in extra:
            sample["document_starts"] = np.array([0, 5])
        if "coordinates" in extra:
            sample["coordinates"] = generator.normal(size=(length, 2)).astype("float32")
        samples.append(sample)
    return samples, columns


def make(case, model_type, model_fields):
    """The objective, a model in training and its samples."""
    name, fields, _ = CASES[case]
    samples, columns = samples_of(case, np.random.default_rng(0))
    manifest = Manifest(
        split="train",
        split_rule="",
        columns=columns,
        vocab_size=60,
        pad_token_id=0,
        mask_token_id=1,
        special_token_ids=[0, 1, 2],
        tolerance=0.5 if name == "regression" else None,
        series={"season": 3, "names": ["a", "b", "c"]} if name == "forecasting" else None,
    )
    steps = {"input_length": 12, "horizon": 4} if name == "forecasting" else {}
    objective = make_objective(ObjectiveSection(name, **steps), 0, manifest, None)
    torch.manual_seed(0)
    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    labels = {"num_labels": 1} if name == "regression" else {"num_labels": 2}
    config = AutoConfig.for_model(model_type, **tiny, **fields, **labels, **model_fields)
    return objective, objective.auto_class.from_config(config).train(), samples


def on_card(stand_in, objective, model, samples, weights, narrow):
    """The card after a step and an evaluation; where the host waited in passes, optimizer and evaluation."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(weights)
    batch = objective.rehearsal_batch(samples)
    items = objective.items(batch)
    optim = OptimSection()
    with stand_in.card() as card:
        card.holds(model)
        batch = to_device(batch, stand_in.CUDA)
        with stand_in.autocast(narrow):
            loss, sums = objective.forward(model, batch, items)
        assert (loss.dtype, loss.device.type) == (torch.float32, "cuda")
        assert (sums.dtype, sums.device.type, sums.requires_grad) == (torch.float32, "cuda", False)
        spread_non_finite(loss).backward()
        of_step, card.waits = card.waits, []
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert isinstance(parameter.grad, stand_in.CardTensor) and parameter.grad.dtype == weights, name
        if weights == torch.float32:  # else DeepSpeed's own optimizer holds weights in fp32
            optimizer = make_guarded_optimizer(parameter_groups(model, optim), optim, "fp32")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        of_optimizer, card.waits = card.waits, []
        model.eval()
        with torch.no_grad(), stand_in.autocast(narrow):
            sums, outputs = objective.evaluation(model, batch)
            assert sums.dtype == torch.float64 and sums.device.type == "cuda"
            assert outputs is None or isinstance(outputs, np.ndarray)
    return card, of_step, of_optimizer, card.waits


def test_steps_after_the_first_wait_for_nothing(stand_in, tiny_model):
    """The first one makes the moments, and the host must know whether it is taken."""
    objective, model, samples = make("mlm", "transformer", tiny_model("transformer"))
    batch = objective.rehearsal_batch(samples)
    items, optim = objective.items(batch), OptimSection()
    with stand_in.card() as card:
        card.holds(model)
        batch = to_device(batch, stand_in.CUDA)
        optimizer = make_guarded_optimizer(parameter_groups(model, optim), optim, "fp32")
        optimizer.decides_on_device = True
        for wanted in ([NORM], [], []):
            card.waits = []
            spread_non_finite(objective.forward(model, batch, items)[0]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            assert card.waits == wanted
    assert optimizer.overflow.device.type == optimizer._global_grad_norm.device.type == "cuda"


@pytest.mark.parametrize(("case", "model_type", "precision"), GRID)
def test_steps_and_evaluations(stand_in, tiny_model, case, model_type, precision):
    objective, model, samples = make(case, model_type, tiny_model(model_type))
    card, *waits = on_card(stand_in, objective, model, samples, *PRECISIONS[precision])
    of_passes, of_evaluation = WAITS[CASES[case][0]]
    of_optimizer = [NORM] if precision == "bf16-autocast" else []
    assert waits == [of_passes, of_optimizer, of_evaluation]
    assert (card.narrow, card.made_on_host) == ([], [])

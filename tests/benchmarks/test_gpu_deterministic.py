"""On GPUs no layer takes an operation that torch refuses under `torch.use_deterministic_algorithms`."""

import contextlib
import runpy
from pathlib import Path
from unittest import mock

import pytest
import torch
from transformers import AutoConfig, AutoModel

import longmix.modeling
from longmix.kernels.common.scan import prefix, running_sum
from longmix.modeling.context import BatchContext

# Those of torch's documentation that have no deterministic form on a GPU, by the names that they are dispatched under,
# but for `EmbeddingBag` with mode max.
REFUSED = {
    "cumsum",
    "histc",
    "bincount",
    "median",
    "kthvalue",
    "put_",
    "scatter_reduce",
    "scatter_reduce_",
    "cumsum_",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d_backward",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "max_unpool2d",
    "max_unpool3d",
    "avg_pool3d_backward",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "upsample_linear1d_backward",
    "upsample_bilinear2d_backward",
    "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward",
    "nll_loss2d_forward",
    "_ctc_loss_backward",
}
OF_FRACTIONS = {"cumsum", "cumsum_"}  # sums of integers have a deterministic form
ORACLES = Path(__file__).parents[1] / "modeling" / "oracles"
MIXERS = {model_type: runpy.run_path(str(ORACLES / f"{model_type}.py")) for model_type in longmix.modeling.MODEL_TYPES}
TRIED = [
    pytest.param(model_type, fields, documents, id=f"{model_type}-{name}{'-documents' * documents}")
    for model_type, mixer in MIXERS.items()
    for name, fields in {"": {}, **mixer["VARIANTS"]}.items()
    for documents in (False, True)
    if not documents or longmix.modeling.model_class(model_type, "Model").mixer_class.isolates_documents
]


@pytest.fixture
def dispatched(script):
    """Context whose value is (name, whether of numbers with a fraction) of all that is dispatched on a GPU in it."""
    counting = script("gpu_model.counting")

    @contextlib.contextmanager
    def noting():
        found = set()

        def note(function, arguments, *rest):
            tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
            found.add((function.overloadpacket.__name__, any(not is_whole(tensor) for tensor in tensors)))

        with mock.patch.object(counting, "launch_of", note):
            yield found

    return noting


def is_whole(tensor):
    return not (tensor.is_floating_point() or tensor.is_complex())


def refused(found):
    return {name for name, has_fraction in found if name in REFUSED and (has_fraction or name not in OF_FRACTIONS)}


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("model_type", "fields", "documents"), TRIED)
def test_every_model_has_a_deterministic_form(model_type, fields, documents, script, dispatched, deterministic):
    tiny = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes = {**tiny, "max_position_embeddings": 40, **MIXERS[model_type]["TINY"]}
    config = AutoConfig.for_model(model_type, **{**sizes, **fields})
    with torch.device("meta"):
        model = AutoModel.from_config(config)
        x = torch.empty(2, 40, 16, requires_grad=True)
        ids = torch.zeros(2, 40, dtype=torch.int64) if documents else None
        axes = getattr(config, "coordinate_dimensions", 0)
        coordinates = torch.empty(2, 40, axes) if axes else None

    with dispatched() as found, script("gpu_model.counting").counting(triton=False):
        hidden_states = x
        batch = BatchContext(document_ids=ids, embeddings=x, coordinates=coordinates)
        for layer, context in zip(model.layers, model.contexts(batch), strict=True):
            hidden_states = layer(hidden_states, context)
        hidden_states.backward(torch.empty_like(hidden_states))
    assert len(found) > 10 and refused(found) == set()


@pytest.mark.parametrize("fields", [{}, {"orders": 2}, {"permutations": True}])
def test_what_stands_around_kernels_has_a_deterministic_form(fields, script, dispatched, deterministic, triton):
    layers = script("gpu_model.layers")
    rows = ["converter"] if fields else [row for row in layers.MIXERS if row != layers.BASELINE]
    for case in layers.cases(tuple(rows), (512,)):
        with dispatched() as found, mock.patch.object(script("gpu_model.counting").Launches, "record"):
            layers.count(case, torch.bfloat16, True, 1024, {**layers.fields_of(case.mixer), **fields})
        assert len(found) > 10 and refused(found) == set()


def test_a_running_sum_is_that_of_torch_and_has_a_deterministic_form(script, dispatched, deterministic):
    x = torch.randn(2, 3, 37, dtype=torch.float64)
    (scanned,) = prefix(lambda left, right: (left[0] + right[0],), (x.reshape(1, -1, 37),))
    torch.testing.assert_close(scanned.view(x.shape), x.cumsum(-1))
    torch.testing.assert_close(running_sum(x), x.cumsum(-1), rtol=0, atol=0)
    for size in (0, 1, 5):
        with dispatched() as found, script("gpu_model.counting").counting(triton=False):
            assert running_sum(torch.empty(2, size, device="meta")).shape == (2, size)
        assert refused(found) == set()

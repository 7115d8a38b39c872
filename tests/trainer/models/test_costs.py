"""What the passes of a model keep and take, counted on tensors without data, against what they keep indeed."""

import pytest
import torch
from transformers import AutoModelForMaskedLM

from longmix.kernels.selection import as_on_gpus, implementation, plain
from longmix.trainer.models import costs as counted
from longmix.trainer.models.sizes import with_layers
from longmix.trainer.processes.cards import card_named
from longmix.trainer.run.setup import prepare
from longmix.trainer.settings import reading

pytestmark = pytest.mark.full

TYPES = ["transformer", "converter", "flt", "paramixer", "s3attention", "wavspa", "bert"]
LENGTH, LAYERS = 24, 5


def losses(samples):
    ids = torch.arange(samples * LENGTH).reshape(samples, LENGTH) % 90
    positions = torch.arange(0, samples * LENGTH, 6)

    def loss(model):
        logits = model(input_ids=ids).logits.flatten(0, 1).index_select(0, positions)
        return torch.nn.functional.cross_entropy(logits.float(), ids.flatten().index_select(0, positions))

    return loss


@pytest.fixture
def config_of(run_values):
    def make(model_type, **changes):
        changes = {"model.num_hidden_layers": LAYERS, "model.hidden_size": 32, **changes}
        values = run_values("run", model_type, **changes)
        return prepare(reading.from_dict(values, "test"), 1, torch.device("cpu")).model_configuration

    return make


def really_kept(config, samples):
    """Bytes of the storages that a forward pass keeps, without parameters and buffers."""
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with plain(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = losses(samples)(model)
    assert loss.isfinite()
    return sum(kept.values())


@pytest.mark.parametrize("model_type", TYPES)
def test_what_is_counted_is_what_a_forward_pass_keeps(config_of, model_type, monkeypatch):
    """By plain PyTorch, as it runs here; for so many samples and layers as were not counted."""
    monkeypatch.setattr(counted, "as_on_gpus", plain)
    config = config_of(model_type)
    arguments = (AutoModelForMaskedLM, losses, LENGTH, "fp32", card_named("A100-80"), False, 2)
    costs = counted.count_costs(config, *arguments)
    assert costs.layers == LAYERS
    # Scalars and masks of a batch are what does not grow in proportion.
    assert costs.kept(5) == pytest.approx(really_kept(config, 5), rel=5e-3)
    assert costs.kept(2) == pytest.approx(really_kept(config, 2), rel=5e-3)


@pytest.mark.parametrize("model_type", TYPES)
def test_layers_that_are_computed_again_keep_their_input(config_of, model_type):
    config = config_of(model_type)
    costs = counted.count_costs(config, AutoModelForMaskedLM, losses, LENGTH, "bf16", card_named("H100"), False, 2)
    layer = costs.layer.kept * 4 + costs.layer_constant.kept
    assert costs.layer_input == LENGTH * 32 * 2
    assert costs.kept(4, 1) == pytest.approx(costs.kept(4) - 4 * layer + 5 * 4 * costs.layer_input)
    assert costs.kept(4, 2) == pytest.approx(costs.kept(4) - 2 * layer + 3 * 4 * costs.layer_input)
    assert costs.kept(4) > costs.kept(4, 2) > costs.kept(4, 1) > 0
    assert costs.seconds(4, 1) > costs.seconds(4, 2) > costs.seconds(4) > 0


def test_softmax_attention_keeps_no_matrix_of_all_pairs(config_of):
    """Neither in bf16, for which a CPU would make one of short rows, nor with dropout."""
    config = config_of("transformer", **{"model.attention_probs_dropout_prob": 0.1})
    for precision, size in (("bf16", 2), ("fp32", 4)):
        costs = counted.count_costs(
            config, AutoModelForMaskedLM, losses, LENGTH, precision, card_named("H100"), False, 2
        )
        without = with_layers(config, LAYERS)
        without.attention_probs_dropout_prob = 0.0
        same = counted.count_costs(
            without, AutoModelForMaskedLM, losses, LENGTH, precision, card_named("H100"), False, 2
        )
        assert costs.layer.kept == pytest.approx(same.layer.kept)
        assert costs.layer.kept < size * LENGTH * 32 * 24


def test_counting_takes_the_kernels_of_gpus_and_leaves_nothing_behind(config_of):
    seen = implementation("link_mix", "cpu")
    with as_on_gpus():
        assert implementation("link_mix", "cpu") == "triton"
        with plain():
            assert implementation("link_mix", "cpu") == "portable"
    assert implementation("link_mix", "cpu") == seen
    state = torch.get_rng_state()
    counted.count_costs(
        config_of("paramixer"), AutoModelForMaskedLM, losses, LENGTH, "bf16", card_named("V100"), True, 1
    )
    assert torch.equal(torch.get_rng_state(), state)


def test_a_faster_card_takes_less_time(config_of):
    config = config_of("transformer", **{"model.hidden_size": 64, "model.intermediate_size": 256})
    times = [
        counted.count_costs(config, AutoModelForMaskedLM, losses, LENGTH, "fp16", card_named(name), False, 64).seconds(
            64
        )
        for name in ("V100", "A100-80", "H100", "B200")
    ]
    assert times == sorted(times, reverse=True)
    # Never less than the launches: forward and backward passes of five layers.
    assert times[-1] > 5 * 40 * counted.LAUNCH_SECONDS

"""Acceptance: the promises of every mixer, in every variant. A new one gets these tests by its file of oracles/."""

import itertools

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from longmix.modeling.context import BatchContext

WIDTH = 16
LENGTHS = ([1], [3, 0, 1], [7, 4, 0, 9], [40, 33, 17, 2], [5, 31])
NAN = float("nan")


def inputs(config, shape, seed=0, dtype=torch.float32):
    """(hidden_states, arguments) of a mixer: embeddings, and coordinates where it reads them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, WIDTH, generator=generator, dtype=dtype)
    arguments = {"embeddings": torch.randn(*shape, WIDTH, generator=generator, dtype=dtype)}
    dimensions = getattr(config, "coordinate_dimensions", 0)
    if dimensions:
        arguments["coordinates"] = torch.randn(*shape, dimensions, generator=generator, dtype=dtype)
    return x, arguments


def tokens(model, batch, lengths, positions):
    """The arguments of a model: tokens, their mask, and coordinates where it reads them."""
    input_ids, mask = batch(lengths, positions)
    _, arguments = inputs(model.config, input_ids.shape)
    del arguments["embeddings"]
    return {"input_ids": input_ids, "attention_mask": mask, **arguments}


def part(arguments, rows, length):
    """The arguments of some samples without their padding."""
    return {name: tensor[rows, :length] for name, tensor in arguments.items()}


@pytest.fixture
def mixer(variant, make_mixer):
    """The variant's mixer, in evaluation mode."""
    return make_mixer(variant[0], **variant[1])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("content", [1e3, NAN])
def test_only_valid_tokens_count(mixer, lengths, content):
    positions = max(lengths) + 2 if max(lengths) < 39 else 40
    mask = torch.arange(positions) < torch.tensor(lengths)[:, None]
    x, arguments = inputs(mixer.config, (len(lengths), positions))
    poison = {name: torch.where(mask[:, :, None], tensor, content) for name, tensor in arguments.items()}
    padded = torch.where(mask[:, :, None], x, content * torch.randn(x.shape)).requires_grad_()
    result = mixer(padded, BatchContext(mask, **poison))
    assert (result[~mask] == 0).all()
    for row, length in enumerate(lengths):
        if length:
            rows = slice(row, row + 1)
            alone = mixer(x[rows, :length], BatchContext(**part(arguments, rows, length)))
            torch.testing.assert_close(result[rows, :length], alone, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(result.square().sum(), [padded, *mixer.parameters()], allow_unused=True)
    assert (gradients[0][~mask] == 0).all()
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_equals_the_equations(variant, mixer, load_oracle):
    oracle = load_oracle(variant[0])
    mixer = mixer.double()
    lengths = [16, 11, 5, 2, 1]
    mask = torch.arange(16) < torch.tensor(lengths)[:, None]
    x, arguments = inputs(mixer.config, (5, 16), dtype=torch.float64)
    with torch.no_grad():
        result = mixer(x, BatchContext(mask, **arguments))
        for row, length in enumerate(lengths):
            expected = oracle(mixer, x[row, :length], **part(arguments, row, length))
            torch.testing.assert_close(result[row, :length], expected, rtol=0, atol=1e-10)


def test_documents_see_only_themselves_or_are_ignored(mixer):
    mixer = mixer.double()
    bounds = [0, 5, 6, 14]
    x, arguments = inputs(mixer.config, (2, 20), dtype=torch.float64)
    mask = torch.arange(20) < torch.tensor([14, 20])[:, None]
    documents = torch.full((2, 20), 7)
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        documents[0, start:end] = number
    documents[1, 3:] = 9
    result = mixer(x, BatchContext(mask, documents, **arguments))
    if not mixer.isolates_documents:
        assert torch.equal(result, mixer(x, BatchContext(mask, **arguments)))
        return
    for row, (start, end) in [(0, (0, 5)), (0, (5, 6)), (0, (6, 14)), (1, (0, 3)), (1, (3, 20))]:
        own = {name: tensor[row : row + 1, start:end] for name, tensor in arguments.items()}
        alone = mixer(x[row : row + 1, start:end], BatchContext(**own))
        torch.testing.assert_close(result[row : row + 1, start:end], alone, rtol=0, atol=1e-10)


def test_gradients(mixer):
    mixer = mixer.double()
    names = [name for name, _ in mixer.named_parameters()]
    parameters = [parameter.detach().requires_grad_() for parameter in mixer.parameters()]
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    x, arguments = inputs(mixer.config, (2, 5), dtype=torch.float64)
    arguments = {name: tensor.requires_grad_() for name, tensor in arguments.items()}

    def function(x, *tensors):
        given = dict(zip(arguments, tensors, strict=False))
        own = dict(zip(names, tensors[len(given) :], strict=True))
        return torch.func.functional_call(mixer, own, (x, BatchContext(mask, **given)))

    tensors = (x.requires_grad_(), *arguments.values(), *parameters)
    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)


def test_saved_and_loaded_bit_for_bit(variant, make_model, batch, tmp_path):
    model = make_model(variant[0], AutoModelForMaskedLM, buffer_seed=3, **variant[1])
    arguments = tokens(model, batch, [17, 5], 17)
    model.save_pretrained(tmp_path)
    torch.manual_seed(99)
    loaded, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert torch.equal(model(**arguments).logits, loaded(**arguments).logits)


def test_buffers_do_not_depend_on_the_global_seed(variant, make_model):
    first, second = (make_model(variant[0], seed=seed, **variant[1]) for seed in (1, 2))
    for (name, one), (_, other) in zip(first.named_buffers(), second.named_buffers(), strict=True):
        assert torch.equal(one, other), name


def test_every_parameter_is_real_and_used_and_every_buffer_saved(variant, make_model, batch):
    model = make_model(variant[0], AutoModelForMaskedLM, **variant[1]).train()
    saved = model.state_dict()
    for name, buffer in model.named_buffers():
        assert name in saved and not buffer.is_complex()
    arguments = tokens(model, batch, [19, 40], 40)
    model(**arguments, labels=arguments["input_ids"]).loss.backward()
    for name, parameter in model.named_parameters():
        assert not parameter.is_complex()
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_another_length(variant, make_model, batch, tmp_path):
    """From 512 positions to 128, and to 1024."""
    model = make_model(variant[0], **{"max_position_embeddings": 512, **longest(variant)})
    arguments = tokens(model, batch, [128, 77], 128)
    before = model(**arguments).last_hidden_state
    with pytest.raises(ValueError, match=r"positions is 511; allowed: integers of at least"):
        model.resize_positions(511)
    model.resize_positions(1024)
    assert model.config.max_position_embeddings == 1024
    torch.testing.assert_close(model(**arguments).last_hidden_state, before, rtol=1e-4, atol=1e-4)
    model.save_pretrained(tmp_path)
    loaded, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    arguments = tokens(model, batch, [1024, 700], 1024)
    after = model(**arguments).last_hidden_state
    assert after.isfinite().all()
    assert torch.equal(loaded(**arguments).last_hidden_state, after)


def longest(variant):
    """The variant's fields for a model of 512 positions."""
    return {name: value for name, value in variant[1].items() if name != "n_fft"}


def test_causal_or_refused(variant, make_config, make_mixer):
    try:
        config = make_config(variant[0], **{**variant[1], "is_causal": True})
    except ValueError as error:
        assert "is_causal is True; allowed: false" in str(error)
        config = make_config(variant[0], **variant[1])
        config.is_causal = True
        with pytest.raises(ValueError, match="is_causal is True; allowed: false"):
            AutoModel.from_config(config)
        return
    mixer = make_mixer(variant[0], **{**variant[1], "is_causal": True}).double()
    x, arguments = inputs(config, (1, 40), dtype=torch.float64)
    changed = {name: tensor.clone() for name, tensor in arguments.items()}
    before = mixer(x, BatchContext(**arguments))
    other = x.clone()
    for tensor in (other, *changed.values()):
        tensor[:, 23:] += 3
    after = mixer(other, BatchContext(**changed))
    torch.testing.assert_close(after[:, :23], before[:, :23], rtol=0, atol=1e-12)
    assert (after[:, 23:] - before[:, 23:]).abs().amax() > 1e-6


@pytest.mark.parametrize("positions", [1, 2, 3, 63, 64, 65, 127, 1000])
def test_any_length(variant, make_mixer, positions):
    mixer = make_mixer(variant[0], **{**variant[1], "max_position_embeddings": 1000})
    lengths = [positions, 1, 0, positions // 2 + 1]
    mask = torch.arange(positions) < torch.tensor(lengths)[:, None]
    x, arguments = inputs(mixer.config, (4, positions))
    with torch.no_grad():
        result = mixer(x, BatchContext(mask, **arguments))
        assert result.isfinite().all() and (result[~mask] == 0).all()
        alone = mixer(x[:1], BatchContext(**part(arguments, slice(0, 1), positions)))
    # Products of matrices of other shapes are summed in another order; some variants' results go up to 160.
    assert (result[:1] - alone).norm() <= 5e-6 * alone.norm()
    assert (result[:1] - alone).abs().max() <= 5e-6 * alone.abs().max()


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)], ids=str)
def test_nothing_in_nothing_out(mixer, shape):
    x, arguments = inputs(mixer.config, shape)
    mask = torch.ones(shape, dtype=torch.bool)
    assert mixer(x, BatchContext(**arguments)).shape == x.shape
    assert mixer(x, BatchContext(mask, **arguments)).shape == x.shape


def test_bfloat16_by_casting_the_module(variant, make_model, batch):
    model = make_model(variant[0], AutoModelForMaskedLM, initializer_range=0.1, **variant[1])
    arguments = tokens(model, batch, [17, 5], 17)
    arguments["labels"] = arguments["input_ids"]
    truth = model(**arguments).loss
    output = model.to(torch.bfloat16)(**arguments)
    assert output.logits.dtype == torch.bfloat16 and output.loss.dtype == torch.float32
    torch.testing.assert_close(output.loss, truth, rtol=2e-2, atol=2e-2)
    output.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

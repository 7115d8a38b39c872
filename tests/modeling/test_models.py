"""The conventions of transformers, on every model."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import longmix.modeling

AUTO_CLASSES = [AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoModelForTokenClassification]
HEADS = AUTO_CLASSES[1:]
# The graph of flt is one of attention, that of s3attention one of plain operators and an operator of ours.
COMPILED_IN_FULL = ("flt", "s3attention")


def labels_for(auto_class, input_ids):
    return input_ids[:, 0] % 2 if auto_class is AutoModelForSequenceClassification else input_ids % 2


@pytest.mark.parametrize("auto_class", AUTO_CLASSES)
def test_saved_and_loaded_bit_for_bit(model_type, auto_class, make_model, batch, tmp_path):
    fields = {"normalization": "batch"} if model_type == "s3attention" else {}
    model = make_model(model_type, auto_class, buffer_seed=3, **fields).train()
    input_ids, mask = batch([9, 5], 9)
    model(input_ids=input_ids, attention_mask=mask)
    model.eval()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    # Another global seed, and another buffer seed in the process, must not matter.
    torch.manual_seed(99)
    loaded, report = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert not loaded.training
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    for first, second in zip(
        model(input_ids=input_ids, attention_mask=mask).values(),
        loaded(input_ids=input_ids, attention_mask=mask).values(),
        strict=True,
    ):
        assert torch.equal(first, second)


def test_a_head_is_added_to_a_checkpoint(model_type, make_model, tmp_path):
    model = make_model(model_type, AutoModelForMaskedLM)
    model.save_pretrained(tmp_path)
    torch.manual_seed(1)
    classifier, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, num_labels=3, output_loading_info=True
    )
    assert report["missing_keys"] and all(key.startswith("head.") for key in report["missing_keys"])
    for name, tensor in model.encoder.state_dict().items():
        assert torch.equal(tensor, classifier.encoder.state_dict()[name]), name
    assert classifier.head.classifier.weight.std() > 0.1 and (classifier.head.classifier.bias == 0).all()
    assert torch.equal(AutoModel.from_pretrained(tmp_path).final_norm.weight, model.encoder.final_norm.weight)


def test_a_head_is_taken_whole_or_not_at_all(make_model, tmp_path):
    """Both heads have a dense layer, and that of a language model would saturate the classifier's tanh."""
    language, classes = tmp_path / "language", tmp_path / "classes"
    model = make_model("paramixer", AutoModelForMaskedLM)
    with torch.no_grad():
        model.head.dense.weight.fill_(3.0)
        model.head.dense.bias.fill_(2.0)
    model.save_pretrained(language)
    classifier, report = AutoModelForSequenceClassification.from_pretrained(language, output_loading_info=True)
    dense = classifier.head.dense
    assert {"head.dense.weight", "head.dense.bias", "head.classifier.weight"} <= set(report["missing_keys"])
    assert (dense.bias == 0).all() and abs(dense.weight.std() / model.config.initializer_range - 1) < 0.3
    classifier.save_pretrained(classes)
    # A head of the same kind comes whole, and with other classes as much of it as fits.
    for fields in ({}, {"num_labels": 5, "ignore_mismatched_sizes": True}):
        again = AutoModelForSequenceClassification.from_pretrained(classes, **fields)
        assert torch.equal(again.head.dense.weight, dense.weight)
    # The other way round, and what a head shares with the encoder is the encoder's.
    back, report = AutoModelForMaskedLM.from_pretrained(classes, output_loading_info=True)
    assert "head.dense.weight" in report["missing_keys"] and not torch.equal(back.head.dense.weight, dense.weight)
    embeddings = model.encoder.embeddings.word_embeddings.weight
    assert torch.equal(back.encoder.embeddings.word_embeddings.weight, embeddings)
    assert back.head.decoder.weight is back.encoder.embeddings.word_embeddings.weight
    whole = AutoModelForMaskedLM.from_pretrained(language)
    assert torch.equal(whole.head.dense.weight, model.head.dense.weight)


IN_SHARES = """
import os, sys
import deepspeed, torch
from transformers import AutoModelForSequenceClassification
from transformers.integrations import HfDeepSpeedConfig
import longmix.modeling

os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
deepspeed.init_distributed("gloo")
stage = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}
kept = HfDeepSpeedConfig(stage)
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
with deepspeed.zero.GatheredParameters(list(model.parameters())):
    assert (model.head.dense.bias == 0).all() and model.head.dense.weight.std() < 1
    assert (model.encoder.final_norm.weight == 2).all()
"""


@pytest.mark.slow
@pytest.mark.full
def test_a_head_is_taken_whole_or_not_at_all_in_shares_of_deepspeed(make_model, tmp_path):
    model = make_model("paramixer", AutoModelForMaskedLM)
    with torch.no_grad():
        for parameter in (*model.head.dense.parameters(), model.encoder.final_norm.weight):
            parameter.fill_(2.0)
        model.head.dense.weight[0].fill_(50.0)
    model.save_pretrained(tmp_path / "language")
    command = [sys.executable, "-c", IN_SHARES, str(tmp_path / "language"), str(tmp_path / "store")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert process.returncode == 0, process.stderr


def test_missing_parts_are_drawn_as_at_construction(make_model, tmp_path):
    """Buffers and parameters that a checkpoint lacks come from their own initialisation, not from raw memory."""
    model = make_model(
        "s3attention", normalization="batch", spectrum_initialization="unit_gain", position_embedding_type="gru"
    )
    model.save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    from safetensors.torch import save_file

    state = load_file(file)
    dropped = [
        name
        for name in state
        if any(part in name for part in ("landmark", "column_channels", "running", "spectrum", "position_network"))
    ]
    assert len(dropped) == 2 * 5 + 8
    save_file({name: tensor for name, tensor in state.items() if name not in dropped}, file, {"format": "pt"})
    loaded = AutoModel.from_pretrained(tmp_path).state_dict()
    for name in dropped:
        if "spectrum" in name:
            assert 1 < loaded[name].std() < 2
        elif "position_network" in name:
            assert 0.1 < loaded[name].std() < 0.2
        else:
            assert torch.equal(loaded[name], state[name]), name


def test_random_buffers_depend_on_nothing_but_seed_and_layer(make_model):
    def buffers(model):
        return {name: tensor for name, tensor in model.named_buffers() if not tensor.is_floating_point()}

    first, second = make_model("s3attention", seed=1), make_model("s3attention", seed=2)
    other = make_model("s3attention", seed=1, buffer_seed=1)
    assert len(buffers(first)) == 4
    for name, tensor in buffers(first).items():
        assert torch.equal(tensor, buffers(second)[name])
    fractions = "layers.{}.mixer.attention.landmark_fractions"
    assert not torch.equal(buffers(first)[fractions.format(0)], buffers(other)[fractions.format(0)])
    assert not torch.equal(buffers(first)[fractions.format(0)], buffers(first)[fractions.format(1)])
    state = torch.random.get_rng_state()
    first.layers[0].mixer.attention.reset()
    assert torch.equal(state, torch.random.get_rng_state())
    second.load_state_dict(dict(first.named_parameters()), strict=False)
    input_ids = torch.arange(20)[None]
    assert torch.equal(first(input_ids=input_ids)[0], second(input_ids=input_ids)[0])


@pytest.mark.parametrize("auto_class", AUTO_CLASSES)
@pytest.mark.parametrize("style", ["prenorm", "paper"])
@pytest.mark.parametrize("positions", ["learned", "gru"])
def test_every_parameter_is_real_and_used_and_every_buffer_saved(
    model_type, auto_class, style, positions, make_model, batch
):
    model = make_model(model_type, auto_class, block_style=style, position_embedding_type=positions).train()
    saved = model.state_dict()
    for name, buffer in model.named_buffers():
        assert name in saved and not buffer.is_complex()
    input_ids, mask = batch([9, 5], 9)
    arguments = {} if auto_class is AutoModel else {"labels": labels_for(auto_class, input_ids)}
    output = model(input_ids=input_ids, attention_mask=mask, **arguments)
    (output[0].square().sum() if auto_class is AutoModel else output.loss).backward()
    for name, parameter in model.named_parameters():
        assert not parameter.is_complex()
        assert parameter.grad is not None, name
        # A key's bias shifts all the scores of a query alike; with batch statistics so does a bias before the norm.
        if not name.endswith(("key.bias", "projection.bias")):
            assert parameter.grad.abs().max() > 0, name


def test_hidden_states(model_type, make_model, batch):
    model = make_model(model_type)
    input_ids, mask = batch([9, 5], 9)
    output = model(input_ids=input_ids, attention_mask=mask, output_hidden_states=True)
    assert len(output.hidden_states) == 3
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    assert (output.auxiliary_loss is None) == (model.mixer_class.auxiliary_loss([model.layers[0].mixer]) is None)
    as_tuple = model(input_ids=input_ids, attention_mask=mask, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], output.last_hidden_state)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
@pytest.mark.parametrize("fields", [{}, {"normalization": "batch"}])
def test_empty_batches_and_sequences_give_empty_results(model_type, shape, fields, make_model):
    model = make_model(model_type, AutoModelForMaskedLM, **(fields if model_type == "s3attention" else {})).train()
    input_ids = torch.zeros(shape, dtype=torch.int64)
    for mask in (None, torch.ones(shape)):
        logits = model(input_ids=input_ids, attention_mask=mask).logits
        assert logits.shape == (*shape, model.config.vocab_size)
        logits.sum().backward()


def test_embeddings_given_in_place_of_ids(model_type, make_model, batch):
    model = make_model(model_type, AutoModelForMaskedLM)
    input_ids, mask = batch([9, 5], 9)
    embeds = model.get_input_embeddings()(input_ids)
    given = model(inputs_embeds=embeds, attention_mask=mask).logits
    assert torch.equal(given, model(input_ids=input_ids, attention_mask=mask).logits)
    for arguments in ({}, {"input_ids": input_ids, "inputs_embeds": embeds}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            model(**arguments)
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 8\)"):
        model(input_ids=input_ids, attention_mask=mask[:, 1:])


def test_sentence_types_matter(model_type, make_model, batch):
    model = make_model(model_type)
    input_ids, _ = batch([9], 9)
    plain = model(input_ids=input_ids).last_hidden_state
    zeros = model(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids)).last_hidden_state
    second = model(input_ids=input_ids, token_type_ids=torch.ones_like(input_ids)).last_hidden_state
    torch.testing.assert_close(plain, zeros)
    assert not torch.allclose(plain, second, atol=1e-2)
    without = make_model(model_type, type_vocab_size=0)
    assert not any("token_type" in name for name, _ in without.named_parameters())
    assert without(input_ids=input_ids).last_hidden_state.shape == (1, 9, 16)


def test_weights_are_tied_also_after_loading(model_type, make_model, tmp_path):
    model = make_model(model_type, AutoModelForMaskedLM)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert loaded.head.decoder.weight is loaded.get_input_embeddings().weight
    (file,) = tmp_path.glob("*.safetensors")
    assert "head.decoder.weight" not in load_file(file)
    untied = make_model(model_type, AutoModelForMaskedLM, tie_word_embeddings=False)
    assert untied.head.decoder.weight is not untied.get_input_embeddings().weight


@pytest.mark.parametrize("size", [64, 50])
def test_the_vocabulary_is_resized(model_type, size, make_model, tmp_path):
    model = make_model(model_type, AutoModelForMaskedLM)
    input_ids = torch.arange(20)[None]
    before = model(input_ids=input_ids).logits
    model.resize_token_embeddings(size, mean_resizing=False)
    assert model.config.vocab_size == size
    assert model.head.decoder.weight is model.get_input_embeddings().weight
    after = model(input_ids=input_ids).logits
    assert after.shape[-1] == size
    torch.testing.assert_close(after[..., :50], before[..., :50])
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForMaskedLM.from_pretrained(tmp_path)(input_ids=input_ids).logits, after)


def test_gradient_checkpointing_changes_nothing(model_type, make_model, batch):
    input_ids, mask = batch([9, 5], 9)
    gradients = []
    for checkpointing in (False, True):
        model = make_model(model_type, AutoModelForMaskedLM, hidden_dropout_prob=0.1).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert all(layer.gradient_checkpointing for layer in model.encoder.layers)
        torch.manual_seed(5)
        model(input_ids=input_ids, attention_mask=mask, labels=input_ids).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert torch.equal(plain, checkpointed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters(model_type, dtype, make_model, batch):
    model = make_model(model_type, AutoModelForMaskedLM, initializer_range=0.1)
    input_ids, mask = batch([17, 5], 17)
    arguments = {"input_ids": input_ids, "attention_mask": mask, "labels": input_ids}
    truth = model(**arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = model(**arguments)
    torch.testing.assert_close(under_autocast.loss, truth.loss, rtol=2e-2, atol=2e-2)
    model.to(dtype)
    output = model(**arguments)
    assert output.logits.dtype == dtype and output.loss.dtype == torch.float32
    torch.testing.assert_close(output.loss, truth.loss, rtol=2e-2, atol=2e-2)
    output.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_double_precision_is_kept(model_type, make_model, batch):
    model = make_model(model_type, AutoModelForMaskedLM).double()
    input_ids, mask = batch([17, 5], 17)
    assert model(input_ids=input_ids, attention_mask=mask, labels=input_ids).loss.dtype == torch.float64


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(t, marks=[pytest.mark.full] * (t in COMPILED_IN_FULL)) for t in longmix.modeling.MODEL_TYPES],
)
def test_a_compiled_model_gives_the_same_gradients(model_type, make_model, batch):
    """The graph alone: what Inductor makes of it takes minutes to compile. It is one, unless there is a transform."""
    model = make_model(model_type, AutoModelForMaskedLM, num_hidden_layers=1, initializer_range=0.1)
    input_ids, mask = batch([17, 5], 17)
    arguments = {"input_ids": input_ids, "attention_mask": mask, "labels": input_ids, "output_all_logits": True}
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    gradients = []
    for function in (model, compiled):
        model.zero_grad()
        loss = function(**arguments).loss
        loss.backward()
        gradients.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for plain, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-5)


def test_fourier_spaces_are_left_out_of_the_graph(make_model, batch):
    """Compilers make no code for complex numbers; all else that a mixer computes is in one graph."""
    model = make_model("wavspa", num_hidden_layers=1, space="fourier")
    input_ids, mask = batch([9, 4], 9)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="spectr"):
        compiled(input_ids=input_ids, attention_mask=mask)

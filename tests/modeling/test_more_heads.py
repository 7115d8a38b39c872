"""Causal language models, pairs of sequences, and the auxiliary loss."""

import copy

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import longmix.modeling
from longmix.modeling import load_pretrained, model_class

CAUSAL = [name for name in longmix.modeling.MODEL_TYPES if model_class(name, "Config").not_causal_because is None]
ENCODERS = [name for name in longmix.modeling.MODEL_TYPES if name not in CAUSAL]


@pytest.mark.parametrize("model_type", CAUSAL)
def test_a_causal_model_predicts_the_next_token(model_type, make_model, batch, tmp_path):
    model = make_model(model_type, AutoModelForCausalLM)
    assert model.config.is_causal and model.get_output_embeddings().weight is model.get_input_embeddings().weight
    input_ids, mask = batch([11, 6], 11)
    labels = torch.where(mask, input_ids, -100)
    logits = model(input_ids, mask).logits
    assert logits.shape == (2, 11, 60)
    expected = functional.cross_entropy(
        torch.cat([logits[0, :10], logits[1, :5]]), torch.cat([input_ids[0, 1:], input_ids[1, 1:6]])
    )
    torch.testing.assert_close(model(input_ids, mask, labels=labels).loss, expected)
    torch.testing.assert_close(model(input_ids, mask, labels=labels, output_all_logits=True).loss, expected)
    torch.testing.assert_close(model(input_ids, mask, labels=labels, num_items_in_batch=30).loss, expected * 15 / 30)
    changed = input_ids.clone()
    changed[:, 5:] = 1
    torch.testing.assert_close(model(changed).logits[:, :5], model(input_ids).logits[:, :5])
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.is_causal
    assert torch.equal(loaded(input_ids, mask).logits, logits)
    bidirectional = AutoModelForMaskedLM.from_config(model_class(model_type, "Config")(num_hidden_layers=1))
    assert not bidirectional.config.is_causal


@pytest.mark.parametrize("model_type", CAUSAL)
def test_a_causal_model_generates(model_type, make_model, batch):
    model = make_model(model_type, AutoModelForCausalLM)
    input_ids, _ = batch([6], 6)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    text = model.generate(input_ids, attention_mask=torch.ones_like(input_ids), **options)
    assert text.shape == (1, 11)
    for length in range(6, 11):
        assert text[0, length] == model(text[:, :length]).logits[0, -1].argmax()
    # Padding on the left, as generation needs it, changes nothing.
    padded = functional.pad(input_ids, (3, 0))
    mask = functional.pad(torch.ones_like(input_ids), (3, 0))
    again = model.generate(padded, attention_mask=mask, **options)
    assert torch.equal(again[:, 3:], text)


@pytest.mark.parametrize("model_type", ENCODERS)
def test_encoders_have_no_causal_model(model_type, make_config):
    reason = make_config(model_type).not_causal_because
    with pytest.raises(
        ValueError, match=rf"{model_type} has no 'ForCausalLM', because {reason}; allowed: ForForecasting, ForMaskedLM"
    ):
        model_class(model_type, "ForCausalLM")
    with pytest.raises(ValueError, match=f"{model_type} has no causal language model, because {reason}"):
        AutoModelForCausalLM.from_config(make_config(model_type))


@pytest.mark.parametrize("model_type", CAUSAL)
def test_a_causal_model_leaves_the_callers_configuration_alone(model_type, make_config):
    config = make_config(model_type)
    assert model_class(model_type, "ForCausalLM")(config).config.is_causal
    assert not config.is_causal and not AutoModelForMaskedLM.from_config(config).config.is_causal


def test_a_longer_model_leaves_its_siblings_alone(make_config):
    config = make_config("transformer")
    first, second = (model_class("transformer", "ForMaskedLM")(config) for _ in range(2))
    for positions in (39, 50.0):
        with pytest.raises(ValueError, match=rf"positions is {positions}; allowed: integers of at least"):
            first.resize_positions(positions)
    assert config.max_position_embeddings == 40
    first.resize_positions(50)
    input_ids = torch.zeros(1, 45, dtype=torch.long)
    assert first(input_ids).logits.shape == (1, 45, 60) and first.encoder.config is first.config
    with pytest.raises(ValueError, match="45 positions; allowed: at most max_position_embeddings = 40"):
        second(input_ids)


def test_shapes_that_do_not_fit_are_refused(model_type, make_model, batch):
    model = make_model(model_type, AutoModelForMaskedLM)
    input_ids, mask = batch([9, 5], 9)
    for name, tensor in (
        ("token_type_ids", torch.zeros(1, 9, dtype=torch.long)),
        ("document_ids", torch.zeros(2, 8, dtype=torch.long)),
        ("coordinates", torch.zeros(1)),
        ("labels", input_ids[:, :8]),
    ):
        for arguments in ({}, {"attention_mask": mask}):
            with pytest.raises(ValueError, match=f"{name} has shape"):
                model(input_ids=input_ids, **{name: tensor}, **arguments)
    classifier = make_model(model_type, AutoModelForTokenClassification)
    with pytest.raises(ValueError, match=r"labels has shape \(2, 8\); allowed: \(2, 9\)"):
        classifier(input_ids=input_ids, labels=input_ids[:, :8])


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("positions", ["learned", "gru"])
def test_sequences_without_tokens_are_classified_without_nan(pooling, positions, make_model):
    model = make_model(
        "transformer",
        AutoModelForSequenceClassification,
        classifier_pooling=pooling,
        position_embedding_type=positions,
    )
    for shape in ((2, 0), (0, 0), (0, 3)):
        logits = model(input_ids=torch.zeros(shape, dtype=torch.long)).logits
        assert logits.shape == (shape[0], 2) and logits.isfinite().all()


def pair_model(model_type, make_config, **fields):
    torch.manual_seed(0)
    return model_class(model_type, "ForSequencePairClassification")(
        make_config(model_type, initializer_range=0.3, num_labels=3, **fields)
    ).eval()


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_pairs_of_sequences(model_type, pooling, make_config, batch, tmp_path):
    model = pair_model(model_type, make_config, classifier_pooling=pooling)
    first, first_mask = batch([9, 4], 9)
    second, second_mask = batch([5, 7], 7, seed=1)
    inputs = {"input_ids": first, "attention_mask": first_mask}
    inputs |= {"input_ids_b": second, "attention_mask_b": second_mask}
    logits = model(**inputs).logits
    assert logits.shape == (2, 3)
    u = model.encoder(first[1:, :4]).last_hidden_state[0]
    v = model.encoder(second[1:]).last_hidden_state[0]
    u, v = (states.mean(0) if pooling == "mean" else states[0] for states in (u, v))
    features = torch.cat([u, v, u * v, u - v])
    expected = model.head.classifier(torch.tanh(model.head.dense(features)))
    torch.testing.assert_close(logits[1], expected, rtol=1e-4, atol=1e-5)
    swapped = model(input_ids=second, attention_mask=second_mask, input_ids_b=first, attention_mask_b=first_mask)
    assert not torch.allclose(swapped.logits, logits, atol=1e-3)
    labels = torch.tensor([2, 0])
    torch.testing.assert_close(model(**inputs, labels=labels).loss, functional.cross_entropy(logits, labels))
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path)
    assert type(loaded) is type(model) and torch.equal(loaded(**inputs).logits, logits)
    with pytest.raises(ValueError, match="exactly one of"):
        model(input_ids=first)


def test_loading_by_architecture_needs_one(make_config, make_model, tmp_path):
    make_config("converter").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"architectures in config\.json is empty"):
        load_pretrained(tmp_path)
    make_model("converter").save_pretrained(tmp_path / "sub")
    assert type(load_pretrained(tmp_path, subfolder="sub")) is model_class("converter", "Model")
    for suffix in ("", "Block"):
        with pytest.raises(ValueError, match=f"converter has no '{suffix}'; allowed: ForForecasting, ForMaskedLM"):
            model_class("converter", suffix)


def test_loading_by_architecture_refuses_foreign_models(tmp_path):
    from transformers import BertConfig

    BertConfig(architectures=["BertModel"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model_type is 'bert'; allowed: .*transformer"):
        load_pretrained(tmp_path)


@pytest.fixture
def with_auxiliary_loss(make_model, monkeypatch):
    """with_auxiliary_loss(auto_class) -> a model of two layers, each with an auxiliary loss of one of its weights."""

    def make(auto_class, **fields):
        monkeypatch.setattr(model_class("transformer", "Config"), "has_auxiliary_loss", True)
        model = make_model("transformer", auto_class, auxiliary_loss_weight=0.25, **fields)

        def loss(mixers):
            return sum(mixer.attention.output.weight.sum() for mixer in mixers)

        monkeypatch.setattr(model.encoder.mixer_class, "auxiliary_loss", loss)
        return model.train()

    return make


def test_the_auxiliary_loss_is_mixed_in_training(with_auxiliary_loss, batch):
    model = with_auxiliary_loss(AutoModelForMaskedLM)
    input_ids, mask = batch([9, 5], 9)
    labels = torch.where(mask, input_ids, -100)
    mixed = model(input_ids, mask, labels=labels)
    expected = sum(layer.mixer.attention.output.weight.sum() for layer in model.encoder.layers)
    torch.testing.assert_close(mixed.auxiliary_loss, expected)
    evaluated = model.eval()(input_ids, mask, labels=labels)
    plain = evaluated.loss
    assert evaluated.task_loss is None
    torch.testing.assert_close(mixed.task_loss, plain)
    torch.testing.assert_close(mixed.loss, 0.75 * plain + 0.25 * expected)


@pytest.mark.parametrize("auto_class", [AutoModelForMaskedLM, AutoModelForSequenceClassification])
def test_micro_batches_add_up_to_one_auxiliary_loss(auto_class, with_auxiliary_loss, batch):
    model = with_auxiliary_loss(auto_class)
    input_ids, mask = batch([9, 5, 2], 9)
    masked = auto_class is AutoModelForMaskedLM
    labels = torch.where(mask, input_ids, -100) if masked else torch.tensor([1, 0, 1])
    whole = copy.deepcopy(model)(input_ids, mask, labels=labels).loss
    parts = [
        model(
            input_ids[rows], mask[rows], labels=labels[rows], num_items_in_batch=16 if masked else torch.tensor(3)
        ).loss
        for rows in (slice(0, 1), slice(1, 3))
    ]
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [("transformer", {}), ("converter", {"operator": "synvolution"}), ("converter", {"gibbs_kernel": "jackson"})],
)
def test_a_weight_of_no_auxiliary_loss_is_refused(model_type, fields, make_config):
    with pytest.raises(ValueError, match=rf"auxiliary_loss_weight is 0.3; allowed: 0 for this {model_type}"):
        make_config(model_type, auxiliary_loss_weight=0.3, **fields)
    assert make_config(model_type, **fields).auxiliary_loss_weight == 0

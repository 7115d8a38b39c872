"""Losses and logits of the heads."""

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Trainer,
    TrainingArguments,
)
from transformers.utils import find_labels


@pytest.fixture
def masked(make_model, batch, model_type):
    """A masked-LM model, its inputs, and labels at a few positions."""
    model = make_model(model_type, AutoModelForMaskedLM)
    input_ids, mask = batch([11, 6, 3], 11)
    labels = torch.full_like(input_ids, -100)
    for row, column in ((0, 3), (0, 7), (1, 0), (2, 2)):
        labels[row, column] = input_ids[row, column] + 1
    return model, {"input_ids": input_ids, "attention_mask": mask}, labels


def test_logits_at_labelled_positions_only(masked):
    model, inputs, labels = masked
    everywhere = model(**inputs).logits
    assert everywhere.shape == (3, 11, 60)
    some = model(**inputs, labels=labels)
    everything = model(**inputs, labels=labels, output_all_logits=True)
    torch.testing.assert_close(everything.logits, everywhere)
    torch.testing.assert_close(some.logits, everywhere[labels != -100])
    expected = functional.cross_entropy(everywhere[labels != -100], labels[labels != -100])
    torch.testing.assert_close(some.loss, expected)
    torch.testing.assert_close(everything.loss, expected)


@pytest.mark.parametrize("output_all_logits", [False, True])
def test_the_loss_is_that_of_the_logits_where_nobody_asks_for_them(masked, output_all_logits):
    model, inputs, labels = masked
    labels[0, 3] = model(**inputs).logits[0, 3].argmax()  # one answer is right
    arguments = {**inputs, "labels": labels, "num_items_in_batch": 3, "output_all_logits": output_all_logits}

    def answer(output_logits, autocast=False):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = model(**arguments, output_logits=output_logits)
        gradients = torch.autograd.grad(found.loss, list(model.parameters()), materialize_grads=True)
        return found, torch.cat([part.flatten() for part in (found.loss.detach(), *gradients)])

    (plain, expected), (alone, found) = answer(True), answer(False)
    assert plain.is_right is None and alone.logits is None
    told = labels.flatten() if output_all_logits else labels[labels != -100]
    assert torch.equal(alone.is_right, plain.logits.flatten(0, -2).argmax(1) == told) and alone.is_right.sum() == 1
    assert (found - expected).norm() < 1e-5 * expected.norm()
    # In half precision both are rounded, one like the other.
    (_, rounded), (_, found) = answer(True, autocast=True), answer(False, autocast=True)
    assert 0 < (found - expected).norm() < 1.5 * (rounded - expected).norm()


@pytest.mark.parametrize(("by_onednn", "in_fp32"), [(False, 70), (True, 72)])
def test_a_head_meets_few_numbers_of_rows_on_a_cpu_where_onednn_multiplies(make_model, monkeypatch, by_onednn, in_fp32):
    """In half precision everywhere, in fp32 where it does."""
    monkeypatch.setattr("longmix.modeling.language_models.is_chosen", lambda: by_onednn)
    model = make_model("transformer", AutoModelForMaskedLM)
    ids = torch.randint(5, 60, (8, 11), generator=torch.Generator().manual_seed(0))
    rows = []
    decoded = model._decoding
    monkeypatch.setattr(model, "_decoding", lambda hidden: rows.append(len(hidden)) or decoded(hidden))
    for count in (3, 70):
        labels = ids.flatten().clone()
        labels[count:] = -100
        arguments = {"input_ids": ids, "labels": labels.view_as(ids), "output_logits": False}
        exact = model(**arguments)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(**arguments)
        assert len(exact.is_right) == len(rounded.is_right) == count
        torch.testing.assert_close(rounded.loss, exact.loss, rtol=2e-2, atol=0)
    assert rows == [3, 64, in_fp32, 128]


class Louder(torch.nn.Linear):
    """What may stand in the place of the layer that gives the logits."""

    def forward(self, rows):
        return 2 * super().forward(rows)


@pytest.mark.parametrize("kind", ["resized", "replaced", "head", "hook", "head hook", "patched"])
def test_a_loss_without_logits_is_that_of_the_layer_that_is_there(masked, kind):
    model, inputs, labels = masked
    if kind == "resized":
        model.resize_token_embeddings(71)
        labels[0, 3] = 70
    elif kind == "replaced":
        model.set_output_embeddings(Louder(model.config.hidden_size, 60))
    elif kind == "head":
        model.head = torch.nn.Sequential(model.head, torch.nn.Tanh())
    elif kind == "patched":
        layer, forward = model.head.decoder, model.head.decoder.forward
        layer.forward = lambda rows: 3 * forward(rows)
    else:
        layer = model.head if kind == "head hook" else model.head.decoder
        layer.register_forward_hook(lambda module, arguments, result: 3 * result)
    expected = model(**inputs, labels=labels).loss
    torch.testing.assert_close(model(**inputs, labels=labels, output_logits=False).loss, expected)


@pytest.mark.parametrize("count", [10, torch.tensor(10)])
@pytest.mark.parametrize("output_all_logits", [False, True])
def test_the_loss_is_divided_by_the_global_count(masked, count, output_all_logits):
    model, inputs, labels = masked
    mean = model(**inputs, labels=labels).loss
    divided = model(**inputs, labels=labels, num_items_in_batch=count, output_all_logits=output_all_logits).loss
    torch.testing.assert_close(divided, mean * 4 / 10)


@pytest.mark.parametrize("arguments", [{}, {"num_items_in_batch": 0}, {"output_all_logits": True}])
def test_no_labelled_position(masked, arguments):
    model, inputs, labels = masked
    loss = model(**inputs, labels=torch.full_like(labels, -100), **arguments).loss
    assert loss.item() == 0
    loss.backward()
    assert all((parameter.grad == 0).all() for parameter in model.parameters())


def classifier(make_model, model_type, **fields):
    model = make_model(model_type, AutoModelForSequenceClassification, **fields)
    generator = torch.Generator().manual_seed(0)
    return model, {"input_ids": torch.randint(0, 60, (4, 9), generator=generator)}


def test_single_label(model_type, make_model):
    model, inputs = classifier(make_model, model_type, num_labels=3)
    labels = torch.tensor([0, 2, 1, 1])
    output = model(**inputs, labels=labels)
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits, labels))
    torch.testing.assert_close(model(**inputs, labels=labels, num_items_in_batch=8).loss, output.loss / 2)


def test_regression(model_type, make_model):
    model, inputs = classifier(make_model, model_type, num_labels=1)
    labels = torch.tensor([0.5, 2.0, -1.0, 4.2], dtype=torch.float64)
    output = model(**inputs, labels=labels)
    assert output.logits.shape == (4, 1)
    torch.testing.assert_close(output.loss, functional.mse_loss(output.logits[:, 0], labels.float()))
    torch.testing.assert_close(model(**inputs, labels=labels, num_items_in_batch=8).loss, output.loss / 2)


def test_multiple_labels(model_type, make_model):
    model, inputs = classifier(make_model, model_type, num_labels=3)
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])
    output = model(**inputs, labels=labels)
    torch.testing.assert_close(output.loss, functional.binary_cross_entropy_with_logits(output.logits, labels))
    named, _ = classifier(make_model, model_type, num_labels=3, problem_type="multi_label_classification")
    torch.testing.assert_close(named(**inputs, labels=labels.long()).loss, output.loss)
    assert model.config.problem_type is None


def test_token_labels(model_type, make_model, batch):
    model = make_model(model_type, AutoModelForTokenClassification, num_labels=5)
    input_ids, mask = batch([9, 4], 9)
    labels = torch.where(mask, input_ids % 5, -100)
    output = model(input_ids=input_ids, attention_mask=mask, labels=labels)
    assert output.logits.shape == (2, 9, 5)
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits[mask], labels[mask]))
    divided = model(input_ids=input_ids, attention_mask=mask, labels=labels, num_items_in_batch=26).loss
    torch.testing.assert_close(divided, output.loss / 2)


def test_classifier_dropout(model_type, make_model):
    model, inputs = classifier(make_model, model_type, classifier_dropout=0.5)
    model.train()
    assert not torch.equal(model(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("auto_class", [AutoModelForMaskedLM, AutoModelForSequenceClassification])
def test_transformers_finds_the_labels_alone(make_model, auto_class):
    """Its Trainer takes every argument with such a name for one, and evaluates nothing where it is missing."""
    assert find_labels(type(make_model("transformer", auto_class))) == ["labels"]


@pytest.mark.parametrize("model_type", ["transformer", "paramixer", "flt"])
def test_no_first_token_of_a_document_is_predicted(model_type, make_model):
    model = make_model(model_type, AutoModelForCausalLM)
    ids, documents = torch.arange(5, 14)[None], torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    logits = model(input_ids=ids, document_ids=documents).logits[0]
    predicted = torch.tensor([0, 1, 2, 4, 5, 6, 7])
    expected = functional.cross_entropy(logits[predicted], ids[0, predicted + 1])
    torch.testing.assert_close(model(input_ids=ids, document_ids=documents, labels=ids).loss, expected)


def test_generation_takes_one_document(make_model):
    model, ids = make_model("transformer", AutoModelForCausalLM), torch.arange(5, 14)[None]
    for name in ("document_ids", "position_ids"):
        with pytest.raises(ValueError, match=f"generate was given {name}; allowed: input_ids, attention_mask"):
            model.generate(ids, max_new_tokens=1, **{name: torch.zeros_like(ids)})


class Examples(torch.utils.data.Dataset):
    """Four, with 1, 2, 5 and 8 labels."""

    def __len__(self):
        return 4

    def __getitem__(self, number):
        ids = torch.arange(10) + 3 * number
        return {"input_ids": ids, "labels": ids.where(torch.arange(10) > 9 - (1, 2, 5, 8)[number], -100)}


@pytest.mark.parametrize("auto_class", [AutoModelForMaskedLM, AutoModelForCausalLM, AutoModelForTokenClassification])
def test_accumulated_gradients_of_transformers_trainer_are_those_of_one_batch(make_model, auto_class, tmp_path):
    found = []
    for size in (4, 2):
        model = make_model("transformer", auto_class, num_labels=60)
        arguments = {"learning_rate": 1.0, "lr_scheduler_type": "constant", "optim": "sgd", "max_grad_norm": 0.0}
        settings = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=size, gradient_accumulation_steps=4 // size, max_steps=1,
            report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no", **arguments,
        )  # fmt: skip
        before = [parameter.detach().clone() for parameter in model.parameters()]
        Trainer(model, settings, train_dataset=Examples()).train()
        found.append([after.detach() - old for after, old in zip(model.parameters(), before, strict=True)])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def test_transformers_smooths_the_labels_of_the_next_token(make_model, tmp_path):
    model = make_model("transformer", AutoModelForCausalLM)
    settings = TrainingArguments(str(tmp_path), label_smoothing_factor=0.5, report_to=[], use_cpu=True)
    ids = torch.arange(5, 14)[None]
    loss = Trainer(model, settings).compute_loss(model, {"input_ids": ids, "labels": ids, "output_all_logits": True})
    logits = model(input_ids=ids).logits[0, :-1]
    torch.testing.assert_close(loss, functional.cross_entropy(logits, ids[0, 1:], label_smoothing=0.5))

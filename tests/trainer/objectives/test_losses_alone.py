"""Training and evaluation of language models ask for losses and right answers, not for logits."""

import pytest
import torch
import transformers

from longmix.kernels.selection import noted_choices, obstacle
from longmix.trainer.objectives.labelled_positions import TARGET_POSITIONS, CausalPositions, LabelledPositions

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def objective_of(auto_class):
    if auto_class is transformers.AutoModelForCausalLM:
        return CausalPositions(auto_class, 0)
    return LabelledPositions(auto_class, None, 0, "masked_accuracy")


@pytest.fixture
def batch():
    ids = torch.randint(5, 40, (8, 16), generator=torch.Generator().manual_seed(0))
    labels = torch.where(ids % 3 == 0, ids, -100)
    return {"input_ids": ids, "labels": labels}


def model_of(auto_class, model_type):
    torch.manual_seed(0)
    fields = {**SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.AutoConfig.for_model(model_type, **fields, max_position_embeddings=16)
    return auto_class.from_config(config)


@pytest.mark.parametrize("auto_class", [transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM])
def test_our_models_are_asked_for_no_logits(auto_class, batch):
    objective, model = objective_of(auto_class), model_of(auto_class, "transformer")
    found = objective._targets(batch["labels"]).flatten() != -100
    batch = {**batch, TARGET_POSITIONS: found.nonzero().squeeze(1)}
    answers = []
    model.register_forward_hook(lambda module, arguments, answer: answers.append(answer))
    with noted_choices() as chosen:
        loss, sums = objective.forward(model, batch, 7)
        evaluated, _ = objective.evaluation(model, batch)
    assert [answer.logits for answer in answers] == [None, None]
    if obstacle("linear_cross_entropy", "cpu", "cpu") is None:
        assert chosen["linear_cross_entropy"] == {"cpu"}
    logits = model(batch["input_ids"]).logits
    targets = objective._targets(batch["labels"])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected / 7)
    hits = (logits.argmax(-1) == targets).sum()
    torch.testing.assert_close(sums, torch.stack([expected.detach(), hits.float(), found.sum().float()]))
    torch.testing.assert_close(evaluated, sums.double())


def test_models_of_transformers_give_theirs(batch):
    auto_class = transformers.AutoModelForMaskedLM
    objective, model = objective_of(auto_class), model_of(auto_class, "bert")
    batch = {**batch, TARGET_POSITIONS: (batch["labels"].flatten() != -100).nonzero().squeeze(1)}
    loss, sums = objective.forward(model, batch, 7)
    logits = model(batch["input_ids"]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected / 7)
    assert sums[1] == (logits.argmax(-1) == batch["labels"]).sum()

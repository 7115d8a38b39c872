"""Rates in proportion to the weights: which parameters have them, and who gets them."""

import torch
from transformers import AutoModelForMaskedLM

from longmix.trainer.finetune.relative_rates import is_relative_by_default, relative_factors


def test_matrices_and_embeddings_that_have_grown_move_further(own_checkpoint, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(own_checkpoint)
    sizes = {
        "encoder.embeddings.word_embeddings.weight": 0.5,
        "encoder.layers.0.feed_forward.inner.weight": 0.123,
        "encoder.layers.0.feed_forward.outer.weight": 0.019,
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # The size of a vector or of a spectrum is not asked for.
            size = sizes.get(name, 0.01 if parameter.ndim > 1 and "spectrum" not in name else 7.0)
            parameter.fill_(size)
    model.save_pretrained(tmp_path)
    assert relative_factors(str(tmp_path)) == {
        "encoder.embeddings.word_embeddings.weight": 25.0,
        "encoder.layers.0.feed_forward.inner.weight": 6.2,
    }


def test_a_model_as_it_was_made_has_one_rate(own_checkpoint):
    assert all(factor < 1.5 for factor in relative_factors(str(own_checkpoint)).values())
    assert is_relative_by_default("s3attention") and not is_relative_by_default("bert")

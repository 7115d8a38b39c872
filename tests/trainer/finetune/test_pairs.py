"""The two texts of a pair, told apart wherever a model is used."""

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from longmix.trainer.cli import main
from longmix.trainer.export.publish import save_model
from longmix.trainer.finetune.encode import load_encoder

PAIR = "the cat sat", "a dog"


def types_of(folder):
    return AutoTokenizer.from_pretrained(folder)(*PAIR).get("token_type_ids")


@pytest.mark.parametrize("types", [0, 1, 2])
def test_a_saved_tokenizer_returns_the_types_that_its_model_knows(types, own_checkpoint, tokenizer_folder, tmp_path):
    config = AutoConfig.from_pretrained(own_checkpoint, type_vocab_size=types)
    model = AutoModelForSequenceClassification.from_config(config)
    save_model(model, model.state_dict(), tmp_path, tokenizer_folder)
    save_model(model, model.state_dict(), tmp_path / "again", tmp_path)
    assert types_of(tmp_path / "again") == types_of(tmp_path)
    if types < 2:
        assert types_of(tmp_path) is None
        return
    (expected,) = load_encoder(str(tmp_path), None).encode([PAIR[0]], [PAIR[1]])
    assert types_of(tmp_path) == expected["token_type_ids"] and set(expected["token_type_ids"]) == {0, 1}
    classify = pipeline("text-classification", model=str(tmp_path), device="cpu")
    assert "token_type_ids" in classify.preprocess({"text": PAIR[0], "text_pair": PAIR[1]})


def test_an_export_tells_them_where_an_earlier_version_did_not(own_checkpoint, tmp_path):
    assert types_of(own_checkpoint) is None
    assert main(["export", str(own_checkpoint), "--output", str(tmp_path / "model")]) == 0
    assert set(types_of(tmp_path / "model")) == {0, 1}
    assert main(["export", str(own_checkpoint), "--self-contained", "--output", str(tmp_path / "alone")]) == 0
    assert set(types_of(tmp_path / "alone")) == {0, 1}

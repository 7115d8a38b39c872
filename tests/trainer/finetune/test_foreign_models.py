"""Models and tokenizers of others: how long their inputs are, and files that do not belong together."""

import json

import pytest
import torch
import transformers

from longmix.trainer.cli import main
from longmix.trainer.models.positions import longest_input

POSITIONS = 18


@pytest.fixture(scope="module")
def roberta(bert_folder, tmp_path_factory):
    """A folder of a type that numbers positions after the padding's, whose tokenizer sets no length."""
    folder = tmp_path_factory.mktemp("roberta")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_folder)
    tokenizer.model_max_length = 10**30
    tokenizer.save_pretrained(folder)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ids = {"pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    config = transformers.RobertaConfig(**small, **ids, max_position_embeddings=POSITIONS)
    torch.manual_seed(1)
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


def test_inputs_end_where_the_positions_of_a_model_do(roberta, tmp_path, sentences, capsys):
    limit = longest_input(transformers.AutoConfig.from_pretrained(roberta))
    assert limit == POSITIONS - 2
    assert longest_input(transformers.XLNetConfig()) is None and longest_input(transformers.T5Config()) is None
    assert longest_input(transformers.BertConfig()) == 512
    (tmp_path / "new.txt").write_text("\n".join([" ".join(sentences[:9]), sentences[0]]))
    options = ("predict", str(roberta), "--data", str(tmp_path / "new.txt"), "--output", str(tmp_path / "new.jsonl"))
    assert main([*options, "--embeddings"]) == 0
    assert f"1 of 2 rows fill all {limit} tokens" in capsys.readouterr().err
    assert main([*options, "--embeddings", "--max-length", str(limit + 1)]) == 2
    assert f"takes 8 to {limit} tokens" in capsys.readouterr().err
    assert main(["evaluate", str(roberta), "--fill", f"[MASK] {' '.join(sentences[:9])}"]) == 2
    assert f"the model takes {limit}: shorten it" in capsys.readouterr().err


def test_a_tokenizer_with_more_ids_than_its_model_is_refused(roberta, tmp_path, sentences, capsys):
    tokenizer = transformers.AutoTokenizer.from_pretrained(roberta)
    tokenizer.add_tokens(["added"])
    transformers.AutoModelForMaskedLM.from_pretrained(roberta).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "new.txt").write_text(f"{sentences[0]}\n{sentences[1]} added\n")
    told = f"has the id {len(tokenizer) - 1} for 'added', but the model's vocabulary ends at {len(tokenizer) - 2}"
    options = ("--data", str(tmp_path / "new.txt"), "--output", str(tmp_path / "new.jsonl"))
    for more in ([], ["--embeddings"]):
        assert main(["predict", str(tmp_path / "model"), *options, *more]) == 2
        assert told in capsys.readouterr().err


def test_classes_that_are_not_numbered_from_0_are_refused(bert_folder, tmp_path, capsys):
    (tmp_path / "new.txt").write_text("river\n")
    options = ("--data", str(tmp_path / "new.txt"), "--output", str(tmp_path / "new.jsonl"))
    model = tmp_path / "model"
    transformers.AutoModelForSequenceClassification.from_pretrained(bert_folder).save_pretrained(model)
    transformers.AutoTokenizer.from_pretrained(bert_folder).save_pretrained(model)
    values = json.loads((model / "config.json").read_text())
    values |= {"id2label": {"1": "good", "2": "bad"}, "label2id": {"good": 1, "bad": 2}}
    (model / "config.json").write_text(json.dumps(values))
    assert main(["predict", str(model), *options]) == 2
    assert "id2label in the model's config.json numbers its classes 1, 2; expected 0 to 1" in capsys.readouterr().err

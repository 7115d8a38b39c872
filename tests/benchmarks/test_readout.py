"""What a classifier reads of texts: the part that they have in common, and the directions of the rest."""

import sys

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

WORDS = ["the", "cat", "sat", "a", "dog", "on", "mat", "and", "ran"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random BERT, as it would come from elsewhere."""
    made = tmp_path_factory.mktemp("bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (made / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab=str(made / "vocab.txt"), model_max_length=16).save_pretrained(made)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16}
    BertModel(BertConfig(vocab_size=len(vocabulary), num_hidden_layers=1, **sizes)).save_pretrained(made)
    return str(made)


def test_the_part_in_common_and_the_directions_of_the_rest(script):
    readout = script("learned.readout")
    apart = torch.eye(4, dtype=torch.float64) - 0.25
    assert readout.common_share(apart) == pytest.approx(0, abs=1e-12)
    assert readout.directions(apart) == pytest.approx(3)
    assert readout.common_share(apart + 2) == pytest.approx(16 / 16.75)
    assert readout.directions(apart + 2) == pytest.approx(3)
    assert readout.common_share(torch.ones(3, 2, dtype=torch.float64)) == 1


def test_first_and_mean_are_of_the_valid_tokens_and_of_each_text_alone(script, folder):
    texts = ["the cat sat", "a dog", "the cat sat on the mat and the dog ran " * 3]
    together = script("learned.readout").vectors(folder, texts)
    for number, text in enumerate(texts):
        alone = script("learned.readout").vectors(folder, [text])
        for name in ("first", "mean"):
            torch.testing.assert_close(together[name][number], alone[name][0], rtol=0, atol=1e-5)
    assert not torch.allclose(together["first"], together["mean"])


@pytest.mark.parametrize(
    ("lines", "told"),
    [("words\na b\n", "has no column 'text'"), ("text\na b\n", "holds 1 texts; two at least can be told apart")],
)
def test_mistakes_are_told_in_a_line(script, folder, monkeypatch, tmp_path, capsys, lines, told):
    (tmp_path / "texts.tsv").write_text(lines)
    monkeypatch.setattr(sys, "argv", ["readout.py", folder, "--texts", str(tmp_path / "texts.tsv")])
    with pytest.raises(SystemExit) as end:
        script("learned.readout").main()
    assert end.value.code == 2 and told in capsys.readouterr().err


def test_the_table_has_two_rows_of_a_model(script, folder, monkeypatch, tmp_path, capsys):
    (tmp_path / "texts.tsv").write_text('label\ttext\n0\tthe cat\n1\ta "dog\n0\tthe mat\n')
    words = ["readout.py", folder, "--texts", str(tmp_path / "texts.tsv"), "--samples", "2"]
    monkeypatch.setattr(sys, "argv", words)
    script("learned.readout").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-3] for line in lines[2:]] == ["first", "mean"]
    assert all(0 < float(line.split()[-2]) <= 100 for line in lines[2:])

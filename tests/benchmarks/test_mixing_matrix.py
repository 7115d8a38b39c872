"""The drawn mixing matrices are those that the model applies, and a model without any says so."""

import sys

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForTokenClassification

from longmix.data_prep.tasks.probe import ProbeSettings, prepare_probe
from longmix.modeling import model_class
from longmix.trainer.samples.collate import collate
from longmix.trainer.samples.dataset import ShardedDataset

LINEAR = {"converter": {}, "converter-paper": {"block_style": "paper"}, "flt": {}, "paramixer": {}, "transformer": {}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A prepared data set of samples of at most 24 tokens."""
    folder = tmp_path_factory.mktemp("probe")
    prepare_probe(ProbeSettings("copy", 4, length=24, samples=4), folder)
    return folder / "train"


def model_of(name, auto_class=AutoModelForTokenClassification):
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = model_class(name.partition("-")[0], "Config")
    return auto_class.from_config(
        config(vocab_size=60, max_position_embeddings=24, **{**shape, **LINEAR.get(name, {})})
    )


@pytest.mark.parametrize("name", LINEAR)
def test_a_matrix_of_every_layer(name, script, data):
    batch = collate(ShardedDataset(data).read(np.array([0])), 0)
    batch.pop("labels")
    for model in (model_of(name), model_of(name, AutoModel)):
        matrices = script("mixing_matrix").mixing_matrices(model, batch)
        heads = 1 if name == "paramixer" else 2
        assert [matrix.shape for matrix in matrices] == [(1, heads, *[batch["input_ids"].shape[1]] * 2)] * 2
        assert all(matrix.amax() > 0 for matrix in matrices) and not torch.equal(*matrices)


@pytest.mark.parametrize("name", ["transformer", "s3attention"])
def test_the_command_draws_or_says_in_one_line_why_not(name, script, data, tmp_path, monkeypatch, capsys):
    model_of(name).save_pretrained(tmp_path / "model")
    arguments = [str(tmp_path / "model"), "--data", str(data), "--output", str(tmp_path / "drawn")]
    monkeypatch.setattr(sys, "argv", ["mixing_matrix.py", *arguments])
    if name == "transformer":
        script("mixing_matrix").main()
        assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["layer-0.png", "layer-1.png"]
        assert "\ndistance " in "\n" + capsys.readouterr().out
        return
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        script("mixing_matrix").main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "mixing_matrix.py: error: s3attention has no mixing matrix: it is not linear in its values\n"
    )

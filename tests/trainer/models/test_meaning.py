"""Numbers that mean something else to a model than in a data set: refused, for their counts agree."""

import json

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.modeling.transformer import TransformerConfig
from longmix.trainer.cli import main
from longmix.trainer.models.meaning import refuse_other_labels, refuse_other_numbering

CLASSES = {0: "bio", 1: "chem", 2: "phys"}


def manifest(**fields):
    return Manifest(split="test", split_rule="", columns={}, shards=[], samples=0, **fields)


def check(source, data, **fields):
    refuse_other_labels(str(source), TransformerConfig(vocab_size=20, **fields), "data", data)
    refuse_other_numbering(str(source), "data", data)


def test_classes_are_compared_by_their_names(tmp_path):
    known = {"id2label": CLASSES}
    check(tmp_path, manifest(num_labels=3, label_names=["bio", "chem", "phys"]), **known)
    check(tmp_path, manifest(num_labels=2, label_names=["bio", "chem"]), **known)
    check(tmp_path, manifest(num_labels=3), **known)
    for names in (["BIO", "Chem ", "phys"], ["0", "1", "2"]):
        check(tmp_path, manifest(num_labels=3, label_names=names), **known)
    check(tmp_path, manifest(num_labels=3, label_names=["chem", "phys", "bio"]), num_labels=3)  # LABEL_0 says nothing
    check(tmp_path, manifest(num_labels=3, label_names=["chem", "phys", "bio"]))  # of a model without labels
    with pytest.raises(
        UserError, match=r"data numbers the classes chem, phys, .*/.* bio, chem: prepare the data togeth"
    ):
        check(tmp_path, manifest(num_labels=2, label_names=["chem", "phys"]), **known)


def test_characters_and_variables_are_compared(tmp_path):
    series = {"names": ["load", "wind"], "mean": [1.0, 2.0], "scale": [3.0, 4.0], "lookback": 0}
    (tmp_path / "inputs.json").write_text(
        json.dumps({"characters": "abc", "series": {key: series[key] for key in ("names", "mean", "scale")}})
    )
    check(tmp_path, manifest(report={"task": {"vocabulary": "abc"}}, series=series))
    check(tmp_path, manifest())
    with pytest.raises(UserError, match="data numbers other characters than"):
        check(tmp_path, manifest(report={"task": {"vocabulary": "abd"}}))
    with pytest.raises(UserError, match=r"data has the variables wind, load, .* forecasts load, wind: prepare"):
        check(tmp_path, manifest(series={**series, "names": ["wind", "load"]}))
    with pytest.raises(UserError, match=r"data is standardised otherwise than the series .* or give its table"):
        check(tmp_path, manifest(series={**series, "mean": [1.0, 2.5]}))


def test_labels_in_another_unit_are_refused(tmp_path):
    scale = {"label_scale": {"mean": 5.0, "deviation": 2.0}}
    with pytest.raises(UserError, match="the labels of data are not in the unit that"):
        check(tmp_path, manifest(report=scale), problem_type="regression")
    check(tmp_path, manifest(report=scale))  # of a model that reads no labels
    (tmp_path / "inputs.json").write_text(json.dumps(scale))
    check(tmp_path, manifest(report=scale), problem_type="regression")


def test_a_corpus_that_was_prepared_by_itself_is_refused(tmp_path, capsys):
    """Its classes and characters are as many as those of training, and others."""
    for corpus, letters, classes in (("one", "abcde", ("bio", "chem")), ("other", "cdefg", ("chem", "phys"))):
        texts = ["".join(letters[n // 5**place % 5] for place in range(5)) for n in range(200)]
        rows = "".join(f"{classes[n % 2]}\t{text}\n" for n, text in enumerate(texts))
        (tmp_path / corpus).mkdir()
        (tmp_path / corpus / "all.tsv").write_text(f"label\ttext\n{rows}")
        source = ("--source", str(tmp_path / corpus), "--output", str(tmp_path / f"{corpus}-data"))
        assert main(["prepare", "documents", *source, "--length", "16", "--characters", "5"]) == 0
    model = {"model_type": "transformer", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    run = {
        "run": {"dir": str(tmp_path / "run")},
        "model": {**model, "intermediate_size": 8},
        "data": {"train": str(tmp_path / "one-data" / "train")},
        "objective": {"name": "classification"},
        "batch": {"samples": 8, "micro_batch": 8},
        "optim": {"lr": 1e-3, "max_steps": 1, "warmup_steps": 0},
        "deepspeed": None,
        "checkpoint": {"every_steps": 1},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    assert main(["train", str(tmp_path / "run.yaml")]) == 0
    capsys.readouterr()
    for command, more, told in (
        ("evaluate", (), "numbers the classes chem, phys"),
        ("predict", ("--output", str(tmp_path / "out.tsv")), "numbers other characters"),
    ):
        assert main([command, str(tmp_path / "run"), "--data", str(tmp_path / "one-data" / "test"), *more]) == 0
        capsys.readouterr()
        assert main([command, str(tmp_path / "run"), "--data", str(tmp_path / "other-data" / "test"), *more]) == 2
        assert told in capsys.readouterr().err

"""The benchmark of training speed: its runs fit every mixer, differ in the kernels alone, and are compared honestly."""

import argparse
import json
import re
from pathlib import Path

import pytest
import torch

from longmix.modeling import MODEL_TYPES
from longmix.trainer.run import setup
from longmix.trainer.settings import reading

ARGUMENTS = argparse.Namespace(steps=5, rounds=2, threads=2)


@pytest.fixture
def speed(script):
    return script("training_speed")


@pytest.mark.parametrize("length", [512, 2048])
def test_every_run_is_one_that_its_mixer_takes(script, speed, length, tmp_path):
    script("samples.random_tokens").write_samples(tmp_path / "data", length, 8)
    for model_type in MODEL_TYPES:
        words = speed.run_arguments(model_type, length, 5, tmp_path / "data", tmp_path / "run")
        paths = [text for text in words if "=" not in text]
        checked = reading.load(paths, [text for text in words if "=" in text])
        prepared = setup.prepare(checked, 1, torch.device("cpu"))
        assert prepared.model_configuration.model_type == model_type and prepared.precision == "fp32"
        assert prepared.model_configuration.max_position_embeddings == length
        assert checked.batch.samples * length == 4096 and checked.log.every_steps == 1


@pytest.fixture
def runs(speed, monkeypatch):
    """The runs that `measure` starts, as (choice, threads); `runs.first` is what they note of their first step."""

    class Runs(list):
        first = staticmethod(lambda choice: {"loss": 9.0, "grad_norm": 0.5})

    started = Runs()

    def train(words, log, threads, LONGMIX_KERNELS):
        started.append((LONGMIX_KERNELS, threads))
        (folder,) = (Path(text.removeprefix("run.dir=")) for text in words if text.startswith("run.dir="))
        folder.mkdir()
        pace = {"portable": 100, "auto": 300}[LONGMIX_KERNELS]
        figures = [
            {"kind": "train", "tokens_per_second": pace + step, **started.first(LONGMIX_KERNELS)} for step in range(5)
        ]
        lines = [json.dumps(record) for record in (*figures, {"kind": "eval"})]
        (folder / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")

    monkeypatch.setattr(speed.commands, "longmix", train)
    return started


def test_both_choices_take_turns_and_first_steps_do_not_count(speed, runs, tmp_path):
    found = speed.measure(tmp_path, "flt", 512, ARGUMENTS)
    assert runs == [("portable", 2), ("auto", 2), ("auto", 2), ("portable", 2)]
    assert found == {"portable": [103, 104, 103, 104], "auto": [303, 304, 303, 304]}


@pytest.mark.parametrize("figure", ["loss", "grad_norm"])
def test_runs_that_compute_different_things_have_no_figures(speed, runs, figure, tmp_path):
    same = runs.first
    runs.first = lambda choice: {**same(choice), figure: 0.99 * same(choice)[figure]} if choice == "auto" else same("")
    with pytest.raises(SystemExit, match=f"flt, N=512: portable, auto begin with different {figure}"):
        speed.measure(tmp_path, "flt", 512, ARGUMENTS)


@pytest.mark.full
def test_a_command_runs_with_the_environment_that_it_is_given(script, tmp_path):
    commands = script("commands")
    log = tmp_path / "log"
    assert commands.longmix(["doctor"], log, threads=1, LONGMIX_KERNELS="reference") == 0
    assert re.search(r"givens_mix +cpu: reference \(LONGMIX_KERNELS says so\)", log.read_text(encoding="utf-8"))
    with pytest.raises(SystemExit, match=r"no-such-verb ended with 2: .*invalid choice: 'no-such-verb'"):
        commands.longmix(["no-such-verb"], log)


def test_the_table_shows_the_newest_figures_and_their_ratio(speed):
    made = {"date": "2026-01-02", "machine": "one core", "commit": "abc+changes"}
    values = [("flt", 512, "portable", 1), ("flt", 512, "portable", 1000), ("flt", 512, "auto", 2500)]
    values.append(("transformer", 2048, "auto", 4321))
    rows = [{"case": speed.case(*where), "value": str(value), **made} for *where, value in values]
    text = speed.table(rows)
    assert "| `flt` | 1,000 | 2,500 | 2.5x |  |  |  |\n" in text
    assert "| `transformer` |  |  |  |  | 4,321 |  |\n" in text
    assert "paramixer" not in text and text.endswith("\n\nMeasured 2026-01-02 on one core, commits abc.")


def test_the_document_has_the_marks(speed):
    text = speed.DOCUMENT.read_text(encoding="utf-8")
    assert text.count("<!-- speed: begin -->\n") == text.count("<!-- speed: end -->") == 1

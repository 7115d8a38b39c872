"""Runs of compiled models."""

import pytest
import torch
from transformers import AutoModelForMaskedLM


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(("model_type", "engine"), [("converter", "zero3"), ("wavspa", None)])
def test_inductors_graphs_take_batches_of_other_lengths(train, read_metrics, tmp_path, model_type, engine):
    """Where Inductor lays a saved tensor otherwise than the graph says, torch 2.13 takes its strides for constants."""
    for name, flag in (("compiled", "layer"), ("eager", False)):
        assert train(tmp_path / name, model_type, deepspeed=engine, **{"run.compile": flag}).code == 0
    losses = [[record["loss"] for record in read_metrics(tmp_path / name, "train")] for name in ("compiled", "eager")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("what", [True, "layer"])
def test_a_compiled_model_gives_the_same_losses(train, read_metrics, tmp_path, write_data, monkeypatch, what):
    # What Inductor makes of the graph takes minutes to compile; that the run works on compiled models does not.
    whole = torch.nn.Module.compile
    compiled = []

    def compile_graph_only(self, *arguments, **options):
        compiled.append(type(self).__name__)
        return whole(self, *arguments, backend="aot_eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", compile_graph_only)
    for name, flag in (("compiled", what), ("eager", False)):
        changes = {"optim.max_steps": 2, "eval.samples": 4, "batch.samples": 4}
        train(tmp_path / name, **{"run.compile": flag, **changes})
    assert compiled == ["TransformerForMaskedLM" if what is True else "PreNormBlock"]
    losses = [[record["loss"] for record in read_metrics(tmp_path / name, "train")] for name in ("compiled", "eager")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    ours, theirs = (
        AutoModelForMaskedLM.from_pretrained(tmp_path / name / "model").state_dict() for name in ("compiled", "eager")
    )
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-3) for name in theirs)

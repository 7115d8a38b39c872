"""Where a draw leaves nothing to predict: a micro-batch adds nothing, a batch is passed over, figures are none."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from longmix.data_prep.errors import UserError
from longmix.modeling import MODEL_TYPES
from longmix.trainer.checkpoints.state import RunState, read_state
from longmix.trainer.commands import checkpoint_figures
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.processes.world import SharedMistake
from longmix.trainer.run import dry_run, loop
from longmix.trainer.run.setup import prepare
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import Draw
from longmix.trainer.samples.run_data import RunData
from longmix.trainer.settings import reading
from longmix.trainer.settings.sections import ObjectiveSection

IGNORED = -100
# About one batch in three of these has nothing to predict, and most micro-batches of the others.
RARE = {"objective.mask_probability": 0.02, "batch.samples": 4, "batch.micro_batch": 1, "optim.max_steps": 10}
NOWHERE = {"objective.mask_probability": 1e-12}


def in_full(*cases):
    return [pytest.param(*case, id="-".join(map(str, case)), marks=pytest.mark.full) for case in cases]


# The dry run.


def test_the_dry_run_predicts_something_whatever_the_seed(data):
    train = ShardedDataset(str(data / "train"))
    source = RunData([train], None, None, None)
    batches = []
    for seed in range(3):
        objective = make_objective(ObjectiveSection(mask_probability=0.01), seed, train.manifest, None)
        batches.append(dry_run.largest_micro_batch(source, objective, 6, 2))
        assert objective.items(batches[-1]) == 2
    assert all(torch.equal(one["labels"], batches[0]["labels"]) for one in batches)


def test_data_in_which_nothing_can_be_predicted_are_refused(train, write_data, tmp_path):
    from longmix.data_prep.shards import LIST_INT32, write_dataset

    fields = {"split": "train", "split_rule": "none", "vocab_size": 9, "pad_token_id": 3, "sequence_length": 1}
    write_dataset(tmp_path / "data", ({"input_ids": [5]} for _ in range(20)), {"input_ids": LIST_INT32}, **fields)
    changes = {"data.train": str(tmp_path / "data"), "data.eval": None, "objective.name": "clm"}
    with pytest.raises(SharedMistake, match=r"^objective clm finds nothing to predict .* have 1 token: prepare"):
        train(tmp_path / "run", **changes, **{"model.is_causal": True})


# A micro-batch without items, which others of the same batch have.


@pytest.mark.parametrize(
    "model_type", ["transformer", *in_full(*((one,) for one in (*MODEL_TYPES, "bert") if one != "transformer"))]
)
def test_a_micro_batch_without_items_adds_nothing(run_values, tmp_path, model_type):
    values = run_values(tmp_path / "run", model_type, **NOWHERE)
    prepared = prepare(reading.from_dict(values, "test"), 1, torch.device("cpu"))
    model = prepared.build().train()
    samples = prepared.data.train[0].read(np.arange(3))
    zero = np.zeros(3, dtype=np.int64)
    batch = prepared.objective.training_batch(samples, Draw(zero, zero, zero))
    assert prepared.objective.items(batch) == 0
    loss, sums = prepared.objective.forward(model, batch, 7)
    loss.backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    assert loss.item() == 0 and sums.tolist() == [0, 0, 0] and len(gradients) > 5
    assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.full
def test_however_a_batch_is_cut_its_empty_pieces_change_nothing(train, read_metrics, tmp_path):
    curves = []
    for size in (1, 4):
        train(tmp_path / str(size), **{**RARE, "batch.micro_batch": size})
        records = read_metrics(tmp_path / str(size), "train")
        curves.append([(one["loss"], one["grad_norm"]) for one in records])
    assert [pair.count(None) for pair in curves[0]] == [pair.count(None) for pair in curves[1]]
    pairs = zip(*([value for pair in curve for value in pair if value is not None] for curve in curves), strict=True)
    assert all(first == pytest.approx(second, rel=1e-4) for first, second in pairs)


# A batch without items on any rank.


def files_of(engine, folder):
    """What a checkpoint of the engine would hold, copied."""
    return json.dumps(_plain(engine.collect(folder)), sort_keys=True)


def _plain(value):
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.detach().float().flatten().tolist()]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(vars(value)) if hasattr(value, "__dict__") else str(value)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("engine", ["zero0", "zero1", "zero2", "zero3", None])
def test_an_empty_batch_is_passed_over(train, read_metrics, tmp_path, monkeypatch, capsys, engine, precision):
    """Weights, moments, generators and DeepSpeed's counters stay; samples, step and learning rate go on."""
    step, seen = loop._Run._step, []

    def watched(self, batch, *counts):
        before = files_of(self.engine, tmp_path)
        rates = [dataclasses.asdict(self.state)[name] for name in ("samples", "tokens", "skipped", "row_of_skips")]
        step(self, batch, *counts)
        after = [dataclasses.asdict(self.state)[name] for name in ("samples", "tokens", "skipped", "row_of_skips")]
        counted = [now - then for now, then in zip(after, rates, strict=True)]
        seen.append((batch.items, before == files_of(self.engine, tmp_path), counted[:2], counted[2:]))
        assert counted == [4, batch.tokens, 0, 0]

    monkeypatch.setattr(loop._Run, "_step", watched)
    changes = {"deepspeed": engine, "precision": precision, "data.eval": None, "model.hidden_dropout_prob": 0.1}
    outcome = train(tmp_path / "run", **RARE, **changes)
    empty = [items == 0 for items, *_ in seen]
    assert outcome.code == 0 and 0 < sum(empty) < 8
    assert [is_same for _, is_same, *_ in seen] == empty
    records = read_metrics(tmp_path / "run", "train")
    assert [one["loss"] is None and one["grad_norm"] is None for one in records] == empty
    assert [one["empty_steps"] for one in records] == np.cumsum(empty).tolist()
    rates = [one["lr"] for one in records]
    assert len(set(rates[2:])) == 8 and rates[2:] == sorted(rates[2:], reverse=True)
    state = read_state(tmp_path / "run" / "checkpoints" / "step-00000010")
    assert (state.empty, state.skipped, state.row_of_skips) == (sum(empty), 0, 0)
    told = capsys.readouterr().err
    assert told.count("nothing to predict in its batch, which is passed over") == 1
    assert f"note: {sum(empty)} of 10 steps had a batch with nothing to predict" in told
    assert f"{sum(empty)} passed over with nothing" in (tmp_path / "run" / "model" / "README.md").read_text()


@pytest.mark.full
def test_a_run_goes_on_across_empty_batches_as_if_nothing_had_happened(train, read_metrics, tmp_path):
    changes = {**RARE, "data.eval": None, "model.hidden_dropout_prob": 0.1, "optim.skip_spikes": True}
    train(tmp_path / "whole", **changes)
    wanted = read_metrics(tmp_path / "whole", "train")
    empty = [record["step"] for record in wanted if record["loss"] is None]
    train(tmp_path / "part", **changes, **{"run.stop_at_step": empty[0]})
    train(tmp_path / "part", **changes)
    timed = ("tokens_per_second", "data_wait_fraction")
    found = read_metrics(tmp_path / "part", "train")
    for record in (*wanted, *found):
        for name in timed:
            del record[name]
    assert found == wanted
    final = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "part")]
    assert final[0].read_bytes() == final[1].read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("engine", ["zero0", "zero1", "zero2", "zero3", None])
def test_two_ranks_agree_where_one_or_both_have_nothing(
    train, forked_ranks, run_values, read_metrics, tmp_path, engine
):
    values = run_values(tmp_path / "two", **{**RARE, "deepspeed": engine})
    (report,) = forked_ranks.run(2, [{"values": values, "digest": True}])
    assert report["code"] == 0 and report["skipped"] == 0 and report["samples"] == 40
    train(tmp_path / "one", **RARE)
    one, two = (read_metrics(tmp_path / name, "train") for name in ("one", "two"))
    assert [record["empty_steps"] for record in one] == [record["empty_steps"] for record in two]
    for ours, theirs in zip(one, two, strict=True):
        assert (ours["loss"] is None) == (theirs["loss"] is None)
        assert ours["loss"] is None or ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    # A step is made where the batch has items, and nowhere else.
    made = [before != after for before, after in zip(report["digests"], report["digests"][1:], strict=False)]
    assert made == [record["loss"] is not None for record in two][1:]


def test_a_checkpoint_of_an_earlier_version_had_no_empty_steps(tmp_path):
    folder = tmp_path / "step-00000003"
    folder.mkdir()
    data = {"data.train": ["0" * 64], "data.eval": [], "data.test": []}
    values = dataclasses.asdict(RunState(step=3, data=data))
    (folder / "state.json").write_text(json.dumps({**values, "empty": 3}))
    assert read_state(folder).empty == 3
    (folder / "state.json").write_text(json.dumps({**values, "empty": 4}))
    with pytest.raises(UserError, match="empty is 4, but must be 0 to 3"):
        read_state(folder)
    del values["empty"]
    (folder / "state.json").write_text(json.dumps(values))
    assert read_state(folder).empty == 0


# Figures: a mean over nothing is not 0.


@pytest.fixture
def hiding_nothing(monkeypatch):
    """Let every evaluation find nothing to predict, and training as always."""
    from longmix.trainer.objectives.labelled_positions import LabelledPositions

    whole = LabelledPositions.evaluation_batch

    def nothing(self, samples, indices):
        batch = whole(self, samples, indices)
        hidden = torch.full_like(batch["labels"], IGNORED)
        return {**batch, "labels": hidden, "target_positions": torch.empty(0, dtype=torch.int64)}

    monkeypatch.setattr(LabelledPositions, "evaluation_batch", nothing)


@pytest.mark.full
def test_an_evaluation_of_nothing_has_no_figures(train, hiding_nothing, read_metrics, data, tmp_path, capsys):
    outcome = train(tmp_path / "run", **{"optim.max_steps": 2})
    assert outcome.code == 0 and outcome.state.figures == {"items": 0}
    assert read_metrics(tmp_path / "run", "eval") == [{"kind": "eval", "step": step, "items": 0} for step in (0, 2)]
    assert "eval 2/2  nothing to predict: no figures\n" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"hold nothing to predict, so there are no figures: raise --samples"):
        checkpoint_figures.figures(str(tmp_path / "run" / "model"), str(data / "validation"), 4, 2)
    with pytest.raises(SharedMistake, match=r"^checkpoint\.best needs figures, but .* nothing to predict"):
        train(tmp_path / "best", **{"checkpoint.best": {"metric": "loss", "mode": "min"}})

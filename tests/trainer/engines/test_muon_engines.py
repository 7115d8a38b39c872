"""Muon in every engine: ranks that hold pieces of matrices take the steps of one that holds them whole."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from longmix.data_prep.errors import UserError
from longmix.trainer.engines.zero_shares import shares_of

ENGINES = ["zero0", "zero1", "zero2", "zero3", None]
MUON = {
    "optim.name": "muon",
    "optim.max_steps": 12,
    "optim.warmup_steps": 3,
    "optim.weight_decay": 0.3,
    "optim.lr_factors": {"embeddings": 2.0, "layers.0": 0.5},
}
QUIET = {"eval.every_steps": 1000, "checkpoint.every_steps": 1000}
# Of a run that goes on by others: ranks, micro-batch, and the step to stop at.
PHASES = ((2, 4, 3), (1, 8, 6), (4, 2, 9), (2, 8, None))


def in_part(cases, *chosen):
    """The cases of a test; those that are not among the chosen ones are marked full."""
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    chosen = [case if isinstance(case, tuple) else (case,) for case in chosen]
    return [pytest.param(*case, marks=[] if case in chosen else [pytest.mark.full]) for case in cases]


@pytest.fixture(scope="module")
def make(forked_ranks, run_values, tmp_path_factory):
    """make(ranks, (model type, changes, the rest of a job), ...) -> [(run folder, report)]."""

    def run(ranks, *jobs):
        values = [
            run_values(tmp_path_factory.mktemp("muon") / "run", kind, **{**MUON, **QUIET, **changes})
            for kind, changes, *_ in jobs
        ]
        more = [job[2] if len(job) > 2 else {} for job in jobs]
        reports = forked_ranks.run(ranks, [{"values": one, **other} for one, other in zip(values, more, strict=True)])
        return [(Path(one["run"]["dir"]), report) for one, report in zip(values, reports, strict=True)]

    return run


@pytest.fixture(scope="module")
def alone(make, read_metrics):
    """alone(model type) -> losses of one rank that holds everything, made once."""
    made = {}

    def losses(kind):
        if kind not in made:
            ((folder, report),) = make(1, (kind, {"deepspeed": None, "batch.micro_batch": 8}))
            assert report["code"] == 0, report
            made[kind] = [record["loss"] for record in read_metrics(folder, "train")]
            assert len(made[kind]) == 12 and made[kind][-1] < made[kind][0] - 0.2
        return made[kind]

    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ranks", "engines"),
    in_part(
        [
            ("transformer", 2, "zero2 zero3"),
            ("transformer", 1, "zero0 zero1 zero2 zero3"),
            ("transformer", 2, "zero0 zero1 None"),
            ("transformer", 4, "zero0 zero1 zero2 zero3 None"),
            ("paramixer", 2, "zero1 zero3"),
            ("s3attention", 2, "zero2 zero3"),
            ("converter", 4, "zero1 zero3"),
        ],
        ("transformer", 2, "zero2 zero3"),
    ),
)
def test_losses_are_the_same_in_every_engine_on_any_number_of_ranks(make, alone, read_metrics, kind, ranks, engines):
    engines = [None if engine == "None" else engine for engine in engines.split()]
    cut = {"batch.micro_batch": 8 // ranks}
    made = make(ranks, *((kind, {**cut, "deepspeed": engine}) for engine in engines))
    for engine, (folder, report) in zip(engines, made, strict=True):
        assert report["code"] == 0, report
        losses = [record["loss"] for record in read_metrics(folder, "train")]
        np.testing.assert_allclose(losses, alone(kind), rtol=0, atol=1e-5, err_msg=f"{engine} x {ranks}")


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_bf16_agrees_to_five_in_a_thousand(make, alone, read_metrics, engine):
    ((folder, report),) = make(2, ("transformer", {"deepspeed": engine, "precision": "bf16"}))
    assert report["code"] == 0, report
    losses = [record["loss"] for record in read_metrics(folder, "train")]
    np.testing.assert_allclose(losses, alone("transformer"), rtol=2e-2 if engine is None else 5e-3)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_dropped_step_leaves_weights_and_momentum_as_they_were(make, engine, precision):
    changes = {"deepspeed": engine, "precision": precision, "data.eval": None, "optim.max_steps": 6}
    bad = {"steps": [2, 3], "rank": 1, "kind": "gradient"}
    spike = {"steps": [4], "rank": 1, "kind": "spike"}
    (_, dropped), (_, judged) = make(
        2,
        ("transformer", changes, {"poison": bad, "digest": True}),
        ("transformer", {**changes, "optim.skip_spikes": True}, {"poison": spike, "digest": True, "fewest": 2}),
    )
    assert (dropped["code"], dropped["skipped"], judged["code"], judged["skipped"]) == (0, 2, 0, 1)
    digests = dropped["digests"]
    assert digests[1] == digests[2] == digests[3] and len(set(digests)) == 4
    assert judged["digests"][3] == judged["digests"][4] and len(set(judged["digests"])) == 5


RESUMED = [*((engine, precision) for engine in ENGINES for precision in ("fp32", "bf16"))]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(("engine", "precision"), RESUMED)
def test_a_stopped_run_goes_on_bit_for_bit(make, read_metrics, tmp_path, engine, precision):
    changes = {"deepspeed": engine, "precision": precision, "optim.max_steps": 8}
    parts = {**changes, "run.dir": str(tmp_path / "parts")}
    (whole, report), first, (other, rest) = make(
        2,
        ("paramixer", changes, {"digest": True}),
        ("paramixer", {**parts, "run.stop_at_step": 3}, {"digest": True}),
        ("paramixer", parts, {"digest": True}),
    )
    assert (report["code"], first[1]["code"], rest["code"]) == (0, 75, 0)
    assert first[1]["digests"] + rest["digests"] == report["digests"]
    losses = [[record["loss"] for record in read_metrics(folder, "train")] for folder in (whole, other)]
    assert losses[0] == losses[1]
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, other)]
    assert weights[0] == weights[1]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engines", [("zero1", "zero2", "zero2", "zero1"), *([engine] * 4 for engine in ENGINES)])
def test_another_number_of_ranks_goes_on(make, alone, read_metrics, tmp_path, engines):
    for (ranks, micro_batch, last), engine in zip(PHASES, engines, strict=True):
        changes = {"run.dir": str(tmp_path / "run"), "run.stop_at_step": last, "deepspeed": engine}
        ((folder, report),) = make(ranks, ("transformer", {**changes, "batch.micro_batch": micro_batch}))
        assert report.get("code") == (0 if last is None else 75), report
    losses = [record["loss"] for record in read_metrics(folder, "train")]
    np.testing.assert_allclose(losses, alone("transformer"), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    "section",
    [
        {"stage": 2, "round_robin_gradients": True},
        {"stage": 1, "parameter_alignment": True},
        {"stage": 3, "sub_group_size": 1000},
    ],
    ids=str,
)
def test_parameters_that_are_shared_out_otherwise_are_found(make, alone, read_metrics, tmp_path, section):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": section}))
    ((folder, report),) = make(2, ("transformer", {"deepspeed": str(tmp_path / "ds.json")}))
    assert report["code"] == 0, report
    losses = [record["loss"] for record in read_metrics(folder, "train")]
    np.testing.assert_allclose(losses, alone("transformer"), rtol=0, atol=1e-5)


@pytest.fixture
def shares():
    """shares(counts that rank 0 of two says it holds) -> the share of rank 1 in a flat tensor of two parameters."""
    parameters = [torch.nn.Parameter(torch.zeros(4, 4)), torch.nn.Parameter(torch.zeros(2, 4))]
    views = {id(parameters[0]): (2, 2, 4), id(parameters[1]): (1, 2, 4)}
    flat = torch.zeros(12)
    zero = SimpleNamespace(
        single_partition_of_fp32_groups=[flat],
        round_robin_bit16_groups=[parameters],
        round_robin_bit16_offsets=[[0, 16]],
    )

    def find(counts):
        world = SimpleNamespace(rank=1, gather=lambda value: [counts, value])
        return shares_of(zero, 1, views, world, "own.json")[flat]

    return find


def test_a_rank_finds_its_pieces_and_who_holds_the_others(shares):
    share = shares([12, 0])
    assert share.views == [(2, 2, 4), (1, 2, 4)] and share.holders == [{0, 1}, {1}]
    assert [(piece.place, piece.start, piece.count) for piece in share.pieces] == [(0, 12, 4), (4, 0, 8)]


@pytest.mark.parametrize("counts", [[11, 0], [12, 1]])
def test_a_way_to_share_parameters_out_that_is_not_known_is_refused(shares, counts):
    with pytest.raises(UserError, match=r"own\.json shares parameters out in a way that .*deepspeed=zero1, or set"):
        shares(counts)

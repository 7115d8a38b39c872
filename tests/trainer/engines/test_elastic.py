"""Another number of ranks, another micro-batch, the other of ZeRO stages 1 and 2: it is the same run that goes on."""

import glob
import itertools
import json
import os
import random
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longmix.data_prep.errors import UserError
from longmix.trainer.checkpoints import folders as checkpoint
from longmix.trainer.engines import elastic, random_state, state_files
from longmix.trainer.engines.elastic import Layout
from longmix.trainer.run import loop
from longmix.trainer.run.kept_choices import settle_gradients
from longmix.trainer.settings import reading
from longmix.trainer.settings.optimizers import OPTIMIZERS

STEPS = 50
# Ranks, micro-batch, and the step to stop at.
PHASES = ((2, 4, 13), (1, 8, 25), (4, 2, 37), (2, 8, None))
FEW_PHASES = ((2, 4, 13), (1, 8, 25), (2, 8, None))  # four ranks take two cores long
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}
ENGINES = ("zero0", "zero1", "zero2", "zero3", None)
# Precision, and `deepspeed` of each phase.
SHORT_RUN = ("bf16", "zero1", "zero2", "zero1")
RUNS = [("bf16", "zero1", "zero2", "zero2", "zero1"), ("fp32", *["zero0"] * 4), ("fp32", *["zero3"] * 4)]
OTHER_RUNS = [run for precision in TOLERANCE for engine in ENGINES if (run := (precision, *[engine] * 4)) not in RUNS]


@pytest.fixture(scope="module")
def run_phase(forked_ranks, run_values):
    """run_phase(ranks, micro-batch, last step, folder, precision, engine) -> its report."""

    def run(ranks, micro_batch, last, folder, precision, engine):
        if folder.exists():
            # A kill in an earlier conversion.
            (folder / "checkpoints" / ".universal-killed" / "engine").mkdir(parents=True, exist_ok=True)
        rare = {"eval.every_steps": 1000, "checkpoint.every_steps": 1000}
        changes = {"optim.max_steps": STEPS, "optim.warmup_steps": 5, "optim.weight_decay": 0.3, **rare}
        changes |= {"batch.micro_batch": micro_batch, "run.stop_at_step": last}
        changes |= {"precision": precision, "deepspeed": engine}
        (report,) = forked_ranks.run(ranks, [{"values": run_values(folder, "s3attention", **changes), "draws": True}])
        return report

    return run


@pytest.fixture(scope="module")
def whole_run(run_phase, tmp_path_factory):
    """whole_run(precision) -> (run folder, report) of the run by one rank and without a break, made once."""
    made = {}

    def make(precision):
        if precision not in made:
            folder = tmp_path_factory.mktemp("whole") / "run"
            made[precision] = folder, run_phase(1, 8, None, folder, precision, "zero0")
        return made[precision]

    return make


@pytest.fixture
def expect_the_same_run(run_phase, whole_run, read_metrics, tmp_path):
    """expect_the_same_run(precision, *engine of each phase): make it in its phases, and compare it with the whole."""

    def expect(precision, *engines):
        folder = tmp_path / "run [0]"  # brackets: DeepSpeed takes paths for patterns
        phases = PHASES if len(engines) == len(PHASES) else FEW_PHASES
        reports = [run_phase(*phase, folder, precision, engine) for phase, engine in zip(phases, engines, strict=True)]
        alone, whole = whole_run(precision)
        assert [report.get("code") for report in reports] == [*[75] * (len(phases) - 1), 0], reports
        expected = [record["loss"] for record in read_metrics(alone, "train")]
        assert len(expected) == STEPS and expected[-1] < expected[0] - 0.2
        losses = [record["loss"] for record in read_metrics(folder, "train")]
        np.testing.assert_allclose(losses, expected, rtol=0, atol=TOLERANCE[precision])
        assert len(whole["draws"]) == STEPS and all(len(step) == 16 for step in whole["draws"])
        assert list(itertools.chain.from_iterable(report["draws"] for report in reports)) == whole["draws"]
        # Nothing of a conversion stays.
        assert {path.name[:5] for path in (folder / "checkpoints").iterdir()} == {"step-", "lates"}

    return expect


@pytest.mark.slow
@pytest.mark.parametrize("run", [SHORT_RUN, *(pytest.param(run, marks=pytest.mark.full) for run in RUNS)], ids=str)
def test_losses_and_samples_are_those_of_the_whole_run(expect_the_same_run, run):
    expect_the_same_run(*run)


@pytest.mark.faults
@pytest.mark.parametrize("run", OTHER_RUNS, ids=str)
def test_so_they_are_in_every_other_combination(expect_the_same_run, run):
    expect_the_same_run(*run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "number"),
    [
        pytest.param(stage, number, marks=pytest.mark.full if number == 0 and stage == 2 else pytest.mark.faults)
        for stage in (1, 2, 3)
        for number in range(4)
    ],
)
def test_killed_at_any_moment_another_number_of_ranks_goes_on(
    forked_ranks, run_values, whole_run, read_metrics, tmp_path, pytestconfig, record_property, stage, number
):
    """2, 1, 2, 1, 2 ranks: each but the last is killed in a step, a save, a resume or a conversion."""
    seed = pytestconfig.getoption("fault_seed")
    generator = random.Random(f"{seed} {stage} {number}")
    folder, kills = tmp_path / "run", []
    rare = {"eval.every_steps": 1000, "optim.max_steps": STEPS, "optim.warmup_steps": 5, "optim.weight_decay": 0.3}
    changes = {**rare, "precision": "fp32", "deepspeed": f"zero{stage}", "checkpoint.every_steps": 4}
    for start, ranks in enumerate((2, 1, 2, 1, 2)):
        kill = {"rank": generator.randrange(ranks)}
        if start == 0 or generator.random() < 0.4:  # the first behind a checkpoint: something is to be gone on with
            kill["step"] = generator.randint(5, 9)
        else:
            # The first rank makes the folders, converts and renames.
            kill["operation"] = generator.randint(1, 12 if kill["rank"] else 90)
        own = {"batch.micro_batch": 8 // ranks, "run.stop_at_step": 10 * (start + 1)}  # if no kill comes before
        job = {"values": run_values(folder, "s3attention", **changes, **own), "kill": kill}
        if start == 4:
            job["values"]["run"]["stop_at_step"] = job["kill"] = None
        reports = forked_ranks.run(ranks, [job], may_fail=start < 4)
        kills.append(
            {"ranks": ranks, **kill, "killed": not reports, "newest": max(checkpoint.steps(folder), default=0)}
        )
    assert [report.get("code") for report in reports] == [0], (kills, reports)
    alone, _ = whole_run("fp32")
    records, expected = read_metrics(folder, "train"), read_metrics(alone, "train")
    for name in ("step", "samples_seen", "tokens_seen"):
        assert [record[name] for record in records] == [record[name] for record in expected], kills
    losses = [[record["loss"] for record in found] for found in (records, expected)]
    np.testing.assert_allclose(*losses, rtol=0, atol=TOLERANCE["fp32"], err_msg=str(kills))
    assert {path.name[:5] for path in (folder / "checkpoints").iterdir()} == {"step-", "lates"}, kills
    assert kills[0]["killed"] and kills[0]["newest"] > 0
    told = "; ".join(f"{one['ranks']} to {one['newest']}{' (killed)' * one['killed']}" for one in kills)
    record_property("summary", f"fault seed {seed}, ZeRO {stage}, ranks to the newest checkpoint: {told}")


@pytest.mark.full
def test_what_cannot_be_converted_is_refused_with_the_way_round(train, read_metrics, tmp_path):
    run = tmp_path / "run"
    train(reference := tmp_path / "reference", deepspeed=None)
    assert train(run, deepspeed="zero1", **{"run.stop_at_step": 3}).code == 75
    written = (run / "config.yaml").read_bytes()
    with pytest.raises(UserError, match="deepspeed was 'zero1' and is now 'zero3'"):
        train(run, deepspeed="zero3")
    for engine, name in (("zero3", "at ZeRO stage 3"), ("zero0", "at ZeRO stage 0"), (None, "without DeepSpeed")):
        with pytest.raises(UserError, match=rf"at ZeRO stage 1, in fp32.* goes on {name}.*model\.from=.*step-00000003"):
            train(run, deepspeed=engine, **{"run.allow_changes": ["deepspeed"]})
    # The run can still go on as it was, or at stage 2.
    assert (run / "config.yaml").read_bytes() == written
    leftover = run / "checkpoints" / ".universal-killed"
    leftover.mkdir()
    assert train(run, deepspeed="zero2", **{"run.stop_at_step": 5}).code == 75
    assert not leftover.exists() and len(list((run / "checkpoints").iterdir())) == 4
    # And in another precision, if that is allowed: Adam's moments are kept in fp32 in any case.
    with pytest.raises(UserError, match="precision was 'fp32' and is now 'bf16'"):
        train(run, deepspeed="zero2", precision="bf16")
    allowed = {"run.allow_changes": ["precision"]}
    assert train(run, deepspeed="zero2", precision="bf16", **allowed).code == 0
    losses = [record["loss"] for record in read_metrics(run, "train")]
    expected = [record["loss"] for record in read_metrics(reference, "train")]
    np.testing.assert_allclose(losses, expected, rtol=0, atol=5e-3)


@pytest.mark.full
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_began_with_unfused_steps_ends_with_them(train, tmp_path, monkeypatch, engine, precision):
    """As those of earlier versions did, whose layouts do not say so."""
    changes = {"deepspeed": engine, "precision": precision}
    train(tmp_path / "fused", **changes)
    with monkeypatch.context() as patch:
        patch.setitem(OPTIMIZERS, "adamw", replace(OPTIMIZERS["adamw"], has_fused=False))
        train(tmp_path / "whole", **changes)
        assert train(tmp_path / "parts", **changes, **{"run.stop_at_step": 2}).code == 75
    layout = tmp_path / "parts" / "checkpoints" / "step-00000002" / "layout.json"
    assert json.loads(layout.read_text())["fused"] is False
    # Twice: the checkpoint that this version writes says so, too.
    assert train(tmp_path / "parts", **changes, **{"run.stop_at_step": 4}).code == 75
    assert train(tmp_path / "parts", **changes).code == 0
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("fused", "whole", "parts")]
    assert weights[1] == weights[2] != weights[0]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engine", ["zero1", "zero2"])
def test_a_bf16_run_of_an_earlier_version_goes_on_summing_gradients_up_in_bf16(train, tmp_path, monkeypatch, engine):
    changes = {"deepspeed": engine, "precision": "bf16", "batch.micro_batch": 2}
    assert train(tmp_path / "new", **changes, **{"run.stop_at_step": 2}).code == 75
    train(tmp_path / "new", **changes)
    train(tmp_path / "at once", **changes)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "settle_gradients", lambda configuration, precision: "bf16")
        train(tmp_path / "whole", **changes)
        assert train(tmp_path / "parts", **changes, **{"run.stop_at_step": 2}).code == 75
    assert train(tmp_path / "parts", **changes, **{"run.stop_at_step": 4}).code == 75
    assert train(tmp_path / "parts", **changes).code == 0
    names = ("whole", "parts", "at once", "new")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in names]
    assert weights[0] == weights[1] != weights[2] == weights[3]


def test_a_layout_of_an_earlier_version_means_gradients_in_the_precision_of_the_run(
    tmp_path, run_values, rewrite_manifest
):
    configuration = reading.from_dict(run_values(tmp_path / "run", precision="bf16", deepspeed="zero1"), "test")
    assert settle_gradients(configuration, "bf16") == "fp32"
    for number, (noted, expected) in enumerate([({}, "bf16"), ({"gradients": "fp32"}, "fp32"), ({}, "bf16")]):
        folder = tmp_path / "run" / "checkpoints" / f"step-{number:08d}"
        folder.mkdir(parents=True)
        layout = {"stage": 1, "ranks": 2, "precision": "bf16", "fused": True, **noted}
        (folder / "layout.json").write_text(json.dumps(layout))
        (folder / "manifest.json").write_text(json.dumps({"step": number}))
        rewrite_manifest(folder)
        assert settle_gradients(configuration, "bf16") == expected
    # In another precision, which run.allow_changes allows, there is nothing to keep.
    assert settle_gradients(configuration, "fp32") == "fp32"


@pytest.mark.parametrize("stages", [(1, 2), (2, 1), (1, 1), (2, 2), (3, 3)])
@pytest.mark.parametrize("ranks", [(2, 1), (1, 4), (2, 2)])
def test_what_is_the_same_is_loaded_as_it_is_and_the_rest_converted(stages, ranks):
    saved, now = (Layout(stage, count, "bf16") for stage, count in zip(stages, ranks, strict=True))
    assert elastic.must_convert(saved, now, Path("step"), []) == (saved != now)


@pytest.mark.parametrize("stage", [0, None])
def test_whole_states_serve_any_number_of_ranks(stage):
    assert not elastic.must_convert(Layout(stage, 2, "fp32"), Layout(stage, 4, "fp32"), Path("step"), [])


def test_another_precision_is_allowed_by_name_and_never_at_stage_0():
    for stage, converts in ((1, True), (3, True), (None, False)):
        saved, now = (Layout(stage, 2, precision) for precision in ("fp16", "bf16"))
        # precision: auto gives another one on other devices.
        with pytest.raises(UserError, match=r"in fp16, .* this run is in bf16: set precision=fp16, or allow"):
            elastic.must_convert(saved, now, Path("step"), [])
        assert elastic.must_convert(saved, now, Path("step"), ["precision"]) == converts
    with pytest.raises(UserError, match=r"at stage 0 DeepSpeed cannot load that in fp32.*model\.from="):
        elastic.must_convert(Layout(0, 1, "bf16"), Layout(0, 1, "fp32"), Path("step"), ["precision"])


@pytest.mark.full
@pytest.mark.parametrize("stage", [1, 3])
def test_no_rank_reads_what_another_one_held(train, tmp_path, stage):
    train(tmp_path, deepspeed=f"zero{stage}", **{"run.stop_at_step": 2})
    newest = tmp_path / "checkpoints" / "step-00000002"
    saved, names = (
        elastic.read_layout(newest),
        {*load_file(newest / "model" / "model.safetensors"), "head.decoder.weight"},
    )
    made = elastic._convert(newest, saved, replace(saved, ranks=2), names)
    assert (made / "engine" / "zero" / "optimizer_state.pt").stat().st_size < 20_000


def test_each_parameter_counts_its_own_steps():
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.AdamW(parameters)
    sum(parameters).backward()
    optimizer.step()
    for parameter in parameters:
        optimizer.state[parameter]["step"] = optimizer.state[parameters[0]]["step"]
    elastic.separate_steps(optimizer)
    optimizer.step()
    assert [optimizer.state[parameter]["step"].item() for parameter in parameters] == [2, 2]


def test_a_checkpoint_that_does_not_say_what_it_was_written_by_is_refused(tmp_path):
    stages, ranks, precisions = ([1], True, 1.0, 4, -1, "1"), (0, -3, True, 2.0, None), ("fp8", "", None, ["fp32"], 1)
    odd = [
        *({"stage": stage, "ranks": 2, "precision": "fp32"} for stage in stages),
        *({"stage": 1, "ranks": count, "precision": "fp32"} for count in ranks),
        *({"stage": 1, "ranks": 2, "precision": precision} for precision in precisions),
        *({"stage": 1, "ranks": 2, "precision": "fp32", "fused": fused} for fused in (1, None, "true")),
        *({"stage": 1, "ranks": 2, "precision": "fp32", "gradients": found} for found in (1, True, "fp8")),
        {"stage": 1, "ranks": 2, "more": 3},
        {"stage": 1},
    ]
    for text in (None, "[]", "{", "[" * 10**5, "5", *map(json.dumps, odd)):
        if text is not None:
            (tmp_path / "layout.json").write_text(text)
        with pytest.raises(UserError, match=r"layout\.json does not say what the checkpoint was written by"):
            elastic.read_layout(tmp_path)


def test_names_that_lead_out_of_the_converted_folder_are_refused(tmp_path):
    folder = tmp_path / "checkpoints" / "step-00000001"
    (folder / "engine").mkdir(parents=True)
    hostile = {
        "mp_rank_00_model_states.pt": {"param_shapes": [{"../../../../out": torch.Size([1])}], "module": {}},
        "zero_pp_rank_0_mp_rank_00_optim_states.pt": {
            "optimizer_state_dict": {"zero_stage": 1, "param_slice_mappings": [{"/out": None}]}
        },
    }
    for name, state in hostile.items():
        torch.save(state, folder / "engine" / name)
        with pytest.raises(UserError, match=f"{name} holds '[./]*out', which the model does not have"):
            elastic._convert(folder, Layout(1, 2, "fp32"), Layout(1, 1, "fp32"), {"weight"})
        (folder / "engine" / name).unlink()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_the_plain_name_of_a_folder_leaves_nothing_behind(tmp_path, monkeypatch):
    temporary, folder = tmp_path / "temporary", tmp_path / "runs[1] c++" / "step"
    temporary.mkdir()
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "part.pt").write_text("here")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before, open_files = sorted(tmp_path.rglob("*")), len(os.listdir("/proc/self/fd"))
    with elastic._plainly_named(folder) as plain:
        assert re.fullmatch(r"[\w/]+", str(plain))
        assert [Path(name).read_text() for name in glob.glob(f"{plain}/engine/*.pt")] == ["here"]
        # A kill here has nothing to clear away.
        assert sorted(tmp_path.rglob("*")) == before
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_buffers_come_from_the_checkpoint(tmp_path):
    saved, made = (torch.nn.BatchNorm1d(3) for _ in range(2))
    saved(torch.randn(4, 3))
    (tmp_path / "engine").mkdir()
    torch.save({"module": saved.state_dict()}, tmp_path / "engine" / "mp_rank_00_model_states.pt")
    elastic.load_buffers(made, tmp_path)
    assert not torch.equal(made.running_var, torch.ones(3))
    for name, buffer in saved.named_buffers():
        assert torch.equal(dict(made.named_buffers())[name], buffer)


def test_the_settings_of_the_run_file_hold_and_not_the_checkpoints(train, tmp_path):
    changes = {"run.allow_changes": ["optim"], "optim.weight_decay": 0.5, "optim.max_steps": 4}
    train(tmp_path / "run", **{"run.stop_at_step": 2})
    train(tmp_path / "run", **changes)
    state = state_files.read(checkpoint.newest(tmp_path / "run"))
    assert [group["weight_decay"] for group in state["optimizer"]["param_groups"]] == [0.5, 0.0]


@pytest.mark.parametrize("is_earlier", [False, True])
def test_every_random_generator_goes_on(world, tmp_path, is_earlier):
    ((name, states),) = random_state.collect(world).items()
    if is_earlier:
        (tmp_path / "random-00000.json").write_text(json.dumps(states[0]))
    else:
        (tmp_path / name).write_text(json.dumps(states))

    def draw():
        return torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.random(), random.gauss(0, 1)

    drawn = draw()
    assert draw() != drawn
    random_state.restore(tmp_path, world)
    assert draw() == drawn
    # A rank that had no part in it keeps what it was seeded with.
    kept = torch.get_rng_state()
    random_state.restore(tmp_path, replace(world, rank=1, size=2))
    assert torch.equal(torch.get_rng_state(), kept)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"torch": "AAAA", "device": null, "numpy": [], "python": []}', '{"torch": 3}', "[" * 10**5],
)
def test_what_is_no_random_state_is_refused(world, tmp_path, text):
    for name, found in (("random-00000.json", text), ("random.json", f"[{text}]" if text != "[]" else "7")):
        (tmp_path / name).write_text(found)
        with pytest.raises(UserError, match=rf"{name} holds no states of random generators"):
            random_state.restore(tmp_path, world)


def test_other_data_at_the_same_place_are_refused(train, write_data, tmp_path):
    changes = {"data.train": str(tmp_path / "set"), "data.eval": None}
    write_data(tmp_path / "set", 60, 1)
    assert train(tmp_path / "run", **changes, **{"run.stop_at_step": 2}).code == 75
    write_data(tmp_path / "set", 60, 2)
    told = r"^data\.train: the data of the run in .* since .*set has the fingerprint \w{8}, not \w{8}\)\. Bring back"
    with pytest.raises(UserError, match=told):
        train(tmp_path / "run", **changes)
    allowed = {"run.allow_changes": ["data.train"], "run.stop_at_step": 4}
    assert train(tmp_path / "run", **changes, **allowed).code == 75
    # From then on these are the run's.
    assert train(tmp_path / "run", **changes, **{"run.allow_changes": ["data.train"]}).code == 0


def test_the_same_data_made_anew_are_the_same(train, write_data, tmp_path):
    changes = {"data.train": str(tmp_path / "set"), "data.eval": None}
    write_data(tmp_path / "set", 60, 1)
    assert train(tmp_path / "run", **changes, **{"run.stop_at_step": 2}).code == 75
    write_data(tmp_path / "set", 60, 1, report={"made": "again"})
    assert train(tmp_path / "run", **changes).code == 0

"""`longmix plan`: a run on GPUs that are not here."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.cli import main
from longmix.trainer.commands import planning
from longmix.trainer.commands.planning import USABLE, Cluster, make_plan
from longmix.trainer.processes.cards import CARDS, card_named
from longmix.trainer.run.memory import state_bytes
from longmix.trainer.settings import reading

CONFIGS = Path(__file__).parents[3] / "configs"
PRETRAINING = sorted(CONFIGS.glob("pretrain_*.yaml"))
RECIPES = sorted(path for path in (CONFIGS / "recipes").glob("*.yaml"))


def planned(capsys, *arguments):
    assert main(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments):
    assert main(["plan", *map(str, arguments)]) == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_the_page_shows_what_is_printed(capsys, monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    page = (CONFIGS.parent / "docs" / "recipes.md").read_text(encoding="utf-8")
    command, shown = re.search(r"^    longmix plan (.*)\n(?s:.*?)^```\n(?s:(.*?))^```$", page, re.M).groups()
    figures, _, _ = planned(capsys, *shlex.split(command)).partition("\ncounted: ")
    assert figures == shown


@pytest.mark.full
@pytest.mark.parametrize("path", PRETRAINING, ids=lambda path: path.stem)
def test_every_shipped_pretraining_can_be_planned_without_its_data(capsys, path):
    out = planned(capsys, path, "--gpus", "8xA100-80", "--nodes", 2, "--sequence-length", 512, "model.vocab_size=30000")
    assert "GPUs    2 x 8 A100-80: 75 GiB, 312 TFLOP/s, 2,039 GB/s each (NVIDIA's data sheet: A100, 80 GB SXM)" in out
    assert re.search(r"^1 \(this run\)\s+\d+ MiB .* 16 \(\d+(\.\d)? GiB\)$", out, re.M)
    assert re.search(r"^a step   about [\d.]+ seconds with micro-batches of 16: ", out, re.M)
    assert re.search(r"^the run  100,000 steps, 13 billion tokens: about ", out, re.M)


@pytest.mark.full
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_planned(capsys, path):
    arguments = [path, CONFIGS / "model" / "paramixer_tiny.yaml", "data.train=elsewhere", "run.dir=runs/none"]
    out = planned(capsys, *arguments, "--gpus", "V100", "--sequence-length", 128, "model.vocab_size=8192")
    assert "1 x 1 V100" in out and "a day    " in out


@pytest.mark.full
def test_the_data_say_how_long_samples_are(run_values, write_run_file, tmp_path, capsys):
    run = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", "paramixer", precision="bf16"))
    out = planned(capsys, run, "--gpus", "2xH100")
    assert "batch   16 samples of 24 tokens, 8 of them on each GPU" in out and "ZeRO stage" in out
    assert "none " in out  # without DeepSpeed
    assert not (tmp_path / "run").exists()


@pytest.fixture
def plan_of(run_values):
    def make(gpus=4, nodes=1, card="A100-80", length=None, **changes):
        changes = {"deepspeed": "zero1", "precision": "bf16", **changes}
        configuration = reading.from_dict(run_values("run", "paramixer", **changes), "test")
        return make_plan(configuration, Cluster(card_named(card), gpus, nodes, 200.0), length)

    return make


@pytest.mark.parametrize("length", [5, 61])
def test_a_length_takes_the_place_of_that_of_the_data(plan_of, length):
    plan = plan_of(length=length)
    assert plan.length == length and plan.size.model.config.max_position_embeddings >= length
    with pytest.raises(UserError, match=r"model.max_position_embeddings is 60, but the data's samples of 61"):
        plan_of(length=61, **{"model.max_position_embeddings": 60})


def test_windows_are_as_long_as_the_objective_says(plan_of, monkeypatch):
    objective = {"objective.name": "forecasting", "objective.input_length": 20, "objective.horizon": 4}
    monkeypatch.setattr(planning, "manifest_seen", lambda path, manifest, _: replace(manifest, sequence_length=20))
    with pytest.raises(UserError, match="--sequence-length is 30, but samples are as long as"):
        plan_of(length=30, **objective)


@pytest.mark.full
def test_states_are_shared_out_by_stage_and_fit_or_not(plan_of):
    plan = plan_of()
    for stage in (None, 0, 1, 2, 3):
        assert plan.states(stage) == state_bytes(plan.size.parameters, "bf16", stage, 4, 2)
    assert plan.states(0) > plan.states(1) > plan.states(2) > plan.states(3)
    assert plan.buffers(0) == 0 < plan.buffers(2)
    assert plan.needed(1, 4) > plan.needed(1, 2) > plan.states(1)
    assert plan.largest(1) == 4 == plan.share


@pytest.mark.full
def test_the_largest_micro_batch_divides_the_share_and_fits(plan_of, monkeypatch):
    plan = plan_of(gpus=1, **{"batch.samples": 48})
    room = plan.needed(1, 11) / USABLE
    small = type(plan.cluster.card)(**{**vars(plan.cluster.card), "memory": room})
    fitted = type(plan)(**{**vars(plan), "cluster": Cluster(small, 1, 1, 200.0)})
    assert plan.share == 48 and fitted.largest(1) == 8
    none = type(plan)(**{**vars(plan), "cluster": Cluster(type(small)(**{**vars(small), "memory": 1e3}), 1, 1, 200.0)})
    assert none.largest(1) == 0


@pytest.mark.full
def test_several_nodes_exchange_gradients_and_at_stage_3_parameters(plan_of):
    one, two = plan_of(), plan_of(gpus=2, nodes=2)
    assert one.exchange(1) == 0.0 and one.exchange(3) == 0.0
    half = two.size.parameters / 2  # of the parameters lie on the other node
    micro_batches = {stage: two.share // two.largest(stage) for stage in (1, 2, 3)}
    # Bytes of a parameter: sums of gradients there and back in fp32, the parameters in bf16.
    moved = {0: 2 * 2, 1: 2 * 4 + 2, 2: 2 * 4 * micro_batches[2] + 2, 3: (4 + 2 * 2) * micro_batches[3]}
    for stage, size in moved.items():
        assert two.exchange(stage) == pytest.approx(size * half / (200e9 / 8))


@pytest.mark.full
def test_precision_follows_the_card(plan_of):
    assert plan_of(precision="auto").precision == "bf16"
    assert plan_of(precision="auto", card="V100").precision == "fp16"
    with pytest.raises(UserError, match=r"precision is bf16, which a V100 has no arithmetic for: fp16 or fp32"):
        plan_of(card="V100")


@pytest.mark.full
def test_more_memory_is_needed_without_recomputing(plan_of):
    layers = {"model.num_hidden_layers": 6}
    whole, half, none = (
        plan_of(**layers, **{"run.gradient_checkpointing": every}).needed(1, 4) for every in (False, 2, True)
    )
    assert whole > half > none


def test_a_recipe_and_a_model_are_planned_without_a_folder_or_data(capsys):
    files = [CONFIGS / "recipes" / "small_budget.yaml", CONFIGS / "model" / "paramixer_tiny.yaml"]
    length = ["--sequence-length", "32"]
    assert "8 samples of 32 tokens" in planned(capsys, *files, "model.vocab_size=300", "--gpus", "H100", *length)
    for known in (length, ["model.vocab_size=300"], []):
        told = refused(capsys, *files, "--gpus", "H100", *known)
        assert "data.train is not set; without the data a run of mlm or clm can be planned with --seq" in told
    told = refused(capsys, *files, "model.vocab_size='32000'", "--gpus", "H100", *length)
    assert "model: vocab_size is '32000' (str); allowed: int" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--gpus", "8xA101"],
            "--gpus is '8xA101'; needed: a number and a card, such as 8xA100-80; known are V100-PCIe",
        ),
        (["--gpus", "0xA100-80"], "--gpus is '0xA100-80'; needed: a number"),
        (["--gpus", "8 A100-80"], "--gpus is '8 A100-80'; needed: a number"),
        (["--gpus", "H100", "--nodes", "0"], "--nodes is 0, but must be at least 1"),
        (["--gpus", "H100", "--network", "-1"], "--network is -1, but must be a positive number of Gbit/s"),
        (["--gpus", "H100", "--sequence-length", "0"], "--sequence-length is 0, but must be at least 1"),
        (["--gpus", "3xH100"], "batch.samples 16 does not divide into 3 GPUs: choose a multiple of 3, e.g. 15"),
        (["--gpus", "H100", "data.train=nowhere"], "with --sequence-length N and model.vocab_size=V"),
        (
            ["--gpus", "H100", "model.hidden_sise=3"],
            "model.hidden_sise is no field of ParamixerConfig; did you mean hidden_size?",
        ),
    ],
)
def test_mistakes_are_told_in_a_line(run_values, write_run_file, tmp_path, capsys, arguments, told):
    run = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", "paramixer"))
    *_, line = refused(capsys, run, *arguments).strip().splitlines()
    assert line.startswith("longmix: error: ") and told in line


def test_the_help_names_every_card(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert all(card.name in out for card in CARDS)

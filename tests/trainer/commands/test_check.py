"""`longmix train --check`: what a run would take on this machine, warnings where that is absurd, and a proposal. No
time is measured here: a trial of known times stands in for the one that is timed."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longmix.trainer.cli import main
from longmix.trainer.commands import check, proposal
from longmix.trainer.commands.expectation import Expectation
from longmix.trainer.commands.rounding import about_bytes, about_count, about_time
from longmix.trainer.models.field_check import field_mistakes
from longmix.trainer.run import trial as timing
from longmix.trainer.run.setup import prepare
from longmix.trainer.run.trial import NotTried, Trial
from longmix.trainer.settings import reading

# Of each micro-batch, and of each optimizer step.
FORWARD, BACKWARD, OPTIMIZER = 1.0, 2.0, 0.5


def timed(prepared, device, seconds):
    """A trial that always finds the same times."""
    micro_batch = prepared.configuration.batch.micro_batch
    return Trial(micro_batch, 24, micro_batch, 24, FORWARD, BACKWARD, OPTIMIZER, 2**20)


def untimed(prepared, device, seconds):
    raise NotTried("there is no time")


def quick(prepared, device, seconds):
    micro_batch = prepared.configuration.batch.micro_batch
    return Trial(micro_batch, 24, micro_batch, 24, 1e-4, 2e-4, 1e-4, 2**20)


@pytest.fixture
def checked(run_values, write_run_file, tmp_path, capsys, monkeypatch):
    """checked(*changes, trial=timed, **values of the run file) -> the lines of a check."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(torch.get_num_threads())))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)  # DeepSpeed sets it where a run of this process had none

    def run(*changes, trial=timed, options=(), **values):
        monkeypatch.setattr(check, "try_out", trial)
        path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", **values))
        assert main(["train", path, *map(str, changes), "--check", *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == "this run file is valid" and not (tmp_path / "run").exists()
        return lines

    return run


def line(lines, name):
    return next(text for text in lines if text.startswith(name))


def command(lines):
    return shlex.split(next(text for text in lines if text.startswith("  longmix ")))


def test_the_duration_is_that_of_all_micro_batches_steps_and_evaluations(checked):
    # 16 samples in 4 micro-batches, 6 steps; 12 samples of evaluation, in 3 micro-batches, at steps 0, 4 and 6.
    expected = 6 * (4 * (FORWARD + BACKWARD) + OPTIMIZER) + 3 * 3 * FORWARD
    told = line(checked(), "duration")
    assert about_time(expected) in told and "about 12 seconds for a step (forward 32%, backward 64%" in told
    # Two processes share this machine: each makes half of the passes at half the speed, and they share the states.
    shared = line(checked(options=("--processes", "2"), deepspeed="zero1"), "duration")
    assert about_time(expected) in shared and "2 processes share" in shared


def test_what_is_absurd_is_warned_of_and_what_is_not_is_not(checked):
    def warnings(*changes, **options):
        return [text for text in checked(*changes, **options) if text.startswith("WARNING")]

    # 150 samples of which a step takes 16.
    assert warnings() == []
    (epochs,) = warnings("optim.max_steps=400", trial=quick)
    assert "43 epochs" in epochs
    (slow,) = warnings(
        "optim.max_steps=370", "eval.every_steps=370", trial=lambda *_: Trial(4, 24, 4, 24, 80, 120, 0, 1)
    )
    assert "3.4 days on this device" in slow
    (large,) = warnings("model.hidden_size=512", "model.intermediate_size=1024", trial=quick)
    assert "parameters for" in large
    (memory,) = warnings(trial=lambda *_: Trial(4, 24, 4, 24, 1e-4, 1e-4, 1e-4, 2**50))
    assert "1,024 TiB of memory" in memory


def test_the_proposal_is_a_command_that_is_valid_and_sensible(checked, capsys, monkeypatch):
    lines = checked("optim.max_steps=100000", "optim.warmup_steps=5000", trial=quick)
    words = command(lines)
    # Nearest to the run: its own file, with fewer steps and a warm-up that fits them.
    assert "optim.max_steps=370" in words and "optim.warmup_share=0.06" in words
    assert words[2].endswith("run.yaml") and "run.dir" not in " ".join(words)
    assert main([*words[1:], "--check"]) == 0
    told = capsys.readouterr().out
    assert "WARNING" not in told and "a recipe" not in told


def test_a_model_that_the_data_cannot_teach_gives_way_to_the_small_recipe(checked, capsys, write_data, tmp_path):
    write_data(tmp_path / "more", 3000, 4)
    write_data(tmp_path / "test", 30, 5, split="test")
    # The recipe chooses no best checkpoint, and so there is none to test.
    best = ["checkpoint.best={metric: loss, mode: min}", f"data.test={tmp_path / 'test'}"]
    large = ["model.hidden_size=1024", "model.intermediate_size=8192", "model.num_hidden_layers=3"]
    lines = checked(*large, *best, f"data.train={tmp_path / 'more'}", "optim.max_steps=4000", trial=quick)
    words = command(lines)
    assert words[2].endswith("configs/recipes/small_budget.yaml") and words[3].endswith("model/transformer_tiny.yaml")
    assert main([*words[1:], "--check"]) == 0
    assert "WARNING" not in capsys.readouterr().out


def test_where_nothing_can_be_timed_a_line_says_why(checked):
    lines = checked("optim.max_steps=400", trial=untimed)
    assert line(lines, "duration").endswith("not estimated: there is no time")
    assert "(roughly)" in line(lines, "memory") and "a duration that cannot be estimated" in lines[-2]


def test_a_batch_of_all_data_gives_way_to_the_small_recipe(checked, write_data, tmp_path):
    write_data(tmp_path / "more", 3000, 4)
    batch = ["batch.samples=3000", "batch.micro_batch=10", "optim.max_steps=2000"]
    words = command(checked(*batch, f"data.train={tmp_path / 'more'}", trial=quick))
    # 40 steps would be as many epochs.
    assert words[2].endswith("configs/recipes/small_budget.yaml") and "batch.samples" not in " ".join(words)


def test_what_is_absurd_itself_is_not_proposed(checked, write_data, tmp_path):
    def refused(**options):
        lines = checked(trial=lambda *_: Trial(4, 24, 4, 24, 1e-4, 1e-4, 1e-4, 2**50), **options)
        assert not any(text.startswith("  longmix") for text in lines)
        return lines[-2]

    assert "suits these data on this machine: even the smallest has 823 thousand parameters for 81 thou" in refused()
    # Where the data suffice, the memory alone speaks against it.
    write_data(tmp_path / "more", 3000, 4)
    assert "even the smallest has 1,024 TiB of memory" in refused(**{"data.train": str(tmp_path / "more")})


def test_a_model_of_ten_billion_parameters_is_never_built(checked, monkeypatch):
    build = timing.build_model

    def small(start, config, auto_class):
        assert config.hidden_size < 8192
        return build(start, config, auto_class)

    monkeypatch.setattr(timing, "build_model", small)
    width = ["model.hidden_size=8192", "model.intermediate_size=32768", "model.num_hidden_layers=12"]
    lines = checked(*width, trial=timing.try_out)
    assert "not estimated: " in line(lines, "duration") and "a trial here takes at most" in line(lines, "duration")


def test_on_gpus_each_process_has_its_own(run_values, tmp_path, monkeypatch):
    prepared = prepare(reading.from_dict(run_values(tmp_path / "run"), "test", field_mistakes), 2, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "A card")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    alone, both = (Expectation.of(prepared, count, torch.device("cuda"), timed(prepared, None, 0)) for count in (1, 2))
    assert alone.step_seconds == 4 * (FORWARD + BACKWARD) + OPTIMIZER
    assert both.step_seconds == 2 * (FORWARD + BACKWARD) + OPTIMIZER and both.memory == 80 * 2**30
    assert "on 2 x A card, of which this machine has 1," in check._duration(both)
    assert "s on A card: " in check._duration(alone)


def test_steps_that_a_run_has_made_take_no_time(run_values, tmp_path):
    prepared = prepare(reading.from_dict(run_values(tmp_path / "run"), "test", field_mistakes), 1, torch.device("cpu"))
    (tmp_path / "run" / "checkpoints" / "step-00000004").mkdir(parents=True)
    rest = Expectation.of(prepared, 1, torch.device("cpu"), timed(prepared, None, 0))
    # Two steps, and the last of three evaluations.
    assert rest.seconds == rest.crowding * (2 * (4 * (FORWARD + BACKWARD) + OPTIMIZER) + 3 * FORWARD)
    assert "2 steps are left" in check._duration(rest)


def test_a_proposal_names_shipped_files_as_they_lie_here(tmp_path, monkeypatch):
    path = "recipes/small_budget.yaml"
    (tmp_path / "configs" / "recipes").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert Path(proposal.shipped(path)).is_file() and Path(proposal.shipped(path)).is_absolute()
    (tmp_path / "configs" / path).touch()
    assert proposal.shipped(path) == "configs/recipes/small_budget.yaml"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.25, "0.25 seconds"), (90, "90 seconds"), (3 * 60, "3 minutes"), (5.06 * 3600, "5.1 hours"), (1e9, "32 years")],
)
def test_times_are_rounded(seconds, told):
    assert about_time(seconds) == f"about {told}"


def test_sizes_are_rounded():
    assert [about_bytes(size) for size in (3, 1.44 * 2**30, 24 * 2**30)] == ["3 bytes", "1.4 GiB", "24 GiB"]
    assert [about_count(number) for number in (512, 92_896_704)] == ["512", "93 million"]

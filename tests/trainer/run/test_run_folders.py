"""Whose a run folder is, what it may be, and what its models say of themselves."""

import fcntl
import json
import re
import shutil
import signal

import pytest
import torch
import yaml
from safetensors.torch import load_file

from longmix.data_prep.errors import UserError
from longmix.trainer.checkpoints import folders, hashed_files
from longmix.trainer.checkpoints.state import RunState
from longmix.trainer.export import publish as export
from longmix.trainer.processes import world
from longmix.trainer.run import folder, loop
from longmix.trainer.run.folder import LOCK, RunLock, is_in_work
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings import reading
from longmix.trainer.settings.sections import CheckpointSection


def test_a_folder_is_trained_in_by_one_process_at_a_time(train, tmp_path):
    with RunLock(tmp_path / "run"), pytest.raises(UserError, match=r"another process trains in .*run now"):
        train(tmp_path / "run")
    assert train(tmp_path / "run").code == 0
    # Freed at the end: the same command finds a finished run.
    assert train(tmp_path / "run").code == 0


def test_a_look_at_the_lock_keeps_no_run_from_beginning(tmp_path, monkeypatch):
    with open(tmp_path / LOCK, "w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr(folder.time, "sleep", lambda seconds: look.close())
        with RunLock(tmp_path):
            assert look.closed and is_in_work(tmp_path)
    assert not is_in_work(tmp_path)


def test_folders_that_cannot_be_run_folders_are_refused(train, tmp_path, data):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"run\.dir is .*file/run, but .*file is a file"):
        train(tmp_path / "file" / "run")
    with pytest.raises(UserError, match=r"run\.dir is .*train, which holds a data set"):
        train(data / "train")
    with pytest.raises(UserError, match=r"run\.dir /proc/run cannot be used"):
        train("/proc/run")


def test_checkpoints_need_a_folder(train, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for make in ((run / "checkpoints").touch, lambda: (run / "checkpoints").symlink_to(tmp_path / "nowhere")):
        make()
        with pytest.raises(UserError, match=r"run/checkpoints is no folder, and takes no checkpoints: move it away"):
            train(run)
        (run / "checkpoints").unlink()
    assert not any(run.iterdir())


def test_fewer_steps_than_are_done_are_refused(train, tmp_path):
    few = {"data.eval": None, "run.allow_changes": ["optim.max_steps", "optim.warmup_steps"]}
    assert train(tmp_path / "run", **few, **{"run.stop_at_step": 5}).code == 75
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"max_steps is 4, but the run in .* stands at step 5: set it to 5 or more, or"):
        train(tmp_path / "run", **few, **{"optim.max_steps": 4})
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    # With as many as are done it is finished.
    outcome = train(tmp_path / "run", **few, **{"optim.max_steps": 5})
    assert (outcome.code, outcome.state.step) == (0, 5) and (tmp_path / "run" / "model" / "config.json").is_file()


def test_other_batches_go_on_with_the_samples_that_were_not_read(train, tmp_path, monkeypatch):
    """Not at the place that so many steps of the new size would have come to."""
    whole, places = RunOrder.shares_of_rank, []

    def noting(self, first, count, *arguments):
        places.append((first, count))
        return whole(self, first, count, *arguments)

    monkeypatch.setattr(RunOrder, "shares_of_rank", noting)
    settings = {"data.eval": None, "run.check_every": 1, "run.allow_changes": ["batch.samples"]}
    assert train(tmp_path / "run", **settings, **{"batch.samples": 8, "run.stop_at_step": 3}).code == 75
    del places[:]
    outcome = train(tmp_path / "run", **settings, **{"batch.samples": 4, "batch.micro_batch": 4})
    assert places[0] == (24, 4) and outcome.state.samples == 24 + 4 * (outcome.state.step - 3)


def test_the_optimizers_state_goes_to_no_other_parameters(train, tmp_path):
    begun = {"data.eval": None, "optim.lr_factors": {"embeddings": 2.0, "layers.0": 0.5}}
    allowed = {"data.eval": None, "run.allow_changes": ["optim"]}
    assert train(tmp_path / "run", **begun, **{"run.stop_at_step": 2}).code == 75
    for other in (
        {"optim.lr_factors": {"embeddings": 0.5, "layers.0": 2.0}},
        {"optim.lr_factors": {"embeddings": 2.0}},
        {"optim.lr_factors": begun["optim.lr_factors"], "optim.no_decay": ["bias"]},
    ):
        with pytest.raises(
            UserError, match=r"keeps the state of the parameters: set them back .* or start anew from its"
        ):
            train(tmp_path / "run", **allowed, **other)
    other = {"optim.lr_factors": {"embeddings": 3.0, "layers.0": 0.25}}
    assert train(tmp_path / "run", **allowed, **other, **{"run.stop_at_step": 4}).code == 75


def test_other_batches_of_similar_length_are_refused(train, tmp_path):
    settings = {"data.eval": None, "batch.group_by_length": True, "run.allow_changes": ["batch.samples"]}
    assert train(tmp_path / "run", **settings, **{"batch.samples": 8, "run.stop_at_step": 3}).code == 75
    with pytest.raises(UserError, match=r"batch.samples is 4, but the run in .* orders the samples for it: bring it"):
        train(tmp_path / "run", **settings, **{"batch.samples": 4, "batch.micro_batch": 4})


def test_another_metric_seeks_the_best_checkpoint_anew(train, tmp_path, caplog):
    short = {"optim.max_steps": 4, "checkpoint.every_steps": 2, "eval.every_steps": 2, "checkpoint.keep": 9}
    train(tmp_path / "run", **short, **{"checkpoint.best": {"metric": "loss", "mode": "min"}})
    longer = {**short, "optim.max_steps": 8, "run.allow_changes": ["optim.max_steps"]}
    outcome = train(tmp_path / "run", **longer, **{"checkpoint.best": {"metric": "perplexity", "mode": "max"}})
    # By the loss, about 4, every perplexity, about 90, would look like an improvement or like none.
    assert outcome.state.best_by == ["perplexity", "max", 12]
    assert outcome.state.best_step in (6, 8)
    assert outcome.state.best_value == outcome.state.figures["perplexity"]
    assert "the best checkpoint by loss (min) over 12 samples, step " in caplog.text


def test_a_run_that_is_done_keeps_the_model_that_it_has_chosen(train, tmp_path):
    short = {"optim.max_steps": 4, "checkpoint.every_steps": 2, "eval.every_steps": 2, "checkpoint.keep": 1}
    best = {"checkpoint.best": {"metric": "loss", "mode": "max"}}
    train(tmp_path / "run", **short, **best)
    weights = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    for other in ({"checkpoint.best": {"metric": "loss", "mode": "min"}}, {**best, "eval.samples": 8}, {}):
        with pytest.raises(
            UserError, match=r"made all its steps with the best checkpoint by loss \(max\) over 12 samples, "
        ):
            train(tmp_path / "run", **short, **other)
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir()
    train(tmp_path / "none", **short)
    with pytest.raises(
        UserError,
        match=r"made all its steps with no best checkpoint, and now the best checkpoint by loss .* is asked for",
    ):
        train(tmp_path / "none", **short, **best)


def test_a_rate_that_has_fallen_rises_with_a_warning(train, tmp_path, capsys):
    fallen = {"optim.max_steps": 4, "optim.schedule": "wsd", "optim.decay_share": 0.5, "optim.warmup_steps": 1}
    train(tmp_path / "run", **fallen)
    train(tmp_path / "run", **{**fallen, "optim.max_steps": 12, "run.allow_changes": ["optim.max_steps"]})
    assert "the learning rate rises from 9.18e-04 at step 4 to 5.00e-03, " in capsys.readouterr().err
    # A schedule that has nothing to give up goes on without a word.
    steady = {**fallen, "optim.schedule": "constant", "optim.decay_share": None}
    train(tmp_path / "steady", **steady)
    train(tmp_path / "steady", **{**steady, "optim.max_steps": 6, "run.allow_changes": ["optim.max_steps"]})
    assert "the learning rate rises" not in capsys.readouterr().err


def test_another_share_of_masks_seeks_the_best_checkpoint_anew(train, tmp_path):
    best = {"optim.schedule": "constant", "checkpoint.best": {"metric": "loss", "mode": "min"}, "checkpoint.keep": 9}
    assert train(tmp_path / "run", **best, **{"run.stop_at_step": 5}).state.best_by == ["loss", "min", 12]
    outcome = train(tmp_path / "run", **best, **{"eval.mask_probability": 0.5})
    assert outcome.state.best_by == ["loss", "min", 12, 0.5] and outcome.state.best_step == 6


def test_an_older_run_goes_on_evaluating_at_the_share_of_its_training(train, tmp_path, read_metrics):
    """0.15 is resolved in a new run and stays; config.yaml of an earlier version says nothing of evaluations."""
    run, half = tmp_path / "run", {"objective.mask_probability": 0.5}
    train(run, **half, **{"run.stop_at_step": 4})
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["eval"].pop("mask_probability") == 0.15
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    train(run, **half)
    hidden = {record["step"]: record["items"] for record in read_metrics(run, "eval")}
    assert hidden[6] > 2 * hidden[4]
    assert yaml.safe_load((run / "config.yaml").read_text())["eval"]["mask_probability"] == 0.5


MANY = {"batch.samples": 128, "batch.micro_batch": 64}
EARLIER = {"data.partitions": 64, "data.window": 1024, "data.order": 1}


def weights(run):
    return (run / "model" / "model.safetensors").read_bytes()


def without_order(checkpoint):
    """As earlier versions wrote it."""
    state, manifest = checkpoint / "state.json", checkpoint / "manifest.json"
    values = json.loads(state.read_text())
    assert values.pop("order") == [64, 1024]
    state.write_text(json.dumps(values))
    files = json.loads(manifest.read_text())
    files["files"] = [entry for entry in files["files"] if entry["file"] != "state.json"]
    files["files"].append(hashed_files.entry(state, checkpoint))
    manifest.write_text(json.dumps(files))


@pytest.mark.full
def test_a_run_keeps_its_order_and_that_of_an_earlier_version(train, tmp_path):
    """Those did not note what they chose: the order, and before that ranges by another rule."""
    for name, order in (("new", {}), ("old", EARLIER), ("noted", {"data.order": 1})):
        assert train(tmp_path / name, **MANY, **order, **{"optim.max_steps": 4}).code == 0
        run = tmp_path / f"{name} in two"
        train(run, **MANY, **order, **{"optim.max_steps": 4, "run.stop_at_step": 2})
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert (config["data"]["partitions"], config["data"]["window"]) == ((64, 1024) if name == "old" else (128, 512))
        assert config["data"].pop("order") == (1 if order else 2)
        if name == "noted":
            (run / "config.yaml").write_text(yaml.safe_dump(config))
        if name == "old":
            config["data"]["partitions"] = "auto"
            del config["data"]["window"]
            (run / "config.yaml").write_text(yaml.safe_dump(config))
            without_order(next(run.glob("checkpoints/step-*2")))
        assert train(run, **MANY, **{"optim.max_steps": 4}).code == 0
        assert weights(run) == weights(tmp_path / name)
        assert yaml.safe_load((run / "config.yaml").read_text())["data"]["order"] == (1 if order else 2)
    assert weights(tmp_path / "new") != weights(tmp_path / "old")


def test_a_run_file_in_place_of_a_lost_config_yaml_brings_no_other_order(train, tmp_path):
    run, steps = tmp_path / "run", {"optim.max_steps": 4}
    train(run, **MANY, **EARLIER, **steps, **{"run.stop_at_step": 2})
    config = yaml.safe_load((run / "config.yaml").read_text())
    del config["provenance"]
    config["data"] |= {"partitions": "auto", "window": None, "order": None}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    told = (
        r"data\.partitions, data\.window and data\.order are 128, 512 and 1, but the checkpoint in .*run belongs to "
        r"another order of the samples: set data\.partitions=64, data\.window=1024 and data\.order=1, or allow it with "
        r"'run.allow_changes=\[data\.partitions\]'"
    )
    with pytest.raises(UserError, match=told):
        train(run, **MANY, **steps)
    allowed = {"run.allow_changes": ["data.partitions", "data.window"]}
    assert train(run, **MANY, **steps, **allowed).code == 0


@pytest.mark.full
def test_a_wsd_run_that_is_made_longer_is_the_longer_run(train, tmp_path):
    wsd = {"optim.schedule": "wsd", "optim.decay_share": 0.25, "data.eval": None}
    train(tmp_path / "run", **wsd, **{"optim.max_steps": 8, "run.stop_at_step": 4})
    for name in ("run", "whole"):
        assert train(tmp_path / name, **wsd, **{"optim.max_steps": 12}).code == 0
    both = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "whole")]
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])


def test_cards_speak_of_the_step_that_the_model_is_from(train, tmp_path):
    outcome = train(tmp_path / "run", **{"checkpoint.best": {"metric": "loss", "mode": "max"}})
    best = outcome.state.best_step
    assert best < outcome.state.step
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"{best} steps of 16 samples ({16 * best} samples in all" in card
    exported = export.export_model(str(tmp_path / "run"), None, str(tmp_path / "exported"))
    assert "6 steps of 16 samples (96 samples in all" in (exported / "README.md").read_text()
    with pytest.raises(UserError, match="which is a file"):
        export.export_model(str(tmp_path / "run"), None, str(exported / "config.json"))


def test_what_a_run_deletes_while_it_is_exported_is_looked_for_again(train, tmp_path, monkeypatch):
    changes = {"checkpoint.keep": 2, "data.eval": None}
    train(tmp_path / "run", **changes)
    whole, copied = export.publish, []

    def publish(source, target, complete):
        if not copied:
            # The run that trains has written newer ones since.
            folders.prune(tmp_path / "run", CheckpointSection(keep=1), RunState(step=4))
            copied.append(source)
        return whole(source, target, complete)

    monkeypatch.setattr(export, "publish", publish)
    assert folders.steps(tmp_path / "run") == [4, 6]
    exported = export.export_model(str(tmp_path / "run"), None, str(tmp_path / "exported"))
    assert copied == [folders.path_of(tmp_path / "run", 6) / "model"]
    assert "4 steps of 16 samples" in (exported / "README.md").read_text()


def test_a_run_folder_means_itself(train, run_values, write_run_file, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train("run", **{"run.stop_at_step": 2})
    assert reading.load(["run"], []).run.dir == "run"
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(UserError, match=r"run\.dir run, which is not this folder: add run\.dir=\.\./here/run to go on"):
        reading.load(["../here/run"], [])
    assert reading.load(["../here/run"], ["run.dir=../here/run"]).run.dir == "../here/run"


def test_no_checkpoint_is_made_within_a_row_of_dropped_steps(train, tmp_path, monkeypatch):
    from longmix.trainer.objectives.labelled_positions import LabelledPositions

    whole = LabelledPositions.forward
    calls = []

    def spoiled(self, model, batch, items):
        calls.append(None)
        loss, sums = whole(self, model, batch, items)
        # 4 micro-batches a step: from the third step on every loss is lost.
        return (loss * float("nan"), sums) if len(calls) > 8 else (loss, sums)

    monkeypatch.setattr(LabelledPositions, "forward", spoiled)
    monkeypatch.setattr(loop, "dry_run", lambda *arguments: None)
    with pytest.raises(RuntimeError, match="10 steps in a row"):
        train(tmp_path / "run", **{"optim.max_steps": 30, "data.eval": None})
    assert folders.steps(tmp_path / "run") == [2]


@pytest.mark.parametrize("model_type", ["roberta", "mpnet"])
def test_types_that_number_positions_after_the_padding(train, tmp_path, model_type):
    changes = {"model": {"model_type": model_type, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}}
    changes["model"]["num_attention_heads"] = 2
    # Samples of the full length, which the data's padding id 3 lets begin at position 4 (MPNet: 2).
    assert train(tmp_path / "run", "bert", **changes, **{"optim.max_steps": 2}).code == 0


@pytest.mark.parametrize(
    ("model_type", "field", "value"),
    [
        ("bert", "hidden_size", "abc"),
        ("bert", "hidden_size", -5),
        ("bert", "num_attention_heads", 3),
        ("bert", "hidden_act", "foo"),
        ("bert", "hidden_dropout_prob", 2),
        ("bert", "max_position_embeddings", 8),
        ("transformer", "max_position_embeddings", 8),
        ("transformer", "input_channels", 3),
        ("flt", "coordinate_dimensions", 2),
    ],
)
def test_model_fields_that_cannot_work_are_the_users_to_mend(train, tmp_path, model_type, field, value):
    with pytest.raises(UserError, match=r"^model"):
        train(tmp_path / "run", model_type, **{f"model.{field}": value})


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RANK": "abc", "WORLD_SIZE": "2"}, "RANK is 'abc'"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK=5 of WORLD_SIZE=2"),
    ],
)
def test_an_environment_that_describes_no_run_is_refused(monkeypatch, variables, text):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=text):
        world.join()


@pytest.mark.full
def test_a_rank_that_waits_for_others_can_be_stopped(longmix, run_values, write_run_file, tmp_path):
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run"))
    port = str(20000 + hash(str(tmp_path)) % 20000)
    waiting = longmix("train", path, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

    def joins():
        # The socket that the second rank would come to.
        with open("/proc/net/tcp") as table, open("/proc/net/tcp6") as table6:
            return f":{int(port):04X} " in table.read() + table6.read()

    waiting.wait_until(joins)
    waiting.process.send_signal(signal.SIGTERM)
    code, output = waiting.wait(20)
    assert code == 75 and "stopped by SIGTERM; there was nothing to save" in output, output


# What may stand in a folder that is no run, under the names that runs write to.
OTHERS_OWN = {
    "config.yaml": lambda path: path.write_text("name: mine\n"),
    "metrics.jsonl": lambda path: path.write_text('{"mine": 1}\n'),
    "model": lambda path: (path.mkdir(), (path / "weights.txt").write_text("mine")),
    "checkpoints": lambda path: (path.mkdir(), (path / "best.pt").write_text("mine")),
    "tensorboard": lambda path: (path.mkdir(), (path / "events").write_text("mine")),
    "wandb": lambda path: (path.mkdir(), (path / "longmix.json").write_text("{}")),
    "heartbeats": lambda path: (path.mkdir(), (path / "notes").write_text("mine")),
    "stacks": lambda path: (path.mkdir(), (path / "rank-00000.txt").write_text("mine")),
    "STOP": lambda path: path.touch(),
    "SAVE": lambda path: path.touch(),
    ".lock": lambda path: path.write_text("mine"),
    "requeue.json": lambda path: path.write_text('{"mine": 1}'),
    "failure.json": lambda path: path.symlink_to("gone"),
}


@pytest.mark.parametrize("name", OTHERS_OWN)
def test_in_a_folder_that_is_no_run_nothing_is_touched(tmp_path, name):
    run = tmp_path / "run"
    run.mkdir()
    (run / "slurm-1.out").write_text("mine")
    folder.refuse_unusable(run)
    OTHERS_OWN[name](run / name)
    message = rf"run\.dir is .*run, which is no run of longmix but holds {re.escape(name)}, a name that runs write to"
    with pytest.raises(UserError, match=message):
        folder.refuse_unusable(run)


def test_what_a_start_that_was_killed_early_has_left_is_no_obstacle(tmp_path):
    (tmp_path / ".lock").touch()
    for name in ("heartbeats", "stacks", "checkpoints", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "heartbeats" / "alarm").write_text("calm".ljust(1024))
    (tmp_path / "heartbeats" / "rank-00001.json").write_text(json.dumps({"rank": 1}).ljust(1024))
    (tmp_path / "stacks" / "rank-00001.txt").write_text("longmix: stacks of rank 1 on host\n")
    (tmp_path / "requeue.json").write_text('{"job": "7", "checkpoint": 0, "endings": [[75, 0]]}')
    (tmp_path / "failure.json").write_text('{"exit_code": -9, "reason": "killed by SIGKILL"}')
    folder.refuse_unusable(tmp_path)


@pytest.mark.full
def test_what_is_added_to_the_model_of_a_run_is_never_lost(train, tmp_path):
    run = tmp_path / "run"
    short = {"optim.max_steps": 2, "data.eval": None}
    assert train(run, **short, **{"run.stop_at_step": 1}).code == 75
    (run / "model").mkdir()
    (run / "model" / "notes.txt").write_text("mine")
    before = sorted(run.rglob("*"))
    with pytest.raises(UserError, match=r"run/model holds notes\.txt, which longmix did not write there"):
        train(run, **short)
    assert sorted(run.rglob("*")) == before
    # It comes while the run trains: its checkpoint is whole, and the same command goes on once it has been moved away.
    (run / "model").rename(tmp_path / "kept")
    made = loop.FinalModel.make

    def late(self):
        (tmp_path / "kept").rename(run / "model")
        return made(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.FinalModel, "make", late)
        with pytest.raises(
            UserError, match=r"model could not be written: .*notes\.txt.*step-00000002 is whole: the same"
        ):
            train(run, **short)
    (run / "model").rename(tmp_path / "kept")
    assert train(run, **short).code == 0
    # Its own model is replaced at every end, until somebody changes it.
    assert train(run, **short).code == 0
    (run / "model" / "README.md").write_text("mine")
    with pytest.raises(UserError, match=r"README\.md, which has changed since longmix wrote it"):
        train(run, **short)
    assert (run / "model" / "README.md").read_text() == "mine" and (tmp_path / "kept" / "notes.txt").exists()


def test_a_copy_of_the_run_file_in_the_place_of_config_yaml_is_kept(tmp_path, write_run_file, run_values):
    (tmp_path / "run" / "checkpoints" / "step-00000002").mkdir(parents=True)
    write_run_file(tmp_path / "given.yaml", run_values(tmp_path / "run"))
    text = "# by hand\n" + (tmp_path / "given.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text)
    now = reading.load([str(tmp_path / "given.yaml")], [])
    folder.refuse_unusable(tmp_path / "run")
    folder.refuse_changes(tmp_path / "run", now)
    for _ in range(2):
        folder.write_configuration(tmp_path / "run", now)
    assert (tmp_path / "run" / "config.1.yaml").read_text() == text
    assert not (tmp_path / "run" / "config.2.yaml").exists()


def test_data_may_be_called_otherwise_or_be_moved_with_their_run(train, read_metrics, tmp_path, monkeypatch):
    """Their contents are what counts, and these are compared with the checkpoint's."""
    moved, work = tmp_path / "moved", tmp_path / "work"
    work.mkdir()
    train(work / "run", **{"run.stop_at_step": 2})
    data = reading.load([str(work / "run" / "config.yaml")], []).data
    # Whatever the fixture's data are, a copy of them lies beside the run from here on.
    for name in ("train", "eval"):
        shutil.copytree(getattr(data, name), work / "data" / name)
    config = (work / "run" / "config.yaml").read_text()
    for name in ("train", "eval"):
        config = config.replace(getattr(data, name), str(work / "data" / name))
    (work / "run" / "config.yaml").write_text(config)
    work.rename(moved)
    monkeypatch.chdir(moved)
    places = {"data.train": "data/train", "data.eval": str(moved / "data" / ".." / "data" / "eval")}
    assert train(moved / "run", **places).code == 0
    assert [record["step"] for record in read_metrics(moved / "run", "train")][-1] > 2
    # What is still there has not been moved.
    shutil.copytree(moved, tmp_path / "copy")
    beside = {f"data.{name}": str(tmp_path / "copy" / "data" / name) for name in ("train", "eval")}
    with pytest.raises(UserError, match=r"another configuration: data\.eval was .*; data\.train was"):
        train(tmp_path / "copy" / "run", **beside)
    with pytest.raises(UserError, match=r"another configuration: data\.eval was .* and is now ''"):
        train(moved / "run", **{**places, "data.eval": ""})
    other = {"data.train": str(moved / "data" / "eval"), "data.eval": places["data.eval"]}
    with pytest.raises(UserError, match=r"another configuration: data\.train was"):
        train(moved / "run", **other)

"""Checkpoints that are whole by their manifest and were made to run something, or spoilt: refused, nothing executed."""

import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from longmix.data_prep.errors import UserError
from longmix.trainer.checkpoints import folders as checkpoint
from longmix.trainer.checkpoints import hashed_files
from longmix.trainer.engines import load_checks, state_files


class Bomb:
    """Unpickled, it makes the file `path`."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def resume(interrupted, rewrite_manifest, train, tmp_path):
    """resume(engine, spoil) -> the mistake that a run meets whose newest checkpoint's folder `spoil` has changed, and
    whose manifest says that this is what was written."""

    def go_on(engine, spoil):
        run = shutil.copytree(interrupted(engine), tmp_path / "run")
        folder = checkpoint.path_of(run, 4)
        spoil(folder)
        rewrite_manifest(folder)
        assert checkpoint.newest(run) == folder
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        with pytest.raises(UserError) as caught:
            train(run, deepspeed=engine, **{"data.eval": None})
        text = str(caught.value)
        assert "\n" not in text and str(folder) in text and len(text) < 1000, text
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        assert not (tmp_path / "executed").exists()
        return text

    return go_on


def engine_files(folder):
    return sorted(folder.glob("engine/*.pt"))


def put_bomb(path, executed, raw=False):
    """Beside what the file holds, or in its place."""
    if raw:
        path.write_bytes(pickle.dumps(Bomb(executed)))
        return
    state = torch.load(path, weights_only=False)
    state["bomb"] = Bomb(executed)
    torch.save(state, path)


@pytest.mark.parametrize("engine", ["zero0", "zero2"])
def test_a_pickle_bomb_in_any_engine_file_is_refused_and_not_executed(resume, interrupted, tmp_path, engine):
    files = engine_files(checkpoint.path_of(interrupted(engine), 4))
    assert len(files) == (1 if engine == "zero0" else 2)
    for index in range(len(files)):
        text = resume(engine, lambda folder, index=index: put_bomb(engine_files(folder)[index], tmp_path / "executed"))
        assert "is a pickle that would run" in text and ".open" in text
        shutil.rmtree(tmp_path / "run")


@pytest.mark.faults
@pytest.mark.slow
def test_a_bomb_in_any_file_of_two_ranks_is_refused_by_both_and_by_a_rank_alone(
    forked_ranks, run_values, rewrite_manifest, train, tmp_path, monkeypatch
):
    changes = {"deepspeed": "zero2", "data.eval": None}

    def run_two_ranks(*jobs):
        return forked_ranks.run(2, [{"values": values} for values in jobs])

    (report,) = run_two_ranks(run_values(tmp_path / "run", **changes, **{"run.stop_at_step": 4}))
    assert report["code"] == 75
    names = [path.name for path in engine_files(checkpoint.path_of(tmp_path / "run", 4))]
    assert len(names) == 3  # the model's, and the optimizer's part of each rank
    folders = {}
    for name in names:
        folder = checkpoint.path_of(shutil.copytree(tmp_path / "run", tmp_path / name, symlinks=True), 4)
        put_bomb(folder / "engine" / name, tmp_path / "executed")
        rewrite_manifest(folder)
        assert checkpoint.newest(tmp_path / name) == folder
        folders[name] = folder
    errors = [report["error"] for report in run_two_ranks(*(run_values(tmp_path / name, **changes) for name in names))]
    for name in names:
        with pytest.raises(UserError) as caught:
            train(tmp_path / name, **changes)
        errors.append(str(caught.value))
    for name, error in zip([*names, *names], errors, strict=True):
        assert error.startswith(f"{folders[name] / 'engine' / name} is a pickle that would run") and "\n" not in error
    # If they hid from that look, the conversion for another number of ranks would not execute them either.
    monkeypatch.setattr(torch.serialization, "get_unsafe_globals_in_checkpoint", lambda path: [])
    for name in names:
        with pytest.raises(UserError, match="cannot be converted"):
            train(tmp_path / name, **changes)
    assert not (tmp_path / "executed").exists()


def test_a_bare_pickle_in_the_place_of_a_file_is_refused(resume, tmp_path):
    text = resume("zero2", lambda folder: put_bomb(engine_files(folder)[0], tmp_path / "executed", raw=True))
    assert "is no file of a checkpoint" in text


def test_no_bomb_goes_off_if_it_hides_from_the_first_look(resume, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.serialization, "get_unsafe_globals_in_checkpoint", lambda path: [])
    text = resume("zero2", lambda folder: put_bomb(engine_files(folder)[0], tmp_path / "executed"))
    assert "cannot be loaded" in text


def spoil_engine(folder, change):
    for path in engine_files(folder):
        state = torch.load(path, weights_only=False)
        change(state)
        torch.save(state, path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.clear(),
        lambda state: state.update(dict.fromkeys(state, 5)),
        lambda state: state.update(dict.fromkeys(state)),
        lambda state: state.get("module", {}).clear(),
    ],
)
def test_engine_files_with_other_contents_are_a_mistake_and_no_traceback(resume, damage):
    assert "cannot be loaded" in resume("zero1", lambda folder: spoil_engine(folder, damage))


def spoil_json(folder, text):
    (folder / "engine.json").write_text(text)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: spoil_json(folder, "{"),
        lambda folder: spoil_json(folder, "[" * 100_000),
        lambda folder: spoil_json(folder, '{"map": [["model", {"tensor": "none"}]]}'),
        lambda folder: spoil_json(folder, '{"map": 5}'),
        lambda folder: (folder / "engine.safetensors").write_bytes(b"no tensors"),
        lambda folder: (folder / "engine.safetensors").write_bytes(pickle.dumps(Bomb(folder.parents[2] / "executed"))),
        lambda folder: save_file({"state.model.x": torch.zeros(1)}, folder / "engine.safetensors"),
    ],
)
def test_a_state_without_deepspeed_that_is_none_is_refused(resume, spoil):
    assert "cannot be loaded" in resume(None, spoil)


def test_nothing_that_is_pickled_is_in_a_checkpoint_without_deepspeed(interrupted):
    files = [path for path in checkpoint.path_of(interrupted(None), 4).rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".md"}


def test_tensors_that_are_one_stay_one_and_values_come_back_as_they_were(tmp_path):
    tied, part = torch.randn(2, 3), torch.randn(4, 4)[1:3, ::2]
    state = {"model": {"a": tied, "b": tied, "c": part, "d": torch.zeros(0)}, 3: [None, 0.1, float("inf"), True, "x"]}
    for name, value in state_files.as_files(state).items():
        hashed_files.write(tmp_path, name, value)
    found = state_files.read(tmp_path)
    assert found[3] == state[3] and list(found) == ["model", 3]
    assert found["model"]["a"] is found["model"]["b"] and torch.equal(found["model"]["a"], tied)
    assert torch.equal(found["model"]["c"], part) and found["model"]["d"].shape == (0,)


def poison(value):
    """In every tensor that `value` holds, the first number is NaN."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel() > 1:
            value.data.view(-1)[0] = float("nan")
    elif isinstance(value, dict):
        for item in value.values():
            poison(item)
    elif isinstance(value, list | tuple):
        for item in value:
            poison(item)


def test_weights_that_are_nan_are_refused_without_deepspeed(resume):
    def spoil(folder):
        tensors = load_file(folder / "engine.safetensors")
        poison(tensors)
        save_file(tensors, folder / "engine.safetensors")

    assert "the weights hold NaN or infinity" in resume(None, spoil)


@pytest.mark.parametrize("engine", ["zero0", "zero3"])
def test_weights_that_are_nan_are_refused(resume, engine):
    assert "NaN" in resume(engine, lambda folder: spoil_engine(folder, poison))


@pytest.mark.parametrize("engine", ["zero1", "zero3"])
def test_an_optimizer_state_that_is_nan_is_refused(resume, engine):
    def spoil(folder):
        def change(state):
            for moments in ("exp_avg", "exp_avg_sq"):
                poison(list(_found(state, moments)))

        spoil_engine(folder, change)

    assert "the optimizer's state holds NaN" in resume(engine, spoil)


def _found(value, key):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        if name == key:
            yield item
        yield from _found(item, key)


def test_a_model_of_another_shape_is_no_damage(tmp_path):
    small, large = torch.nn.Linear(2, 2), torch.nn.Linear(3, 2)
    text = r"take back what was changed of model, or begin a new run .*model\.from"
    with pytest.raises(UserError, match=text), load_checks.loading(tmp_path):
        large.load_state_dict(small.state_dict())
    with (
        pytest.raises(UserError, match=r"ZeroDivisionError.*\): move this checkpoint out of the run folder"),
        load_checks.loading(tmp_path),
    ):
        raise ZeroDivisionError

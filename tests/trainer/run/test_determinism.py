"""`run.deterministic` and `run.threads`: what torch is told, what is refused, and that equal runs give equal bits."""

import hashlib
import os

import pytest
import torch
import yaml

from longmix.data_prep.errors import UserError
from longmix.trainer.objectives.labelled_positions import LabelledPositions
from longmix.trainer.run import determinism
from longmix.trainer.settings import reading
from longmix.trainer.settings.sections import RunSection

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def threads():
    """Puts torch's number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def state():
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cuda.cudnn_sdp_enabled(),
        os.environ.get("OMP_NUM_THREADS"),
    )


def test_torch_is_told_for_the_run_alone(threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    before = state()
    with determinism.computing(RunSection("r", deterministic=True), CPU):
        assert state() == (1, True, True, False, "1")
    assert state() == before
    with determinism.computing(RunSection("r", deterministic=True, threads=3), CPU):
        assert state()[:2] == (3, True)
    with determinism.computing(RunSection("r"), CPU):
        assert state()[:4] == before[:4]
    assert state() == before


def test_fp32_keeps_its_digits_in_convolutions_on_a_gpu(threads):
    assert torch.backends.cudnn.allow_tf32
    with determinism.computing(RunSection("r"), GPU):
        assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32


def test_products_on_a_gpu_need_a_workspace_of_their_own(monkeypatch):
    monkeypatch.setenv(determinism.CUBLAS_VARIABLE, ":0:0")
    with pytest.raises(UserError, match="CUBLAS_WORKSPACE_CONFIG=:0:0: unset it, or set it to :4096:8 or :16:8"):
        determinism.refuse_impossible(RunSection("r", deterministic=True), GPU)
    determinism.refuse_impossible(RunSection("r", deterministic=True), CPU)
    determinism.refuse_impossible(RunSection("r"), GPU)
    monkeypatch.delenv(determinism.CUBLAS_VARIABLE)
    determinism.refuse_impossible(RunSection("r", deterministic=True), GPU)


def test_settings_that_cannot_be_are_refused(run_values, tmp_path):
    for changes, message in (
        ({"run.deterministic": True, "run.compile": True}, "run.deterministic is true, but torch.compile"),
        ({"run.threads": 0}, "run.threads is 0, but must be at least 1"),
        ({"run.threads": 10**6}, "run.threads is 1000000, but must be at most 4096"),
    ):
        with pytest.raises(UserError, match=message):
            reading.from_dict(run_values(tmp_path, **changes), "test")


def test_a_run_that_goes_on_says_what_lets_it_differ():
    before = {"threads": 1, "processes": 2, "device": "A processor, 8 cores", "kernels": "link_mix triton"}
    elsewhere = {**before, "device": "A processor, 4 cores"}
    deterministic = RunSection("r", deterministic=True)
    for run in (RunSection("r"), deterministic):
        assert determinism.changed_circumstances(run, before, elsewhere) == []
        assert determinism.changed_circumstances(run, {}, elsewhere) == []  # of an earlier version
    (line,) = determinism.changed_circumstances(RunSection("r"), before, {**elsewhere, "threads": 4})
    assert "until here this run computed with 1 threads in each process, and now with 4" in line
    other = {"kernels": "link_mix portable"}
    (line,) = determinism.changed_circumstances(RunSection("r"), before, {**before, **other})
    assert "until here this run computed with the kernels link_mix triton, and now with link_mix portable: " in line
    for change in ({"threads": 4}, {"processes": 1}, {"device": "Another, 8 cores"}, other):
        with pytest.raises(UserError, match=f"same bits: {next(iter(change))} was "):
            determinism.changed_circumstances(deterministic, before, {**before, **change})
    allowed = RunSection("r", deterministic=True, allow_changes=["run.deterministic"])
    assert determinism.changed_circumstances(allowed, before, {**before, "processes": 1}) == []


def test_runs_of_converter_go_on_from_versions_that_noted_the_operation_it_then_ran():
    run = RunSection("r", deterministic=True)
    for kernels in ("cpu", "portable"):
        before, now = ({"kernels": f"{name} {kernels}"} for name in ("givens_mix", "token_givens_mix"))
        rest = dict.fromkeys(("threads", "processes", "device"))
        assert determinism.changed_circumstances(run, before, {**rest, **now}) == []
    for one, other in (("cpu", "portable"), ("triton", "triton")):  # in Triton angles are rounded otherwise
        before, now = {"kernels": f"givens_mix {one}"}, {"kernels": f"token_givens_mix {other}"}
        with pytest.raises(UserError, match=f"kernels was givens_mix {one} and is now token_givens_mix {other}"):
            determinism.changed_circumstances(run, before, {**rest, **now})


def digest(run):
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def noted_threads(run):
    return yaml.safe_load((run / "config.yaml").read_text())["provenance"]["threads"]


# Wide enough that torch shares its sums out among the threads.
WIDE = {"batch.samples": 32, "batch.micro_batch": 32, "model.hidden_size": 128, "model.intermediate_size": 512}
SHORT = {**WIDE, "optim.max_steps": 3, "data.eval": None}


@pytest.mark.full
def test_deterministic_runs_are_equal_whatever_number_of_threads_is_found(train, tmp_path, threads):
    for number in (1, 2):
        torch.set_num_threads(number)
        train(tmp_path / f"pinned-{number}", **{**SHORT, "run.deterministic": True})
    train(tmp_path / "free", **SHORT)
    assert digest(tmp_path / "pinned-1") == digest(tmp_path / "pinned-2")
    assert [noted_threads(tmp_path / name) for name in ("pinned-1", "pinned-2", "free")] == [1, 1, 2]


@pytest.mark.full
def test_a_run_that_goes_on_with_another_number_of_threads_says_so(train, tmp_path, threads, capsys):
    torch.set_num_threads(1)
    train(tmp_path / "run", **{"run.stop_at_step": 2})
    torch.set_num_threads(2)
    train(tmp_path / "run", **{"run.stop_at_step": 3})
    assert "computed with 1 threads in each process, and now with 2" in capsys.readouterr().err
    train(tmp_path / "run")
    assert "threads in each process" not in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("operation", ["linear_cross_entropy", "rotary_heads"])
def test_earlier_versions_noted_nothing_of_what_was_plain_pytorchs(operation):
    run = RunSection("r", deterministic=True)
    for mixers in ("", "link_mix cpu"):
        now = {"kernels": ", ".join(sorted([f"{operation} portable", *filter(None, [mixers])]))}
        assert determinism.changed_circumstances(run, {"kernels": mixers}, now) == []
    now = {"kernels": f"{operation} cpu"}
    with pytest.raises(UserError, match=f"kernels was of plain PyTorch and is now {operation} cpu"):
        determinism.changed_circumstances(run, {"kernels": ""}, now)
    (line,) = determinism.changed_circumstances(RunSection("r"), {"kernels": ""}, now)
    assert f"computed with the kernels of plain PyTorch, and now with {operation} cpu: " in line


def test_a_run_that_goes_on_with_other_kernels_says_so(train, tmp_path, monkeypatch, capsys):
    model = {"model_type": "paramixer"}
    monkeypatch.setenv("LONGMIX_KERNELS", "reference")
    train(tmp_path / "run", **model, **{"run.stop_at_step": 2})
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    train(tmp_path / "run", **model, **{"run.stop_at_step": 3})
    before, now = (f"linear_cross_entropy {name}, link_mix {name}" for name in ("reference", "portable"))
    assert f"with the kernels {before}, and now with {now}: " in capsys.readouterr().err
    train(tmp_path / "run", **model)
    assert "kernels" not in capsys.readouterr().err


@pytest.mark.full
def test_an_operation_without_a_deterministic_form_is_named(train, tmp_path, monkeypatch):
    forward = LabelledPositions.forward

    def putting(*arguments):
        torch.zeros(4).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))
        return forward(*arguments)

    monkeypatch.setattr(LabelledPositions, "forward", putting)
    with pytest.raises(UserError, match="deterministic: put_, which this transformer needs on cpu, has no determini"):
        train(tmp_path / "run", **{"run.deterministic": True})
    train(tmp_path / "other", **{"optim.max_steps": 1, "optim.warmup_steps": 0})

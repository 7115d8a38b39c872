"""Triton kernels that must prove themselves before they are chosen."""

import json
import multiprocessing
import os
import signal
import sys
import time

import pytest
import torch

from longmix.kernels import ops, proving, selection, verdicts
from longmix.kernels.selection import OPERATIONS

CPU = torch.device("cpu")
WITH_KERNELS = sorted(OPERATIONS)


def test_the_process_finds_what_this_one_finds(monkeypatch, tmp_path):
    """longmix may be on the path of a script alone, or in the folder where it was started."""
    (tmp_path / "only_here.py").write_text("input(); print('{\"reason\": null}', flush=True)")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(proving, "WORKER", (sys.executable, "-P", "-m", "only_here"))
    assert proving.fault("cpu") is None


def test_a_kernel_that_has_proved_itself_runs(pretend, sevens, forget, mix, files):
    assert mix() == mix() == 42
    forget()
    assert mix() == 42 and pretend.started() == ["link_mix"]
    [file] = files()
    assert file.stat().st_mode & 0o777 == 0o600 and json.loads(file.read_text())["outcome"]["error"] == 1e-7
    assert mix(links=3) == 42 and pretend.started() == ["link_mix"] * 2  # other programs
    assert mix(dtype=torch.float64) == 42 and pretend.started() == ["link_mix"] * 3


def test_one_that_fails_does_not_and_one_line_of_the_host_says_why(pretend, sevens, monkeypatch, capfd, forget, mix):
    pretend(link_mix="its result differs by 5.0e-01 (relative; allowed: 1e-05)")
    assert mix() == mix() == 6
    line = (
        "longmix: link_mix runs in plain PyTorch on Pretended GPU (sm_0), for its Triton kernel failed its proof: its "
        "result differs by 5.0e-01 (relative; allowed: 1e-05); `longmix doctor` proves it again\n"
    )
    assert capfd.readouterr().err == line
    assert mix(links=3) == 6 and capfd.readouterr().err == ""
    forget()
    pretend()
    assert mix() == 6 and capfd.readouterr().err == line and len(pretend.started()) == 2
    forget()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert mix() == 6 and capfd.readouterr().err == ""


def test_of_another_card_its_first_rank_says_why_too(monkeypatch):
    cards = ["A", "A", "B", "B"]
    monkeypatch.setattr(proving, "card", lambda device: cards[device.index])
    speaking = []
    for rank in range(4):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        speaking.append(proving._speaks(torch.device("cuda", rank)))
    assert speaking == [True, False, True, False]


def test_of_ranks_that_see_one_card_each_the_first_says_why(monkeypatch):
    monkeypatch.setattr(proving, "card", lambda device: "A")
    monkeypatch.setenv("LOCAL_RANK", "0")
    speaking = []
    for rank in range(3):
        monkeypatch.setenv(proving.HOST_RANK, str(rank))
        speaking.append(proving._speaks(torch.device("cuda", 0)))
    assert speaking == [True, False, False]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("hangs", "its process has not answered within 0.3 seconds and was stopped"),
        ("SIGSEGV", "its process ended with SIGSEGV"),
    ],
)
def test_one_that_ends_or_holds_its_process_fails_for_good(pretend, sevens, monkeypatch, what, reason):
    monkeypatch.setattr(proving, "LONGEST_PROOF", 0.3)
    pretend(link_mix=what)
    verdict = proving.prove("link_mix", CPU)
    assert not verdict.passed and verdict.decided and verdict.reason == reason
    pretend()
    assert proving.prove("link_mix", CPU) == verdict and len(pretend.started()) == 1
    assert proving.prove("link_mix", CPU, anew=True).passed and proving.prove("link_mix", CPU).passed
    assert len(pretend.started()) == 2


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"link_mix": "SIGTERM"}, "its process ended with SIGTERM"),
        ({"start": "never"}, "before it could use the device, its process ended with exit code 3"),
        ({"start": "busy"}, "its process cannot use the device: busy"),
    ],
)
def test_what_says_nothing_of_the_kernel_is_tried_three_times(pretend, sevens, plan, reason, forget, mix):
    pretend(**plan)
    for _ in range(3):
        assert mix() == 6
        forget()
    pretend()
    assert mix() == 6 and len(pretend.started()) == 3
    forget()
    [proof] = proving.known_proofs(CPU)
    assert proving.prove_all([proof], CPU)[0].reason == reason
    assert proving.prove_all([proof], CPU, anew=True)[0].passed and mix() == 42


def test_three_processes_that_ended_in_a_proof_are_enough(pretend):
    pretend(link_mix="hangs")
    for number in range(1, 4):
        child = os.fork()
        if child == 0:
            proving.prove("link_mix", CPU)
            os._exit(0)
        while len(pretend.started()) < number:
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert proving.prove("link_mix", CPU).reason == "3 processes ended while it was proved"
    assert len(pretend.started()) == 3


def test_an_interruption_is_no_attempt(pretend, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(proving, "_ask", interrupted)
        for _ in range(4):
            with pytest.raises(KeyboardInterrupt):
                proving.prove("link_mix", CPU)
    assert proving.prove("link_mix", CPU).passed


def test_one_process_proves_all_and_another_one_what_it_did_not_come_to(pretend):
    pretend(linear_attention="SIGSEGV", wavelet_analysis="spoilt", lifting_analysis="wrong")
    proofs = [proving.typical(name, torch.float32) for name in WITH_KERNELS]
    found = {verdict.operation: verdict.reason for verdict in proving.prove_all(proofs, CPU)}
    failed = {"linear_attention": "its process ended with SIGSEGV", "wavelet_analysis": "spoilt"}
    assert found == {name: {**failed, "lifting_analysis": "wrong"}.get(name) for name in WITH_KERNELS}
    assert pretend.started() == [
        " ".join(WITH_KERNELS),
        "link_mix near_attention random_feature_attention spectral_filter token_givens_mix wavelet_analysis "
        "wavelet_synthesis",
        "wavelet_synthesis",
    ]


def test_processes_that_ask_at_once_prove_once(pretend):
    pretend(seconds=0.2)
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=lambda: os._exit(42 if proving.prove("link_mix", CPU).passed else 0)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [42] * 3 and pretend.started() == ["link_mix"]


def test_one_that_waits_too_long_proves_for_itself(pretend, monkeypatch, tmp_path):
    proving.prove("link_mix", CPU)
    [lock] = (tmp_path / "cache" / "longmix" / "kernels").glob("*.lock")
    monkeypatch.setattr(verdicts, "LONGEST_WAIT", 0.2)
    with verdicts.alone(lock):
        assert proving.prove("link_mix", CPU, anew=True).passed
    assert len(pretend.started()) == 2


def test_force_needs_no_proof(pretend, sevens, monkeypatch, mix):
    pretend(link_mix="wrong")
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    assert mix() == 42
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    assert mix() == 6 and pretend.started() == []


def test_nothing_is_proved_for_devices_that_are_not_there_or_for_nothing(pretend, monkeypatch, capfd):
    empty = ops.link_mix(torch.ones(1, 0, 2), torch.zeros(1, 0, 1, 2), torch.zeros(1, 2, dtype=torch.int64))
    assert empty.shape == (1, 0, 2)
    monkeypatch.undo()
    monkeypatch.delenv("LONGMIX_KERNELS", raising=False)
    monkeypatch.setattr(proving, "WORKER", None)
    if not torch.cuda.is_available():
        assert ops.implementation("link_mix", "cuda") == "portable"
        assert selection.select("link_mix", torch.device("cuda"), {"portable": print}) is print  # of pretended tensors
        with pytest.raises(ValueError, match="link_mix has no Triton kernels to prove on cuda: torch sees no GPU here"):
            proving.prove("link_mix", "cuda")
    assert capfd.readouterr().err == "" and pretend.started() == []


def test_what_has_no_kernels_cannot_be_proved(pretend, monkeypatch):
    monkeypatch.setitem(OPERATIONS, "planted", "common")
    with pytest.raises(ValueError, match="planted has no Triton kernels to prove on cpu: it has no triton"):
        proving.prove("planted", CPU)


@pytest.mark.full
@pytest.mark.slow
def test_a_compiled_graph_chooses_while_it_is_traced(pretend, sevens):
    compiled = torch.compile(mix_traced, fullgraph=True, backend="eager")
    assert compiled(torch.ones(1, 3, 2)).item() == 42 and pretend.started() == ["link_mix"]


def mix_traced(value):
    return ops.link_mix(value, torch.zeros(1, 3, 1, 2), torch.zeros(1, 2, dtype=torch.int64)).sum()

"""What `longmix doctor` does with GPUs: four play it, of two kinds, and verdicts are given."""

import re

import pytest
import torch

from longmix.kernels import proving
from longmix.trainer.cli import main
from longmix.trainer.commands import diagnosis, kernel_proofs

CARDS = ["V", "V", "A", "A"]
WITHOUT_KERNELS = "linear_cross_entropy"


@pytest.fixture
def gpus(monkeypatch):
    """gpus(faults={1: "reason"}, failed="operation", known=[...]); `.asked`: what was proved, and where."""
    monkeypatch.delenv("LONGMIX_KERNELS", raising=False)
    asked = []

    def verdict(name, form, card):
        outcome = {"passed": True, "error": 3e-7, "reason": None, "milliseconds": 0.456, "portable_milliseconds": 7.89}
        if name == plan.failed:
            outcome = dict.fromkeys(outcome) | {"passed": False, "error": 0.5, "reason": "wrong"}
        spent = {"compile_seconds": 12.3, "seconds": 0.25, "decided": True}
        return proving.Verdict(name, proving.spell(form)["dtype"], form, card, **outcome, **spent)

    def prove_all(proofs, device, anew, measured_positions):
        assert anew and measured_positions
        asked.append((device, proofs))
        return [verdict(*proof, CARDS[device.index]) for proof in proofs]

    def plan(faults=None, failed=None, known=()):
        plan.failed = failed
        monkeypatch.setattr(proving, "fault", lambda device: (faults or {}).get(device.index))
        monkeypatch.setattr(proving, "known_proofs", lambda device: known)

    plan.asked = asked
    monkeypatch.setattr(proving, "prove_all", prove_all)
    monkeypatch.setattr(proving, "card", lambda device: CARDS[device.index])
    monkeypatch.setattr(kernel_proofs, "may_prove", lambda name: name != WITHOUT_KERNELS)
    monkeypatch.setattr(kernel_proofs, "resolve_precision", lambda _, device: "fp16" if device.index < 2 else "bf16")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(CARDS))
    return plan


def doctor(capsys):
    code = main(["doctor"])
    captured = capsys.readouterr()
    return code, re.sub(" +", " ", captured.out), captured.err


def test_every_kernel_is_proved_on_each_kind_of_gpu_and_shown_with_its_times(gpus, capsys, monkeypatch):
    form = proving.proof_module("link_mix").Form(torch.float32, 70, 2, 3, False, 64, 512, True, False)
    met = proving.Proof("link_mix", form)
    gpus(known=[met])
    monkeypatch.setattr(diagnosis, "_devices", lambda problems: [])
    _, text, told = doctor(capsys)
    assert "longmix: Triton kernels are proved on V; compiling them may take minutes\n" in told
    assert [device.index for device, _ in gpus.asked] == [0, 2]
    for (_, proofs), half in zip(gpus.asked, (torch.float16, torch.bfloat16), strict=True):
        assert len(proofs) == len(set(proofs)) == 14 * 2 + 1 and met in proofs
        assert {proof.form.dtype for proof in proofs} == {torch.float32, half}
    assert "\nV, result and gradients, times for 3 x 4096 positions:\nkernel dtype for relative error" in text
    settings = "width 70, factors 2, links 3, wrap False, slab 64, rows 512, ragged True, documents False"
    row = f"link_mix float32 {settings} 3.0e-07 12.30 0.25 0.46 7.89 triton\n"
    assert text.count(row) == 2
    assert text.count(f"{WITHOUT_KERNELS} all all - - - - - portable (it has no triton implementation)") == 2


def test_what_fails_is_told_and_plain_pytorch_runs(gpus, capsys, monkeypatch):
    gpus(failed="link_mix")
    monkeypatch.setattr(diagnosis, "_devices", lambda problems: [])
    code, text, _ = doctor(capsys)
    assert code == 1 and text.count(" 5.0e-01 12.30 0.25 - - portable\n") == 4
    assert (
        "wrong: link_mix (float16) in Triton on V: wrong; plain PyTorch runs in its place: please report it with these "
        "lines\n" in text
    )
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    _, text, _ = doctor(capsys)
    assert " 7.89 portable (LONGMIX_KERNELS says so)\n" in text


def test_a_gpu_that_computes_nothing_is_named_and_another_one_of_its_kind_proves(gpus, capsys, monkeypatch):
    gpus(faults={0: "RuntimeError: no kernel image", 3: "busy"})
    monkeypatch.setattr(diagnosis, "_devices", lambda problems: [])
    code, text, _ = doctor(capsys)
    assert code == 1 and [device.index for device, _ in gpus.asked] == [1, 2]
    assert "wrong: cuda:0 computes nothing: RuntimeError: no kernel image\nwrong: cuda:3 computes nothing: busy" in text

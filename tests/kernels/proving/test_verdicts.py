"""The verdicts of proofs on disk: which are believed, and of what each is."""

import json
import re
import shutil

import pytest
import torch

from longmix.kernels import build, proving, verdicts
from longmix.kernels.selection import OPERATIONS

CPU = torch.device("cpu")


def altered(**changes):
    return lambda text: json.dumps({**json.loads(text), **changes})


def outcome(**changes):
    return lambda text: altered(outcome={**json.loads(text)["outcome"], **changes})(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[:-10],
        lambda text: "[" * 100_000,
        lambda text: "[]",
        altered(identity={}),
        altered(attempts=1e999),
        outcome(passed=1),
        outcome(reason="wrong"),
        outcome(error="none"),
        outcome(more=1),
    ],
)
def test_damaged_and_foreign_verdicts_are_not_believed(tmp_path, change):
    file = verdicts.VerdictFile(tmp_path, {"operation": "link_mix"})
    file.begin(anew=False)
    assert file.verdict() is None
    file.end(verdicts.Outcome(True, 1e-7, 0.5))

    def read():
        return verdicts.VerdictFile(tmp_path, {"operation": "link_mix"}).verdict()

    assert read() == verdicts.Outcome(True, 1e-7, 0.5)
    file.path.write_text(change(file.path.read_text()))
    assert read() is None


def test_a_damaged_verdict_is_proved_anew(pretend, sevens, forget, mix, files):
    assert mix() == 42
    [file] = files()
    whole = file.read_text()
    file.write_text("{}")
    forget()
    assert mix() == 42 and pretend.started() == ["link_mix"] * 2 and file.read_text() == whole


def test_verdicts_that_others_can_write_are_not_believed(pretend, sevens, monkeypatch, tmp_path, forget, mix, files):
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    assert mix() == 42
    [file] = files()
    file.chmod(0o602)
    forget()
    assert mix() == 42 and len(pretend.started()) == 2 and file.stat().st_mode & 0o777 == 0o600
    file.parent.chmod(0o777)
    for started in (3, 4):
        forget()
        assert mix() == 42 and len(pretend.started()) == started


def test_a_verdict_that_cannot_be_kept_holds_for_its_process(pretend, sevens, monkeypatch, mix, files):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(verdicts, "new_beside", full)
    assert mix() == mix() == 42 and len(pretend.started()) == 1 and files() == []


def test_a_verdict_is_of_all_launchers(monkeypatch):
    """Every folder from whose launchers an operation's folder imports is in the digest of its source."""
    others = {}
    for folder in set(OPERATIONS.values()):
        text = "".join(path.read_text() for path in (proving.FOLDER / folder).glob("*gpu*.py"))
        others[folder] = set(re.findall(r"^from \.\.(\w+)\.\w*gpu\w* import", text, re.MULTILINE)) - {"bands", "common"}
    assert {folder: set(names) for folder, names in proving.LAUNCHES.items()} == {f: o for f, o in others.items() if o}
    digests = {folder: proving.source_digest(folder) for folder in others}
    monkeypatch.setattr(proving, "LAUNCHES", {})
    proving.source_digest.cache_clear()
    assert {folder for folder in others if proving.source_digest(folder) != digests[folder]} == {
        folder for folder in others if others[folder]
    }
    proving.source_digest.cache_clear()


def test_a_verdict_holds_for_one_form_source_card_and_version(monkeypatch, tmp_path):
    copy = tmp_path / "kernels"
    for folder in ("attention", "link_mix", "bands", "common"):
        shutil.copytree(proving.FOLDER / folder, copy / folder)
    for name in ("operators.py", "proof_worker.py"):
        shutil.copy(proving.FOLDER / name, copy)
    monkeypatch.setattr(proving, "FOLDER", copy)
    on = "Some GPU"

    def identity(dtype=torch.float32):
        proving.source_digest.cache_clear()
        return proving._identity(proving.typical("link_mix", dtype), on)

    found = [identity()]
    found.append(identity(torch.float16))
    with open(copy / "attention" / "gpu_kernels.py", "a") as file:
        file.write("#\n")
    assert identity() == found[0]
    for name in ("link_mix/gpu_kernels.py", "link_mix/proof.py", "bands/gpu.py", "common/rows.py", "operators.py"):
        with open(copy / name, "a") as file:
            file.write("#\n")
        found.append(identity())
    on = "Another GPU"
    found.append(identity())
    monkeypatch.setattr(proving, "_triton_version", lambda: "99")
    found.append(identity())
    monkeypatch.setattr(torch, "__version__", "99")
    found.append(identity())
    monkeypatch.setattr(proving, "interpreted", lambda: None)
    found.append(identity())
    proving.source_digest.cache_clear()
    assert len({verdicts.digest(identity) for identity in found}) == len(found)

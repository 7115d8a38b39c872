"""What a run leaves behind is for whom the user's umask says, and holds nothing that the environment keeps secret."""

import os
import stat

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.export import publish
from longmix.trainer.run import loop
from longmix.trainer.settings import provenance, reading

SECRETS = {
    "HF_TOKEN": "hf_QmFzZTY0T2ZTb21ldGhpbmc",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfi",
    "WANDB_API_KEY": "5f1e0c9a7b3d2f4e6a8c",
    "SITE_PASSWORD": "correct horse battery",
    "DATABASE_CREDENTIALS": "scott+tiger",
}
# Uncommitted changes of somebody's checkout, which config.yaml keeps.
DIFF = """
+export HF_TOKEN=hf_QmFzZTY0T2ZTb21ldGhpbmc
+export OTHER_API_KEY=0123456789abcdef
+login("hf_AnotherTokenOfSomebody12")
+password = "correct horse battery"
+git clone https://me:hunter22@example.org/x
+export HF_TOKEN=$1
+pad_token = tokenizer.pad_token
"""


@pytest.fixture(scope="module")
def run(world, run_values, tmp_path_factory):
    """A run folder, and its exported model, of a finished run that was stopped once, under umask 027."""
    folder = tmp_path_factory.mktemp("private") / "run"
    changes = {"deepspeed": "zero1", "log.tensorboard": True, "checkpoint.asynchronous": True}
    values = run_values(folder, **changes)
    before = os.umask(0o027)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        patch.setattr(provenance, "_git", lambda source, verb, *rest: DIFF if verb == "diff" else "0" * 40)
        try:
            values["run"]["stop_at_step"] = 3
            assert loop.train(reading.from_dict(values, "test"), world).code == 75
            values["run"]["stop_at_step"] = None
            assert loop.train(reading.from_dict(values, "test"), world).code == 0
            publish.export_model(str(folder), None, str(folder / "exported"), self_contained=True)
        finally:
            os.umask(before)
    return folder


def test_every_file_is_made_by_the_users_umask(run):
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in run.rglob("*")}
    assert len(found) > 30
    assert {path.name for path, mode in found.items() if mode != (0o750 if path.is_dir() else 0o640)} == set()


def test_no_secret_of_the_environment_is_in_any_file(run):
    secrets = [*SECRETS.values(), "0123456789abcdef", "hf_AnotherTokenOfSomebody12", "hunter22"]
    for path in (path for path in run.rglob("*") if path.is_file()):
        contents = path.read_bytes()
        assert [secret for secret in secrets if secret.encode() in contents] == [], path
    kept = (run / "config.yaml").read_text()
    assert "pad_token = tokenizer.pad_token" in kept and "HF_TOKEN=$1" in kept and provenance.HIDDEN in kept


@pytest.mark.parametrize(
    "change",
    [
        {"data.train": "s3://me:hunter22@host/data"},
        {"data.train": [{"path": "https://me:hunter22@host/data"}]},
        {"data.eval": "ftp://me:hunter22@host/data"},
        {"model": {"from": "https://me:hunter22@host/model"}},
    ],
)
def test_passwords_in_a_run_file_are_refused_and_not_told(run_values, change):
    with pytest.raises(UserError, match="holds a password, which the run folder would keep") as caught:
        reading.from_dict(run_values("run", **change), "test")
    assert "hunter22" not in str(caught.value)
    reading.from_dict(run_values("run", **{"data.train": "s3://bucket/data@v1"}), "test")

"""The pack for a machine without network holds what it says, and installs without a package index."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tomllib
import types
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from longmix.data_prep.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
RUNNING = "{}.{}".format(*sys.version_info)
# What the whole pack carries to an environment that has all else: longmix, and what nothing else needs.
CARRIED = {
    *("longmix", "deepspeed", "hjson", "datasets", "dill", "multiprocess", "pywavelets"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection"),
}


@pytest.fixture
def pack_script(script):
    return script("gpu_pack")


@pytest.fixture
def arguments(pack_script, tmp_path):
    """parse(WORD, ...) -> the arguments, with a machine that has nothing."""
    (tmp_path / "have.txt").write_text("")
    return lambda *words: pack_script.parse(
        [str(tmp_path / "pack"), "--python", RUNNING, "--have", str(tmp_path / "have.txt"), *words]
    )


@pytest.fixture
def light(pack_script, monkeypatch):
    """Parts that cost nothing take the place of the true ones: a wheel of 1.2 MB, and data of a few bytes."""

    def write(folder, name, content):
        folder.mkdir()
        (folder / name).write_bytes(content)

    monkeypatch.setattr(pack_script.record, "commit", lambda: "")
    monkeypatch.setattr(pack_script.wheels, "gather", lambda folder, *rest: write(folder, "a.whl", bytes(1_200_000)))
    monkeypatch.setattr(
        pack_script.data, "embedded", lambda work: types.SimpleNamespace(text=work / "text", glue=work / "glue")
    )
    monkeypatch.setattr(
        pack_script.data, "prepare", lambda texts, size, length, folder, work: write(folder, "manifest.json", b"{}")
    )
    monkeypatch.setattr(pack_script.prediction, "write", lambda path: path.write_text("{}"))
    monkeypatch.setattr(pack_script.data, "take_glue", lambda source, folder: write(folder, "train.tsv", b"text"))


# -----------------------------------------------------------------------------
# What the other machine has.


def test_what_a_machine_has_is_read_as_pip_lists_it(pack_script):
    lines = ["# that machine", "Typing_Extensions==4.16.0", "", "torch==2.11.0+cu130  # its own build"]
    assert pack_script.wheels.pinned(lines, "have.txt") == {"typing-extensions": "4.16.0", "torch": "2.11.0+cu130"}
    with pytest.raises(UserError, match=r"have\.txt, line 2: 'torch>=2' is not of the form NAME==VERSION"):
        pack_script.wheels.pinned(["numpy==2.5.2", "torch>=2"], "have.txt")


def test_what_a_machine_has_satisfies_what_longmix_asks_for(pack_script):
    """The list that counts without --have, by the bounds of pyproject.toml."""
    requirements = pytest.importorskip("packaging.requirements")
    present = pack_script.PRESENT.read_text(encoding="utf-8").splitlines()
    have = pack_script.wheels.pinned(present, "present.txt")
    lacking = []
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]:
        needed = requirements.Requirement(line)
        if needed.name in have:
            assert have[needed.name] in needed.specifier, line
        else:
            lacking.append(pack_script.wheels.canonical(needed.name))
    assert sorted(lacking) == ["datasets", "deepspeed", "pydantic", "pywavelets"]


@pytest.mark.parametrize(("version", "stands"), [("2.5", "2.5+present"), ("2.5+cu130", "2.5+cu130.present")])
def test_what_a_machine_has_stands_in_for_itself_with_what_its_extras_need(
    pack_script, monkeypatch, tmp_path, version, stands
):
    needs = ["always", 'fetcher>2; extra == "http"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)
    assert pack_script.wheels.stand_in(tmp_path, "file-system", version) == stands
    with zipfile.ZipFile(tmp_path / f"file_system-{stands}-py3-none-any.whl") as wheel:
        about = wheel.read(f"file_system-{stands}.dist-info/METADATA").decode()
    assert f"Version: {stands}\n" in about and "Provides-Extra: http\n" in about
    assert 'Requires-Dist: fetcher>2; extra == "http"\n' in about and "always" not in about


def test_pip_failures_are_told_in_a_line_with_what_is_in_conflict(pack_script):
    output = "Looking\nThe conflict is caused by:\n    longmix depends on a>=2\n    The user requested a==1\n\nTo fix"
    errors = "WARNING: x\nERROR: Cannot install longmix\n"
    told = "ERROR: Cannot install longmix longmix depends on a>=2 The user requested a==1"
    assert pack_script.wheels.reason(output, errors) == told


# -----------------------------------------------------------------------------
# The folder.


def test_a_pack_lists_every_file_and_takes_the_place_of_an_unchanged_one_only(pack_script, arguments, light, tmp_path):
    pack = tmp_path / "pack"
    manifest = pack_script.make(pack, arguments())
    assert json.loads((pack / "MANIFEST.json").read_text()) == manifest
    listed = {entry["file"]: entry["bytes"] for entry in manifest["files"]}
    found = {path.relative_to(pack).as_posix(): path.stat().st_size for path in pack.rglob("*") if path.is_file()}
    assert listed == {name: size for name, size in found.items() if name not in ("MANIFEST.json", ".longmix.json")}
    assert set(listed) == {"wheels/a.whl", "corpus/manifest.json", "glue/train.tsv", "prediction.json", "install.py"}
    pack_script.make(pack, arguments())
    (pack / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt, which longmix did not write there"):
        pack_script.make(pack, arguments())
    assert (pack / "notes.txt").read_text() == "mine" and not list(tmp_path.glob(".pack*"))


def test_a_pack_beyond_the_limit_is_refused_with_its_largest_parts(pack_script, arguments, light, tmp_path):
    with pytest.raises(UserError, match=r"1\.2 MB, more than --limit 1; its largest parts: wheels/a\.whl 1\.2"):
        pack_script.make(tmp_path / "pack", arguments("--limit", "1"))
    assert [path.name for path in tmp_path.iterdir()] == ["have.txt"]


@pytest.mark.parametrize("spoil", ["changed", "missing", "python"])
def test_a_pack_that_is_not_as_it_was_made_is_not_installed(
    pack_script, arguments, light, tmp_path, monkeypatch, spoil
):
    pack, install = tmp_path / "pack", pack_script.install
    pack_script.make(pack, arguments())
    install.verify(pack)
    if spoil == "changed":
        (pack / "wheels" / "a.whl").write_bytes(bytes(1_199_999) + b"1")
        told = r"a\.whl is not as it was packed: copy the pack again"
    elif spoil == "missing":
        (pack / "glue" / "train.tsv").unlink()
        told = r"is no whole pack .*train\.tsv.*: copy it again"
    else:
        monkeypatch.setattr(install.sys, "version_info", (3, 99, 0))
        told = rf"is for Python {RUNNING}, and this is 3\.99: make another with --python 3\.99"
    with pytest.raises(install.PackError, match=told):
        install.install(pack, tmp_path / "environment")
    assert not (tmp_path / "environment").exists()


def test_an_environment_takes_a_new_folder_and_a_repository(pack_script, arguments, light, tmp_path):
    pack, install = tmp_path / "pack", pack_script.install
    pack_script.make(pack, arguments())
    with pytest.raises(install.PackError, match=r"pack holds something: name a new folder"):
        install.install(pack, pack)
    with pytest.raises(install.PackError, match=r"--tree .*pack is no repository of longmix: it has no folder trainer"):
        install.install(pack, tmp_path / "environment", pack)
    assert not (tmp_path / "environment").exists()


def test_compiled_kernels_are_found_where_they_are_carried(pack_script, tmp_path):
    """Triton's cache names its files by their full paths."""
    cache = tmp_path / "cache" / "KEY"
    cache.mkdir(parents=True)
    files = {name: str(cache / name) for name in ("a.json", "a.cubin", "a.ptx", "a.source")}
    for name, path in files.items():
        Path(path).write_text(name)
    (cache / "__grp__a.json").write_text(json.dumps({"child_paths": files}))
    pack_script.kernels.pack_kernels(cache.parent, tmp_path / "packed.tar.xz")
    pack_script.install.unpack_kernels(tmp_path / "packed.tar.xz", tmp_path / "elsewhere")
    group = json.loads((tmp_path / "elsewhere" / "KEY" / "__grp__a.json").read_text())["child_paths"]
    assert group == {name: str(tmp_path / "elsewhere" / "KEY" / name) for name in ("a.json", "a.cubin")}
    assert {path.name for path in (tmp_path / "elsewhere" / "KEY").iterdir()} == {*group, "__grp__a.json"}


def test_kernels_are_compiled_by_the_triton_that_will_load_them(pack_script, tmp_path, monkeypatch):
    monkeypatch.setattr(pack_script.kernels, "_run", lambda *words: '["3.12", "3.7.1"]')
    with pytest.raises(
        UserError, match=r"is Python 3\.12 with Triton 3\.7\.1, and the other machine has Python 3\.12 w"
    ):
        pack_script.kernels.compile_for("python", "3.12", {"triton": "3.6.0"}, tmp_path / "kernels")


def test_a_kernel_that_does_not_compile_is_named_in_a_line(pack_script):
    errors = (
        "Traceback (most recent call last):\n  File x\nRuntimeError: links for sm_90: CompilationError: at 7:4:\n"
        "    x = tl.load(y)\n        ^\n"
    )
    told = "RuntimeError: links for sm_90: CompilationError: at 7:4: x = tl.load(y) ^"
    assert pack_script.kernels.reason(errors) == told
    assert pack_script.kernels.reason("killed") == "killed" and "not say" in pack_script.kernels.reason("")


def test_of_glue_the_small_tasks_are_taken(pack_script, monkeypatch, tmp_path):
    for folder, rows in (("CoLA", 3), ("SST-2", 9)):
        (tmp_path / "glue" / folder).mkdir(parents=True)
        row = "source\t1\t\tA sentence.\n" if folder == "CoLA" else "A sentence.\t1\n"
        header = "" if folder == "CoLA" else "sentence\tlabel\n"
        for name in ("train.tsv", "dev.tsv"):
            (tmp_path / "glue" / folder / name).write_text(header + row * rows)
    (tmp_path / "glue" / "CoLA" / "unrelated.bin").write_text("")
    monkeypatch.setattr(pack_script.data, "_MOST_EXAMPLES", 8)
    assert pack_script.data.take_glue(str(tmp_path / "glue"), tmp_path / "taken") == ["cola"]
    taken = {path.relative_to(tmp_path / "taken").as_posix() for path in (tmp_path / "taken").rglob("*.*")}
    assert taken == {"CoLA/train.tsv", "CoLA/dev.tsv"}
    with pytest.raises(UserError, match="holds none of GLUE's small tasks"):
        pack_script.data.take_glue(str(tmp_path / "taken" / "CoLA"), tmp_path / "none")


# -----------------------------------------------------------------------------
# The whole.


@pytest.fixture
def bare(tmp_path):
    """The Python of a new environment with every package of this one but CARRIED, and the list of them."""
    folder = tmp_path / "bare"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    have = {}
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"]
        if name.lower().replace("_", "-") in CARRIED:
            continue
        have[name] = package.version
        for top in {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(package.locate_file(top))
    return folder / "bin" / "python", have


@pytest.mark.slow
@pytest.mark.full
def test_a_pack_installs_without_an_index_and_trains(pack_script, bare, tmp_path):
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("packs are for Linux on x86-64")
    python, have = bare
    (tmp_path / "have.txt").write_text("".join(f"{name}=={version}\n" for name, version in have.items()))
    (tmp_path / "text.txt").write_text(
        "\n\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("kernels.md", "reliability.md"))
    )
    pack, folder = tmp_path / "pack", tmp_path / "environment"
    words = ["--python", RUNNING, "--have", tmp_path / "have.txt", "--corpus", tmp_path / "text.txt"]
    pack_script.make(pack, pack_script.parse([str(word) for word in (pack, *words, "--sequence-length", 64)]))
    carried = {path.name.split("-")[0].lower().replace("_", "-") for path in (pack / "wheels").iterdir()}
    assert carried == CARRIED

    def run(*words):
        # As from a shell: nothing of this environment.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP"))}
        process = subprocess.run(
            list(map(str, words)), capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    made = run(python, pack / "install.py", folder, "--tree", ROOT)
    assert made.strip() == str(folder / "bin" / "python")
    code = "import importlib.util as u; print(*(u.find_spec(n).origin for n in ('deepspeed', 'longmix.trainer.cli')))"
    where = run(made.strip(), "-c", code)
    assert all(Path(path).is_relative_to(folder) for path in where.split())
    values = {
        "run": {"dir": str(tmp_path / "run")},
        "model": {"model_type": "transformer", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1},
        "data": {"train": str(pack / "corpus" / "train")},
        "objective": {"name": "mlm"},
        "batch": {"samples": 2, "micro_batch": 2},
        "optim": {"lr": 0.001, "warmup_steps": 1, "max_steps": 2},
        "deepspeed": "zero1",
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    run(folder / "bin" / "longmix", "train", tmp_path / "run.yaml")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == [2]

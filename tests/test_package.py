"""The package: what the wheel holds, which room imports which, and what its folders' names must not break."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = PROJECT["tool"]["setuptools"]["package-dir"]  # longmix.modeling -> modeling, ...
SHIPPED = (".py", ".cpp", ".h", ".json", ".yaml")


def run(*arguments, cwd, **environment):
    """Standard output of a Python process, which must end well."""
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def shipped_files():
    """Every file that belongs into the wheel, as longmix/ROOM/...."""
    return {
        f"longmix/{path.relative_to(ROOT).as_posix()}"
        for room in ROOMS.values()
        for path in (ROOT / room).rglob("*")
        if path.suffix in SHIPPED and "__pycache__" not in path.parts
    }


def module_name(file):
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_every_folder_with_code_is_a_listed_package():
    folders = {module_name(str(Path(name).parent)) for name in shipped_files() if name.endswith(".py")}
    assert folders == set(PROJECT["tool"]["setuptools"]["packages"])


def test_the_folders_that_must_stay_namespaces_have_no_init():
    assert not list((ROOT / "kernels").rglob("__init__.py"))
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, built from a copy (what an earlier build left in the repository must not help), in a folder."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for room in ROOMS.values():
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = ("-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    run(*pip, "install", "--no-deps", "--no-index", "--target", folder / "site", wheel, cwd=folder)
    return wheel, folder / "site"


@pytest.mark.slow
def test_the_wheel_holds_every_file(installed):
    names = {name for name in zipfile.ZipFile(installed[0]).namelist() if not name.split("/")[0].endswith("info")}
    assert names == shipped_files()


@pytest.mark.full
@pytest.mark.slow
def test_the_wheel_works_away_from_the_repository(installed, tmp_path):
    site = installed[1]
    assert "longmix" in run("-m", "longmix.trainer", "--help", cwd=tmp_path, PYTHONPATH=str(site))
    modules = sorted(module_name(name) for name in shipped_files() if name.endswith(".py"))
    if importlib.util.find_spec("triton") is None:
        # These are imported where triton is installed and a GPU is at hand.
        modules = [name for name in modules if not name.endswith(("gpu", "gpu_kernels"))]
    code = f"""
import importlib, pathlib, sys
for name in {[name for name in modules if not name.endswith("__main__")]}:
    path = getattr(importlib.import_module(name), "__file__", None)
    # A namespace folder has no file.
    assert path is None or path.startswith({str(site)!r}), (name, path)
from longmix.trainer.models.field_check import field_mistakes
from longmix.trainer.settings import deepspeed_file, reading
assert deepspeed_file.read("zero1")["zero_optimization"]["stage"] == 1
configs = pathlib.Path(importlib.import_module("longmix.configs").__file__).parent
complete = reading.load([str(configs / "pretrain_s3attention.yaml")], [], field_mistakes)
assert complete.model["model_type"] == "s3attention", complete.model
print("sound")
"""
    assert run("-c", code, cwd=tmp_path, PYTHONPATH=str(site)).endswith("sound\n")


@pytest.fixture
def kernels_package(tmp_path):
    """A folder with a regular package `kernels`, as the registry's: transformers uses it where it is installed."""
    package = tmp_path / "site" / "kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "def __getattr__(name):\n"
        "    if name.startswith('__'):\n"
        "        raise AttributeError(name)\n"
        "    return lambda *arguments, **more: lambda decorated: decorated\n"
    )
    from transformers.utils.import_utils import KERNELS_MIN_VERSION

    about = tmp_path / "site" / f"kernels-{KERNELS_MIN_VERSION}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS_MIN_VERSION}\n")
    (about / "top_level.txt").write_text("kernels\n")
    return package


@pytest.mark.slow
@pytest.mark.full
def test_our_kernels_folder_does_not_hide_the_package_of_that_name(kernels_package):
    """From the repository root, where our folder stands first on the path."""
    path = str(kernels_package.parent)
    assert "longmix" in run("-m", "longmix.trainer", "--help", cwd=ROOT, PYTHONPATH=path)
    code = """
import kernels, torch, transformers
from transformers.integrations import hub_kernels
import longmix.modeling, longmix.kernels.ops
assert hub_kernels.CUDAProperties is not None
model = transformers.BertModel(transformers.BertConfig(
    vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
assert model(input_ids=torch.ones(1, 3, dtype=torch.long)).last_hidden_state.shape == (1, 3, 8)
print(kernels.__file__)
"""
    assert run("-c", code, cwd=ROOT, PYTHONPATH=path).strip() == str(kernels_package / "__init__.py")


# The arrows of the architecture: what each room may import of ours, beside itself.
ARROWS = {
    "kernels": set(),
    "modeling": {"kernels"},
    "data_prep": {"kernels"},  # kernels.common.safe_files alone, as a contract of pyproject.toml says
    "trainer": {"modeling", "kernels", "data_prep", "configs"},
    "configs": set(),
}


def imported_rooms(path):
    """(line, room) of every import of ours in a file, wherever in it the import stands."""
    package = ["longmix", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base += node.module.split(".") if node.module else []
            names = [".".join([*base, alias.name]) for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "longmix" and len(parts) > 1:
                yield node.lineno, parts[1]
            elif parts[0] in ARROWS:
                yield node.lineno, f"{parts[0]} without longmix"


def test_arrows_run_one_way():
    assert set(ARROWS) == set(ROOMS.values())
    found, wrong = set(), []
    for room, allowed in ARROWS.items():
        for path in (ROOT / room).rglob("*.py"):
            for line, other in imported_rooms(path):
                found.add((room, other))
                if other not in allowed | {room}:
                    wrong.append(f"{path.relative_to(ROOT)}:{line} imports {other}")
    assert not wrong, "\n".join(wrong)
    # The search itself works: these arrows are there.
    assert {("trainer", "modeling"), ("trainer", "data_prep"), ("modeling", "kernels")} <= found


def test_no_file_names_a_place_on_somebodys_machine():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    places = re.compile(r"(?<![\w.~-])/(?:home|Users|root|mnt|work|workspace|scratch|opt|tmp)/\w")
    found = [
        f"{name}: {line.strip()}"
        for name in listed.stdout.split("\0")
        if name and (ROOT / name).is_file()
        for line in (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines()
        if places.search(line)
    ]
    assert not found, "\n".join(found)

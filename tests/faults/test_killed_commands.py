"""prepare, finetune, sweep, report, predict and export, killed again and again, come to the same end.

`./test -m faults tests/faults/test_killed_commands.py` makes the long set; `--fault-seed N` repeats its moments.
"""

import collections
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

LONGEST_SECONDS = 600
# Kills of one command in the long set. A sweep's runs are processes of their own, which import torch each time.
KILLS, KILLS_OF_A_SWEEP = 40, 6
# What is measured with a clock.
TIMED = ("tokens_per_second", "data_wait_fraction", "mfu", "gpu_memory_gib")
MARK = "LONGMIX_KILLED_COMMAND"


@dataclass(frozen=True)
class Case:
    """A command, run in a folder of its own.

    Attributes:
        vouched: (a file, what it vouches for): where the first is there, the second is whole, as before or as at the
            end. The first is a glob below the folder; for the second, "." is the file itself and ".." its folder.
        before: what fills the folder at first.
    """

    arguments: list[str]
    vouched: list[tuple[str, str]]
    before: list[list[str]] = field(default_factory=list)


@dataclass
class Life:
    """A command that was killed and started again until it ended.

    Attributes:
        kills: the moment of each, in words.
        orphan_seconds: how long processes of its own outlived it, at most.
    """

    folder: Path
    kills: list[str] = field(default_factory=list)
    orphan_seconds: float = 0.0


class ForkedCommands:
    """The process of forked_commands.py."""

    def __init__(self, folder):
        self._folder = folder
        environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forked_commands.py")],
            env={**environment, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MPLCONFIGDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, arguments, cwd, kill_at=None, kill_after=None):
        """(exit code, changes to files below cwd, seconds), killed before change `kill_at` or after `kill_after` s."""
        temporary = cwd.with_name(f"{cwd.name}.tmp")
        temporary.mkdir(exist_ok=True)
        job = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": {"TMPDIR": str(temporary), MARK: str(self._folder)},
            "console": str(cwd.with_suffix(".log")),
            "root": str(cwd),
            "kill_at": kill_at,
        }
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        process, began = json.loads(self.process.stdout.readline())["process"], time.monotonic()
        # It is waited for only after its end: its number is no other's until then.
        timer = threading.Timer(LONGEST_SECONDS if kill_after is None else kill_after, _kill, [process])
        timer.start()
        ended = json.loads(self.process.stdout.readline())
        timer.cancel()
        return ended["code"], ended["operations"], time.monotonic() - began

    def wait_for_orphans(self):
        """Seconds until no process is left that a command has started."""
        began = time.monotonic()
        while found := [name for name in os.listdir("/proc") if name.isdecimal() and self._is_ours(name)]:
            assert time.monotonic() - began < 60, f"outlive their parent: {[_read(name, 'cmdline') for name in found]}"
            time.sleep(0.02)
        return time.monotonic() - began

    def _is_ours(self, process):
        state = (_read(process, "stat").rpartition(")")[2].split() or ["X"])[0]
        return f"{MARK}={self._folder}\0" in _read(process, "environ") and state not in "ZX"

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def _kill(process):
    os.kill(process, signal.SIGKILL)


def _read(process, name):
    try:
        return Path("/proc", process, name).read_bytes().decode(errors="replace")
    except OSError:
        return ""


_UNFINISHED = re.compile(r"\.(shard-\d+\.parquet|manifest\.json)\.\d+(-\d+)?\.tmp")


def contents(path):
    """What a file or folder holds, by name: equal where nothing but a clock's figures differs."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.exists() else []
    return {str(file.relative_to(path)): _contents(file) for file in files}


def _contents(path):
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    if path.is_dir():
        return "folder"
    if path.name == "metrics.jsonl":
        records = [json.loads(line) for line in path.read_text().splitlines()]
        return [{name: value for name, value in record.items() if name not in TIMED} for record in records]
    if path.name == "config.yaml":
        # It also keeps what was not committed while the run was made.
        return {key: value for key, value in yaml.safe_load(path.read_text()).items() if key != "provenance"}
    return "" if path.suffix == ".log" else hashlib.sha256(path.read_bytes()).hexdigest()


class KilledCommands:
    """Makes each case undisturbed once, and killed as often as is wanted."""

    def __init__(self, folder, commands, cases):
        self._folder, self._commands, self._cases = folder, commands, cases
        self._references = {}

    def _begin(self, name, folder):
        folder.mkdir(parents=True)
        for arguments in self._cases[name].before:
            code, *_ = self._commands.run(arguments, folder)
            assert code == 0, folder.with_suffix(".log").read_text()

    def undisturbed(self, name):
        """(its folder, what that holds at the end, changes to files, seconds)."""
        if name not in self._references:
            folder = self._folder / name.replace(" ", "-") / "undisturbed"
            self._begin(name, folder)
            code, operations, seconds = self._commands.run(self._cases[name].arguments, folder)
            assert code == 0, folder.with_suffix(".log").read_text()
            self._references[name] = folder, contents(folder), operations, seconds
        return self._references[name]

    def live(self, name, generator, kills, number=0):
        """Kill the command so often, at moments that are drawn, or less often where it ends before; then let it end."""
        reference, at_the_end, operations, seconds = self.undisturbed(name)
        case, life = self._cases[name], Life(reference.with_name(f"killed-{number}"))
        begun = life.folder.with_name(f"{life.folder.name}-before")
        self._begin(name, life.folder)
        shutil.copytree(life.folder, begun)
        code = None
        while code != 0 and len(life.kills) < kills:
            if generator.random() < 0.7:
                at = generator.randint(1, operations)
                moment = {"kill_at": at}, f"before change {at} of {operations}"
            else:
                after = generator.uniform(0, 1.1 * seconds)
                moment = {"kill_after": after}, f"after {after:.2f} of {seconds:.2f} s"
            code, *_ = self._commands.run(case.arguments, life.folder, **moment[0])
            if code == 0:
                break
            assert code == -signal.SIGKILL, life.folder.with_suffix(".log").read_text()
            life.kills.append(moment[1])
            life.orphan_seconds = max(life.orphan_seconds, self._commands.wait_for_orphans())
            self._refuse_half_written(case, life, reference, begun)
        if code != 0:
            code, *_ = self._commands.run(case.arguments, life.folder)
            assert code == 0, (life.kills, life.folder.with_suffix(".log").read_text())
        found = contents(life.folder)
        assert set(found) == set(at_the_end), life.kills
        assert [path for path in found if found[path] != at_the_end[path]] == [], life.kills
        assert contents(life.folder.with_name(f"{life.folder.name}.tmp")) == {}, life.kills
        assert self._commands.wait_for_orphans() < LONGEST_SECONDS
        for folder in (life.folder, begun):
            shutil.rmtree(folder)
        return life

    def _refuse_half_written(self, case, life, reference, begun):
        for marker, what in case.vouched:
            for path in life.folder.glob(marker):
                name = path.relative_to(life.folder)
                if any(part.startswith(".") for part in name.parts):
                    continue  # what is being written
                place = {".": name, "..": name.parent}.get(what, Path(what))
                found = contents(life.folder / place)
                # A manifest vouches for the shards that it names, not for one that is written once more.
                found = {name: held for name, held in found.items() if not _UNFINISHED.fullmatch(name)}
                wanted = [contents(folder / place) for folder in (reference, begun)]
                assert found in wanted, (str(path), life.kills)


@pytest.fixture(scope="module")
def materials(tmp_path_factory, run_values, write_run_file):
    """A folder with a corpus, a task of GLUE's, models, run files and the server of commands that made them."""
    folder = tmp_path_factory.mktemp("materials")
    generator = random.Random(0)
    words = [
        "a",
        "the",
        "cat",
        "dog",
        "bird",
        "sees",
        "likes",
        "red",
        "small",
        "old",
        "house",
        "tree",
        "runs",
        "and",
        "or",
    ]
    lines = [" ".join(generator.choices(words, k=generator.randint(2, 6))) for _ in range(4300)]
    (folder / "corpus.txt").write_text("\n\n".join(lines))
    (folder / "glue" / "CoLA").mkdir(parents=True)
    for name, count in (("train", 60), ("dev", 20)):
        rows = [f"x\t{generator.randrange(2)}\t\t{line}" for line in lines[:count]]
        (folder / "glue" / "CoLA" / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    rows = [f"{number}\t{line}" for number, line in enumerate(lines[:12])]
    (folder / "glue" / "CoLA" / "test.tsv").write_text("\n".join(["index\tsentence", *rows]) + "\n")
    _write_bert(folder / "bert", words)
    commands = ForkedCommands(folder)
    tiny = {"model.hidden_size": 16, "optim.max_steps": 6, "checkpoint.every_steps": 2}
    for name, seed in (("run", 0), ("other", 1)):
        values = run_values(folder / name, "s3attention", **tiny, **{"run.seed": seed})
        run_file = write_run_file(folder / f"{name}.yaml", values)
        code, *_ = commands.run(["train", run_file], _made(folder / f"{name}-cwd"))
        assert code == 0, (folder / f"{name}-cwd.log").read_text()
    write_run_file(folder / "sweep.yaml", run_values("runs", "s3attention", **tiny))
    yield folder, commands
    commands.end()


def _made(folder):
    folder.mkdir()
    return folder


def _write_bert(folder, words):
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=16).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=16, **sizes)).save_pretrained(folder)


def _cases(folder):
    text = ["prepare", "text", "--source", str(folder / "corpus.txt"), "--output", "out"]
    task = ["prepare", "adding", "--length", "16", "--output", "out", "--train-samples", "40"]
    export, run = ["export", str(folder / "run"), "--output", "out"], str(folder / "run")
    shards = [("out/*/manifest.json", "..")]
    return {
        "text with workers": Case([*text, "--vocab-size", "40", "--sequence-length", "16", "--workers", "2"], shards),
        "a share of a text": Case(
            [*text, "--vocab-size", "40", "--sequence-length", "16", "--workers", "1", "--share", "0/1"], shards
        ),
        "a task": Case([*task, "--validation-samples", "10", "--test-samples", "10"], shards),
        "finetune": Case(
            [
                "finetune",
                "--model",
                str(folder / "bert"),
                "--task",
                "cola",
                "--data",
                str(folder / "glue"),
                "--output",
                "out",
                "--seeds",
                "1",
                "--epochs",
                "1",
                "--max-length",
                "16",
            ],
            [
                ("out/cola/data/prepared.json", "out/cola/data"),
                ("out/cola/seed-0/result.json", "out/cola/seed-0/model"),
                ("out/cola/seed-0/result.json", "out/cola/seed-0/predictions"),
                ("out/results.json", "out/results.json"),
            ],
        ),
        "report": Case(
            ["report", run, "--output", "out"],
            [("out/*.*", ".")],
            [["report", str(folder / "other"), "--output", "out"]],
        ),
        "predict": Case(
            [
                *("predict", str(folder / "bert"), "--data", str(folder / "glue" / "CoLA" / "test.tsv")),
                *("--text-columns", "sentence", "--embeddings", "--part-rows", "3", "--output", "out.tsv"),
            ],
            [("out.tsv", ".")],
        ),
        "export": Case(export, [("out", "out")]),
        "export with code": Case([*export, "--self-contained"], [("out", "out")]),
        "export over another": Case(
            export, [("out", "out")], [["export", str(folder / "other"), "--output", "out", "--self-contained"]]
        ),
        "sweep": Case(
            ["sweep", str(folder / "sweep.yaml"), "--seeds", "2"],
            [(f"runs/seed-{seed}/model", f"runs/seed-{seed}/model") for seed in (0, 1)],
        ),
    }


@pytest.fixture(scope="module")
def killed_commands(tmp_path_factory, materials):
    folder, commands = materials
    return KilledCommands(tmp_path_factory.mktemp("killed"), commands, _cases(folder))


@pytest.fixture(scope="module")
def tallies():
    """The lives of the long set, by case."""
    return collections.defaultdict(list)


NAMES = (
    "text with workers",
    "a share of a text",
    "a task",
    "finetune",
    "report",
    "predict",
    "export",
    "export with code",
    "export over another",
    "sweep",
)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_killed_and_started_again_it_comes_to_the_same_end(killed_commands, fault_seed, name):
    killed_commands.live(name, random.Random(f"{fault_seed} {name}"), kills=1 if name == "sweep" else 3)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("name", NAMES)
def test_killed_again_and_again_it_comes_to_the_same_end(killed_commands, fault_seed, tallies, record_property, name):
    generator, wanted = random.Random(f"{fault_seed} {name} long"), KILLS_OF_A_SWEEP if name == "sweep" else KILLS
    lives = tallies[name]
    while sum(len(life.kills) for life in lives) < wanted:
        lives.append(killed_commands.live(name, generator, kills=wanted, number=len(lives) + 1))
    moments = [moment for life in lives for moment in life.kills]
    between = sum(moment.startswith("before change") for moment in moments)
    _, _, operations, seconds = killed_commands.undisturbed(name)
    record_property(
        "summary",
        f"fault seed {fault_seed}, {name}: {len(lives)} outputs, {len(moments)} kills, {between} of them before one "
        f"of {operations} changes to a file, the others at any time of {seconds:.2f} s; orphans lived "
        f"{max(life.orphan_seconds for life in lives):.2f} s at most",
    )

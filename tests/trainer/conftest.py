"""A small synthetic data set, run files over it, and the command as a user starts it."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

# What a launcher tells a worker; a run in this process sets them, too, and the command then takes itself for a worker.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE")

VOCABULARY = 96
SPECIAL = {"[CLS]": 0, "[SEP]": 1, "[MASK]": 2, "<pad>": 3, "<unk>": 4}
LONGEST = 24


def ragged_samples(count, seed):
    """Packed rows of 4 to 24 tokens: [CLS] document [SEP] document [SEP]; few tokens are frequent, so that it is soon
    learnt which."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        length = int(generator.integers(4, LONGEST + 1))
        tokens = [SPECIAL["[CLS]"]]
        starts = [0]
        for position in range(1, length - 1):
            if position > 3 and position < length - 3 and generator.random() < 0.1:
                tokens.append(SPECIAL["[SEP]"])
                starts.append(position + 1)
            else:
                tokens.append(min(4 + int(generator.geometric(0.3)), VOCABULARY - 1))
        yield {"input_ids": [*tokens, SPECIAL["[SEP]"]], "document_starts": starts}


def write_ragged(folder, count, seed, **fields):
    from longmix.data_prep.shards import LIST_INT32, write_dataset

    columns = {"input_ids": LIST_INT32, "document_starts": LIST_INT32}
    values = {
        "split": "train",
        "split_rule": "synthetic",
        "vocab_size": VOCABULARY,
        "pad_token_id": SPECIAL["<pad>"],
        "mask_token_id": SPECIAL["[MASK]"],
        "special_token_ids": sorted(SPECIAL.values()),
        "sequence_length": LONGEST,
        "packing": "documents",
        **fields,
    }
    return write_dataset(folder, ragged_samples(count, seed), columns, **values)


@pytest.fixture(autouse=True)
def no_worker(monkeypatch):
    """No test is taken for a worker because a test before it trained in this process."""
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def write_data():
    """write_data(folder, samples, seed, **manifest fields) -> Manifest: a ragged synthetic data set."""
    return write_ragged


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with `train` (150 samples) and `validation` (40)."""
    folder = tmp_path_factory.mktemp("data")
    write_ragged(folder / "train", 150, 1)
    write_ragged(folder / "validation", 40, 2, split="validation")
    return folder


# Fields that make a model tiny; those of a type that is not here stand in its file of ORACLES.
TINY = {
    "flt": {"num_random_features": 8, "num_components": 3, "num_frequencies": 4},
    "wavspa": {"wavelet": "db2"},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "fnet": {"hidden_dropout_prob": 0.0},
}
ORACLES = Path(__file__).parents[1] / "modeling" / "oracles"


def tiny_fields(model_type):
    if model_type in TINY:
        return TINY[model_type]
    return runpy.run_path(str(ORACLES / f"{model_type}.py"))["TINY"]


@pytest.fixture(scope="session")
def tiny_model():
    """tiny_model(model_type) -> the fields that make a model of that type tiny."""
    return tiny_fields


@pytest.fixture(scope="session")
def run_values(data):
    """run_values(folder, "model_type", **{"dotted.key": value}) -> the map of a complete tiny run file."""

    def make(folder, model_type="transformer", **changes):
        model = {"model_type": model_type, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}
        if model_type != "fnet":
            model["num_attention_heads"] = 2
        values = {
            "run": {"dir": str(folder)},
            "model": {**model, **tiny_fields(model_type)},
            "data": {"train": str(data / "train"), "eval": str(data / "validation")},
            "batch": {"samples": 16, "micro_batch": 4},
            "optim": {"lr": 5e-3, "max_steps": 6, "warmup_steps": 2},
            "eval": {"every_steps": 4, "samples": 12},
            "checkpoint": {"every_steps": 2},
            "log": {"every_steps": 1, "tensorboard": False},
            "precision": "fp32",
            "deepspeed": None,
        }
        for key, value in changes.items():
            *parents, last = key.split(".")
            section = values
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = value
        return values

    return make


@pytest.fixture(scope="session")
def write_run_file():
    """write_run_file(path, values) -> path as text."""

    def write(path, values):
        Path(path).write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(scope="session")
def read_metrics():
    """read_metrics(run folder, kind) -> records of metrics.jsonl of that kind (None: all)."""

    def read(folder, kind=None):
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if kind is None or line["kind"] == kind]

    return read


@pytest.fixture(scope="session")
def untimed():
    """untimed(records of metrics.jsonl) -> them without what is measured with a clock."""
    timed = ("tokens_per_second", "data_wait_fraction")
    return lambda records: [{key: value for key, value in record.items() if key not in timed} for record in records]


class Command:
    """A started `longmix`, or any Python, in a process group of its own, that cannot outlive the test."""

    def __init__(self, arguments, cwd, environment):
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**clean_environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait(self, seconds=120):
        """(exit code, stdout and stderr together)."""
        try:
            output, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            output, _ = self.process.communicate()
            pytest.fail(f"did not end within {seconds} s:\n{output}")
        return self.process.returncode, output

    def wait_until(self, condition, seconds=90):
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                if self.process.poll() is None:
                    os.killpg(self.process.pid, signal.SIGKILL)
                pytest.fail(f"ended, or waited {seconds} s in vain:\n{self.process.communicate()[0]}")
            time.sleep(0.02)


def clean_environment():
    """Ours without what an earlier in-process run has set for a lone rank."""
    of_rank = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LONGMIX_HOST_RANK")
    mine = (*of_rank, "MASTER_ADDR", "MASTER_PORT", "LONGMIX_LAUNCHER")
    kept = {name: value for name, value in os.environ.items() if name not in mine}
    return {**kept, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def starter(folder):
    """Yields start(*arguments of python, **environment) -> Command; what still runs at the end is killed."""
    started = []

    def run(*arguments, **environment):
        started.append(Command([str(argument) for argument in arguments], folder, environment))
        return started[-1]

    yield run
    for command in started:
        if command.process.poll() is None:
            os.killpg(command.process.pid, signal.SIGKILL)
            command.process.communicate()


@pytest.fixture
def start(tmp_path):
    """start("-m", "longmix.trainer", ..., NAME=value) -> Command, run in tmp_path."""
    yield from starter(tmp_path)


@pytest.fixture(scope="module")
def start_for_module(tmp_path_factory):
    """`start` for what the tests of a module share."""
    yield from starter(tmp_path_factory.mktemp("started"))


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def free_port():
    """free_port() -> a port of this host that nobody has at the moment."""
    return find_free_port


class ForkedRanks:
    """The process of forked_ranks.py, which takes as long to start as a run to make, and then forks ranks at once."""

    LONGEST_SECONDS = 400

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forked_ranks.py")],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, ranks, jobs, may_fail=False):
        """The report of each job of run_jobs.py, made one after the other by the same ranks; with `may_fail` of those
        that came to their end."""
        self.process.stdin.write(json.dumps({"ranks": ranks, "port": find_free_port(), "jobs": jobs}) + "\n")
        self.process.stdin.flush()
        timer = threading.Timer(self.LONGEST_SECONDS, self.kill)
        timer.start()
        output = []
        for line in self.process.stdout:
            output.append(line)
            if line in ("DONE\n", "FAILED\n"):
                break
        timer.cancel()
        assert output[-1:] == ["DONE\n"] or (may_fail and output[-1:] == ["FAILED\n"]), "".join(output)
        return [json.loads(line.removeprefix("REPORT ")) for line in output if line.startswith("REPORT ")]

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="session")
def forked_ranks(tmp_path_factory):
    """forked_ranks.run(ranks, jobs) -> their reports."""
    server = ForkedRanks(tmp_path_factory.mktemp("forked"))
    yield server
    if server.process.poll() is None:
        server.kill()


@pytest.fixture
def longmix(start):
    """longmix("train", ...) -> Command: the command line in a process of its own."""
    return lambda *arguments, **environment: start("-m", "longmix.trainer", *arguments, **environment)


@pytest.fixture(scope="module")
def world():
    """This process as the only rank of a run, for the tests of a module that train in-process."""
    from torch.nn import functional

    from longmix.trainer.processes import world as distributed

    before, linear = dict(os.environ), functional.linear
    joined = distributed.join()
    yield joined
    distributed.leave(joined)
    functional.linear = linear  # DeepSpeed's stage 3 leaves its own here, which differs in the last bit
    groups = sys.modules.get("deepspeed.utils.groups")
    if groups is not None:
        groups._WORLD_GROUP = None  # DeepSpeed keeps the group, which is gone, for the next module
    for name in set(os.environ) - set(before):
        del os.environ[name]


@pytest.fixture(scope="module")
def interrupted(world, run_values, tmp_path_factory):
    """interrupted(engine) -> a run folder with checkpoints of the steps 2 and 4, made once for each engine."""
    from longmix.trainer.run import loop
    from longmix.trainer.settings import reading

    made = {}

    def make(engine):
        if engine not in made:
            folder = made[engine] = tmp_path_factory.mktemp("interrupted") / "run"
            changes = {"deepspeed": engine, "run.stop_at_step": 4, "data.eval": None}
            loop.train(reading.from_dict(run_values(folder, **changes), "test"), world)
        return made[engine]

    return make


@pytest.fixture(scope="session")
def rewrite_manifest():
    """rewrite_manifest(folder): let a checkpoint's manifest say that what is there is what was written."""
    from longmix.trainer.checkpoints import hashed_files

    def rewrite(folder):
        step = json.loads((folder / "manifest.json").read_text())["step"]
        (folder / "manifest.json").unlink()
        entries = hashed_files.entries(folder, folder)
        (folder / "manifest.json").write_text(json.dumps({"step": step, "files": entries}))

    return rewrite


@pytest.fixture
def train(world, run_values):
    """train(folder, model type, **changes) -> Outcome of a tiny in-process run."""
    from longmix.trainer.run import loop
    from longmix.trainer.settings import reading

    def run(folder, model_type="transformer", **changes):
        return loop.train(reading.from_dict(run_values(folder, model_type, **changes), "test"), world)

    return run

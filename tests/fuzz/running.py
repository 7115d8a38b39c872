"""Running a case: in a process forked from one that has imported everything, or as the command that a user types.

A case is KIND:SEED:INDEX, and nothing else decides what it is.
"""

import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .all_kinds import KINDS
from .attack import Attack, Ended, Workshop, harm, look
from .mutations import remove

ROOT = Path(__file__).resolve().parents[2]
# What a case may use. The largest sound one needs a hundredth of the time and a tenth of the memory; a case that is
# still there after LONGEST_SECONDS waits for something that never comes.
LONGEST_SECONDS, LONGEST_REAL_SECONDS, MOST_CPU_SECONDS = 60, 180, 40
MOST_MEMORY, LARGEST_FILE = 4 * 2**30, 2**28
# Of the host and of other tests: no case sees them.
REMOVED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LONGMIX_LAUNCHER")
REMOVED += ("XDG_CACHE_HOME", "LONGMIX_KERNELS", "CUDA_VISIBLE_DEVICES")
SET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu"}
IMPORTED_ONCE = (
    "accelerate",
    "deepspeed.checkpoint.ds_to_universal",
    "deepspeed.ops.op_builder.all_ops",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "matplotlib.backends.backend_svg",
    "pandas",
    "pyarrow.parquet",
    "sklearn.metrics",
    "transformers.conversion_mapping",
    "transformers.loss.loss_utils",
    "transformers.models.auto.modeling_auto",
    "longmix.modeling",
    "longmix.trainer.__main__",
    "longmix.trainer.export.publish",
    "longmix.trainer.finetune.session",
    "longmix.trainer.report.plots",
    "longmix.trainer.run.loop",
    "longmix.data_prep.text.prepare",
)


@dataclass
class Verdict:
    """What became of a case. `failure` is None if the end was a right one."""

    case: str
    is_real: bool
    what: str
    command: str
    code: int | None
    failure: str | None
    last_line: str
    seconds: float
    cpu_seconds: float

    def line(self) -> str:
        return f"{self.case}{' --real' * self.is_real}  {self.failure}  [{self.what}]  $ {self.command}"

    def values(self) -> dict:
        return asdict(self)


def import_once() -> None:
    """Import what takes seconds, for the processes that are forked from this one."""
    import gc
    import importlib

    os.environ.update(SET)
    for name in IMPORTED_ONCE:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    import transformers

    transformers.AutoModelForMaskedLM  # noqa: B018 - transformers imports it now
    transformers.AutoModelForSequenceClassification  # noqa: B018
    # A collection in a child would write to, and so copy, every page of what has been imported.
    gc.freeze()


def prepare(case: str, folder: Path, sound: Path) -> tuple[Workshop, Attack]:
    """The folder of a case and its command. What `folder` held is removed."""
    kind, seed, index = case.split(":")
    remove(folder)
    shop = Workshop(folder, sound, random.Random(f"{kind}:{seed}:{index}"))
    return shop, KINDS[kind](shop)


# -----------------------------------------------------------------------------
# The judgement.


def judge(shop: Workshop, attack: Attack, before: dict, ended: Ended | None) -> str | None:
    """What is wrong with an end; `ended` is None for a case that never ends."""
    if ended is None:
        return "it never ends"
    if ended.code < 0:
        return f"ended by {signal.Signals(-ended.code).name}"
    if "Traceback (most recent call last)" in ended.stderr + ended.stdout:
        return "traceback"
    told = re.findall(r"^(?:longmix|quickstart): error: .*$", ended.stderr, re.MULTILINE)
    if ended.code not in (0, 2, *attack.codes):
        return f"exit code {ended.code}"
    if ended.code == 2 and len(told) != 1:
        return f"exit code 2 with {len(told)} lines that say why"
    if ended.code == 2 and ended.stderr.rstrip("\n").rpartition("\n")[2] != told[0]:
        return "the line that says why is not the last"
    if ended.code == 1 and not re.search(attack.faults, ended.stdout + ended.stderr):
        return "exit code 1 without a fault of the machine"
    if ended.code == 1 and len(told) > 1:
        return f"exit code 1 with {len(told)} lines that say why"
    if ended.code in (0, 75) and told:
        return f"exit code {ended.code} with an error line"
    control = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\u202e\udc80-\udcff]", ended.stdout + ended.stderr)
    if control:
        return f"{control[0]!a} reached the console"
    harmed = harm(before, look(shop.folder), attack.writes)
    if harmed:
        return f"harm: {'; '.join(harmed[:4])}"
    if ended.code == 0:
        wrong = attack.check(shop, ended)
        if wrong is not None:
            return f"wrong result: {wrong}"
    return None


def cause(ended: Ended | None) -> str:
    """The end of what a command said, for a reader: of a traceback its last place of ours and its error."""
    if ended is None:
        return ""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    places = re.findall(r'File ".*?/((?:trainer|data_prep|modeling|kernels)/[^"]*)", line (\d+)', ended.stderr)
    errors = [line for line in lines if re.match(r"^[\w.]+(Error|Exception|Interrupt|Exit|Warning)?\b.*", line)]
    last = (errors or lines or [""])[-1]
    if places and "Traceback" in ended.stderr:
        last = f"{places[-1][0]}:{places[-1][1]}: {last}"
    return ascii(last)[1:-1][:400]


# -----------------------------------------------------------------------------
# Processes.


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_SECONDS, MOST_CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _environment(shop: Workshop, attack: Attack) -> dict[str, str]:
    values = {name: value for name, value in os.environ.items() if name not in REMOVED}
    values |= SET | {"HOME": str(shop.home), "TMPDIR": str(shop.folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
    for name, value in attack.environment.items():
        values.pop(name, None)
        if value is not None:
            values[name] = value
    return values


class Running:
    """A command that runs, in a process group of its own."""

    def __init__(self, case: str, shop: Workshop, attack: Attack, is_real: bool):
        self.case, self.shop, self.attack, self.is_real = case, shop, attack, is_real
        self.before = look(shop.folder)
        self.began = time.monotonic()
        self.stdout, self.stderr = shop.folder.with_suffix(".out"), shop.folder.with_suffix(".err")
        with open(self.stdout, "wb") as stdout, open(self.stderr, "wb") as stderr:
            self.pid = (self._start if is_real else self._fork)(stdout.fileno(), stderr.fileno())

    def _start(self, stdout: int, stderr: int) -> int:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"longmix.{self.attack.program}", *self.attack.argv],
            cwd=self.shop.work,
            env=_environment(self.shop, self.attack),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=lambda: _limit(16 * 2**30),
        )
        return self._process.pid

    def _fork(self, stdout: int, stderr: int) -> int:
        child = os.fork()
        if child:
            return child
        try:
            os.setsid()
            for number, stream in ((0, os.open(os.devnull, os.O_RDONLY)), (1, stdout), (2, stderr)):
                os.dup2(stream, number)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            environment = _environment(self.shop, self.attack)
            os.chdir(self.shop.work)
            used = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
            _limit(used + MOST_MEMORY)
            run_entry(self.attack.program, self.attack.argv, environment)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)

    def result(self) -> Verdict | None:
        """The verdict once the command has ended, or must be ended; else None."""
        seconds = time.monotonic() - self.began
        is_endless = seconds > (LONGEST_REAL_SECONDS if self.is_real else LONGEST_SECONDS)
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and not is_endless:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        ended = None
        if not is_endless:
            texts = [path.read_bytes().decode("utf-8", "surrogateescape") for path in (self.stdout, self.stderr)]
            ended = Ended(os.waitstatus_to_exitcode(status), *texts, self.attack.argv)
        try:
            failure = judge(self.shop, self.attack, self.before, ended)
        except Exception as error:
            failure = f"the check itself failed: {error!r}"
        words = " ".join(
            ascii(word)[1:-1] if word.isprintable() is False or " " in word else word for word in self.attack.argv
        )
        code = ended.code if ended else None
        used = round(usage.ru_utime + usage.ru_stime, 2)
        return Verdict(
            self.case,
            self.is_real,
            self.attack.what,
            words.encode("ascii", "backslashreplace").decode(),
            code,
            failure,
            cause(ended),
            round(seconds, 2),
            used,
        )


def run_entry(program: str, argv: list[str], environment: dict[str, str]) -> None:
    """The end of a forked process: it becomes `python -m longmix.PROGRAM ARGV`, without an interpreter's start."""
    import atexit
    import runpy
    import tempfile

    atexit._clear()
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    subprocess.Popen = _Forked
    sys.argv = ["longmix", *argv]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if program == "trainer":
        from longmix.trainer.__main__ import run

        run()
    code = 1
    try:
        runpy.run_module(f"longmix.{program}", run_name="__main__", alter_sys=False)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Forked(subprocess.Popen):
    """In the place of subprocess.Popen: what would be another `python -m longmix...` is forked, too."""

    def __init__(self, args, *rest, **options):
        self._is_ours = isinstance(args, list) and args[:2] == [sys.executable, "-m"] and args[2].startswith("longmix.")
        if self._is_ours:
            self._fork(args, **options)
        else:
            super().__init__(args, *rest, **options)

    def _fork(self, args, stdin=None, stdout=None, stderr=None, env=None, **_):
        self.args, self.returncode, self._child_created = args, None, False
        sys.stdout.flush()
        sys.stderr.flush()
        given = os.pipe() if stdin == subprocess.PIPE else None
        self.pid = os.fork()
        if self.pid:
            if given is not None:
                os.close(given[0])
                self.stdin = open(given[1], "wb")  # noqa: SIM115 - closed by whoever has something to say
            return
        try:
            if given is not None:
                os.close(given[1])
                stdin = given[0]
            for number, stream in ((0, stdin), (1, stdout)):
                if stream is not None:
                    os.dup2(stream if isinstance(stream, int) else stream.fileno(), number)
            if stderr == subprocess.STDOUT:
                os.dup2(1, 2)
            elif stderr is not None:
                os.dup2(stderr if isinstance(stderr, int) else stderr.fileno(), 2)
            run_entry(args[2].removeprefix("longmix."), args[3:], dict(os.environ if env is None else env))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def poll(self):
        return self._ended(os.WNOHANG) if self._is_ours else super().poll()

    def wait(self, timeout=None):
        return self._ended(0) if self._is_ours else super().wait(timeout)

    def _ended(self, options):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def make_sound(folder: Path) -> None:
    """Make the sound input in a process of its own."""
    from . import sound

    child = os.fork()
    if child == 0:
        code = 1
        try:
            log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
            for number in (1, 2):
                os.dup2(log, number)
            for name in REMOVED:
                os.environ.pop(name, None)
            sound.make(folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError(f"the sound input cannot be made:\n{folder.with_suffix('.log').read_text()}")


def run_all(cases: list[tuple[str, bool]], folder: Path, jobs: int) -> Iterator[Verdict]:
    """The verdicts of (case, whether as a real command), `jobs` at a time, as they come. Call import_once before."""
    sound = folder / "sound"
    if not sound.is_dir():
        make_sound(sound)
    waiting, running = list(cases), []
    places = [f"case-{number}" for number in range(jobs)]
    while waiting or running:
        while waiting and places:
            case, is_real = waiting.pop(0)
            place = places.pop()
            try:
                running.append((place, Running(case, *prepare(case, folder / place, sound), is_real)))
            except Exception as error:
                raise RuntimeError(f"{case} cannot be made: {error!r}") from error
        for entry in list(running):
            verdict = entry[1].result()
            if verdict is not None:
                running.remove(entry)
                places.append(entry[0])
                yield verdict
        time.sleep(0.005)

"""Commands of longmix, forked from one process that has imported everything: one that is killed soon costs little.

`python forked_commands.py` reads a command from each line of its input, {"arguments", "cwd", "environment", "console",
"root", "kill_at"}, and writes {"process"} when it has begun and {"code", "operations"} when it has ended.

The command's file operations below `root` are counted; before the one of number `kill_at` (null: none) it gets SIGKILL.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import sys
from pathlib import Path

# What takes seconds to import; also what torch, pandas and transformers import when they are used.
IMPORTED_ONCE = (
    "accelerate",
    "pandas",
    "pyarrow.parquet",
    "scipy.stats",
    "sentencepiece",
    "sklearn.metrics",
    "torch.utils.tensorboard",
    "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.tokenization_utils_sentencepiece",
    "longmix.modeling.s3attention",
    "longmix.data_prep.text.prepare",
    "longmix.trainer.__main__",
    "longmix.trainer.export.self_contained",
    "longmix.trainer.finetune.session",
    "longmix.trainer.report.page",
    "longmix.trainer.run.loop",
)
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate")


class FileOperations:
    """Counts this process's changes to files below a folder; a forked or started one has a count of its own."""

    def __init__(self, root: str, kill_at: int | None):
        self.count, self._root, self._kill_at, self._process = 0, root, kill_at, os.getpid()
        sys.addaudithook(self._note)

    def _note(self, event, arguments):
        is_change = event in CHANGES or (event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        if is_change and os.getpid() == self._process and self._is_below(arguments[0]):
            self.count += 1
            if self.count == self._kill_at:
                os.kill(self._process, signal.SIGKILL)

    def _is_below(self, path):
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(self._root + os.sep)


def run(arguments, cwd, environment, console, root, kill_at, told):
    """In the child: the command as in a process of its own. It never returns."""
    os.setsid()
    os.chdir(cwd)
    os.environ.update(environment)
    descriptor = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv[:] = ["longmix", *arguments]
    from longmix.trainer.__main__ import run as command

    operations = FileOperations(root, kill_at)
    atexit.register(lambda: Path(told).write_text(str(operations.count)))
    try:
        command()
    finally:
        os._exit(70)


def main():
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        told = Path(job["console"] + ".operations")
        told.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            run(**job, told=str(told))
        print(json.dumps({"process": child}), flush=True)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        # Empty: killed while it was written.
        operations = told.read_text() if told.exists() else ""
        print(json.dumps({"code": code, "operations": int(operations) if operations else None}), flush=True)


if __name__ == "__main__":
    main()

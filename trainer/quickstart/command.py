"""The stages of a quickstart, one after the other, and the exit code."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from ..processes.ending import exit_code
from ..settings.exit_codes import FINISHED, INTERRUPTED, OURS, USER_MISTAKE
from . import masks, stages
from .arguments import parse
from .commands import CommandFailed
from .plan import Plan
from .table import closing_table

# Stage 1 is the environment, which ./quickstart makes.
_STAGES = 6


def main(argv: list[str]) -> int:
    """Run all stages. Returns the exit code: as that of every command."""
    arguments = parse(argv)
    return exit_code(lambda: _run(arguments), "quickstart")


def _run(arguments: argparse.Namespace) -> int:
    names = ("text", "column", "format", "glue", "minutes", "megabytes")
    settings = {name: getattr(arguments, name) for name in names}
    try:
        plan = Plan.open(arguments.output, settings, _devices())
        corpus = _stage(2, "Text", lambda: stages.prepare_text(plan))
        _stage(3, "Pre-training", lambda: stages.pretrain(plan))
        _stage(4, "The checkpoint, loaded back with from_pretrained", lambda: masks.guess(plan))
        task = _stage(5, "Fine-tuning", lambda: stages.finetune(plan))
        print(f"\n[6/{_STAGES}] Result\n{closing_table(plan, corpus, task)}")
    except CommandFailed as failed:
        if failed.code == INTERRUPTED:
            raise KeyboardInterrupt from None
        return failed.code if failed.code == USER_MISTAKE else OURS
    return FINISHED


def _stage(number: int, title: str, work: Callable[[], Any]) -> Any:
    print(f"\n[{number}/{_STAGES}] {title}", flush=True)
    started = time.monotonic()
    result = work()
    seconds = round(time.monotonic() - started)
    print(f"({seconds // 60}:{seconds % 60:02d} minutes)", flush=True)
    return result


def _devices() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0

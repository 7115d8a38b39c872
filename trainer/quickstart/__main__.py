"""`python -m longmix.trainer.quickstart`: what ./quickstart runs in its environment."""

import sys
import time
from collections.abc import Callable
from typing import Any

from longmix.data_prep.errors import UserError

from ..settings.exit_codes import INTERRUPTED, OURS, USER_MISTAKE
from . import stages
from .arguments import parse
from .commands import CommandFailed
from .plan import Plan
from .table import closing_table

# Stage 1 is the environment, which ./quickstart makes.
_STAGES = 6


def main(argv: list[str]) -> int:
    """Run all stages. Returns 0, 2 (the user's mistake), 75 (interrupted: the same command goes on) or 1 (ours)."""
    arguments = parse(argv)
    settings = {name: getattr(arguments, name) for name in ("text", "glue", "minutes", "megabytes")}
    try:
        plan = Plan.open(arguments.output, settings, _devices())
        corpus = _stage(2, "Text", lambda: stages.prepare_text(plan))
        _stage(3, "Pre-training", lambda: stages.pretrain(plan))
        _stage(4, "The checkpoint, loaded back with from_pretrained", lambda: stages.fill_in(plan))
        task = _stage(5, "Fine-tuning", lambda: stages.finetune(plan))
        print(f"\n[6/{_STAGES}] Result\n{closing_table(plan, corpus, task)}")
    except UserError as error:
        print(f"quickstart: error: {error}", file=sys.stderr)
        return 2
    except CommandFailed as failed:
        if failed.code == INTERRUPTED:
            print("quickstart: interrupted; the same command goes on from here", file=sys.stderr)
        return failed.code if failed.code in (USER_MISTAKE, INTERRUPTED) else OURS
    except KeyboardInterrupt:
        print("quickstart: interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    return 0


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

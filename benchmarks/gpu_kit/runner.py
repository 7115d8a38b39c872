"""The stages in their order, each within its share of the time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_kit import learning, proofs, speeds, training
from gpu_kit.processes import Outcome, Workers
from gpu_kit.records import DONE, Measurement, Records
from gpu_kit.setting import Setting


@dataclass(frozen=True)
class Stage:
    """A part of the kit.

    Attributes:
        title: for people.
        plan: (setting, records, seconds of the stage) -> what to measure, the most telling first.
        weight: its share of the time, against those of the stages behind it.
    """

    title: str
    plan: Callable[[Setting, Records, float], list[Measurement]]
    weight: float


STAGES = {
    1: Stage("what is here, and every kernel against the equations", lambda setting, *_: proofs.plan(setting), 2.0),
    2: Stage("blocks, operations and attentions by every way", lambda setting, *_: speeds.plan(setting), 3.0),
    3: Stage("whole models in training", lambda setting, *_: training.plan(setting), 4.0),
    4: Stage("learning on an equal budget", learning.plan, 2.0),
}


def share(seconds: float, stages: list[int]) -> float:
    """The part of `seconds` that the first of `stages` may take: what it leaves is for those behind it."""
    return seconds * STAGES[stages[0]].weight / sum(STAGES[number].weight for number in stages)


class Console:
    """Lines for whoever waits."""

    def __init__(self, end: float):
        self.end = end

    def say(self, text: str) -> None:
        left = max(0.0, self.end - time.monotonic())
        print(f"[{int(left) // 60}:{int(left) % 60:02d} left] {text}", flush=True)


def run_stage(
    number: int, setting: Setting, records: Records, workers: Workers, deadline: float, console: Console
) -> None:
    """Make what is due of a stage until time.monotonic() is `deadline`; every end is recorded at once."""
    planned = STAGES[number].plan(setting, records, deadline - time.monotonic())
    due = records.due(planned)
    records.append(f"{number}/plan", DONE, answer=[one.key for one in planned])
    console.say(f"stage {number}: {STAGES[number].title}; {len(due)} of {len(planned)} measurements to make")
    ended = 0

    def told(measurement: Measurement, outcome: Outcome) -> None:
        nonlocal ended
        ended += 1
        if outcome.status is not None:
            records.append(
                measurement.key,
                outcome.status,
                answer=outcome.answer,
                seconds=round(outcome.seconds, 1),
                commit=setting.commit,
            )
        about = "" if isinstance(outcome.answer, dict) else f": {outcome.answer}"
        console.say(
            f"{ended}/{len(due)} {measurement.key}: {outcome.status or 'cut off'}{about} ({outcome.seconds:.0f} s)"
        )

    side_by_side = [one for one in due if not one.alone]
    workers.run(side_by_side, setting.together, deadline, told)
    workers.run([one for one in due if one.alone], 1, deadline, told)

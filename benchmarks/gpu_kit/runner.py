"""The stages in their order, each within its share of the time."""

import importlib
import itertools
import time
from dataclasses import dataclass

from gpu_kit.processes import Outcome, Workers
from gpu_kit.records import DONE, Measurement, Records
from gpu_kit.setting import Setting


@dataclass(frozen=True)
class Stage:
    """A part of the kit.

    Attributes:
        title: for people.
        module: its `plan(setting, records, seconds of the stage)` says what to measure, the most telling first.
        weight: its share of the time, against those of the stages behind it.
    """

    title: str
    module: str
    weight: float


STAGES = {
    1: Stage("what is here, and every kernel against the equations", "gpu_kit.proofs", 2.0),
    2: Stage("blocks, operations and attentions by every way", "gpu_kit.speeds", 3.0),
    3: Stage("whole models in training", "gpu_kit.training", 4.0),
    4: Stage("learning on an equal budget", "gpu_kit.learning", 2.0),
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
    plan = importlib.import_module(STAGES[number].module).plan
    planned = plan(setting, records, deadline - time.monotonic())
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
        console.say(
            f"{ended}/{len(due)} {measurement.key}: {outcome.status or 'no row'}{told_of(outcome.answer)} "
            f"({outcome.seconds:.0f} s)"
        )

    # In the order of the plan; neighbours that are not timed run side by side.
    for is_alone, group in itertools.groupby(due, key=lambda one: one.alone):
        workers.run(list(group), 1 if is_alone else setting.together, deadline, told)


def told_of(answer: dict | str) -> str:
    """What there is to say of a measurement, so that the console has its figures, too, or the reason that there are
    none."""
    if isinstance(answer, str):
        return f": {answer}"
    if answer.get("wrong"):
        return f", but WRONG: {answer['wrong'][0]}"
    if answer.get("cases"):
        result, gradient = (max(case[index] for case in answer["cases"].values()) for index in (0, 1))
        return f": {len(answer['cases'])} inputs, largest errors {result:.1e} and {gradient:.1e}"
    if "both" in answer:
        times = {"forward": answer["forward"], "both": answer["both"], "by a graph": answer["graph"]}
        return ": " + ", ".join(f"{name} {time['median']:.3g}" for name, time in times.items() if time) + " ms"
    if "tokens_per_second" in answer:
        return f": {answer['tokens_per_second']:,.0f} tokens/s"
    return ""

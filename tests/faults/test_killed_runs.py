"""Whatever is killed, whenever: resumed until it is done, a run equals the one that nobody disturbed, bit for bit.

`./test -m faults tests/faults/test_killed_runs.py` makes all twenty runs; `--fault-seed N` repeats the moments.
"""

import random
import statistics

import pytest

RUNS = 20
# The setting of each run, in turn.
SETTINGS = ("two ranks", "behind the loop", "one rank", "two ranks", "behind the loop", "stage 3")
MANY = 3
KINDS = ["save"] * 16 + ["step"] * 8 + ["evaluation"] * 8 + ["start"] * 7
VICTIMS = (1, "all", 0, "launcher")


def plan(seed):
    """[(setting, [(kind, victim)])] of all runs, with one to three kills each; the first of none at the start."""
    generator = random.Random(seed)
    counts = [1 + number % MANY for number in range(RUNS)]
    generator.shuffle(counts)
    kinds = [kind for kind in KINDS if kind != "start"]
    generator.shuffle(kinds)
    firsts, rest = kinds[:RUNS], [*kinds[RUNS:], *(kind for kind in KINDS if kind == "start")]
    generator.shuffle(rest)
    victims, runs = 0, []
    for number, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        setting = SETTINGS[number % len(SETTINGS)]
        faults = []
        for kind in [first, *(rest.pop() for _ in range(count - 1))]:
            faults.append((kind, "all" if setting == "one rank" else VICTIMS[victims % len(VICTIMS)]))
            victims += setting != "one rank"
        runs.append((setting, faults))
    return runs


@pytest.fixture(scope="module")
def done():
    """What became of the runs of this session, by number."""
    return {}


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    ("setting", "kinds"),
    [("two ranks", [("save", 1)]), ("behind the loop", [("step", 0)]), ("one rank", [("evaluation", "all")])],
    ids=["two-ranks", "behind-the-loop", "one-rank"],
)
def test_killed_and_resumed_it_is_the_same_run(faulty_runs, draw_faults, setting, kinds):
    faulty_runs.undisturbed(setting)
    run = faulty_runs.run(f"{setting} killed", setting, draw_faults(setting, kinds))
    assert [(kill.kind, kill.victim) for kill in run.kills] == kinds
    assert run.kills[0].resumed > 0
    faulty_runs.assert_as_undisturbed(run, setting)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("number", range(RUNS))
def test_each_of_twenty_runs_is_the_same_run(faulty_runs, draw_faults, fault_seed, done, number):
    setting, kinds = plan(fault_seed)[number]
    undisturbed = faulty_runs.undisturbed(setting)
    undisturbed.wait()
    run = faulty_runs.run(f"run-{number}", setting, draw_faults(number, kinds))
    faulty_runs.assert_as_undisturbed(run, setting)
    assert any(kill.resumed > 0 for kill in run.kills)
    done[number] = (setting, run, (run.seconds - undisturbed.seconds) / len(run.kills))


@pytest.mark.slow
@pytest.mark.faults
def test_the_twenty_runs_were_killed_in_all_ways(done, fault_seed, record_property):
    if len(done) < RUNS:
        pytest.skip(f"{len(done)} of {RUNS} runs were made")
    kills = [kill for _, run, _ in done.values() for kill in run.kills]
    resumed = [kill for kill in kills if kill.resumed > 0]
    counts = {kind: sum(kill.kind == kind for kill in kills) for kind in sorted(set(KINDS))}
    of_one_rank = sum(isinstance(kill.victim, int) for kill in kills)
    repeated = statistics.median(kill.reached - kill.resumed for kill in resumed)
    gone = statistics.median(kill.seconds for kill in kills)
    lost = statistics.median(seconds for *_, seconds in done.values())
    summary = [
        f"fault seed {fault_seed}: {len(done)} runs, {len(kills)} kills {counts}, {of_one_rank} of one rank only,",
        f"{len(resumed)} resumes from a step above 0",
        *(f"run {number:2} ({kind}): {'; '.join(map(str, run.kills))}" for number, (kind, run, _) in done.items()),
        f"medians of a kill: {lost:.1f} s lost in all, {repeated:g} steps made again, {gone:.2f} s to the last process",
    ]
    record_property("summary", "\n".join(summary))
    assert counts["save"] >= 8 and len(resumed) >= 8 and of_one_rank >= 4

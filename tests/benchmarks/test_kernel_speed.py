"""The benchmark of kernels: what it compares is what it says, what is wrong is not timed, and its figures are drawn."""

import functools
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longmix.kernels import ops

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(script, tmp_path, monkeypatch):
    """A results.csv of its own, empty."""
    monkeypatch.setattr(script("record"), "RESULTS", tmp_path / "results.csv")
    return tmp_path / "results.csv"


@pytest.fixture
def document(script, tmp_path, monkeypatch):
    """A copy of docs/kernels.md that the report draws into."""
    path = tmp_path / "kernels.md"
    path.write_text((ROOT / "docs" / "kernels.md").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(script("kernel_report"), "DOCUMENT", path)
    return path


def all_cases(script):
    cases = script("kernel.cases")
    return [*cases.OPERATIONS.values(), *cases.LAYERS.values()]


@pytest.mark.full
def test_every_competitor_of_every_case_passes_the_gate(script):
    gate = script("kernel.gate")
    for case in all_cases(script):
        gate.check(case, case.implementations(CPU), gate.SMALL, CPU, torch.float32)


@pytest.mark.parametrize("at_fault", ["result", "gradient"])
def test_a_wrong_competitor_is_refused(script, monkeypatch, at_fault):
    gate, cases, baselines = script("kernel.gate"), script("kernel.cases"), script("kernel.baselines")
    right = baselines.givens_mix

    def wrong(value, upper, lower, phase):
        result = right(value, upper, lower, phase)
        # The result shifted, or the gradient alone.
        return result + 1e-3 if at_fault == "result" else result + 1e-2 * (upper - upper.detach()).sum()

    monkeypatch.setattr(baselines, "givens_mix", wrong)
    case = cases.OPERATIONS["givens_mix"]
    gate.check(case, ["auto"], 70, CPU, torch.float32)
    with pytest.raises(gate.WrongResultError, match=f"givens_mix, baseline, N=70: the {at_fault}"):
        gate.check(case, ["auto", "baseline"], 70, CPU, torch.float32)


def test_the_implementation_that_is_named_is_what_runs(script, monkeypatch):
    kinds, baselines = script("kernel.kinds"), script("kernel.baselines")
    monkeypatch.setenv("LONGMIX_KERNELS", "reference")
    called = set()

    def spy(name):
        right = getattr(baselines, name)
        return lambda *arguments, **keywords: called.add(name) or right(*arguments, **keywords)

    for name in (name for name in ops.OPERATIONS if hasattr(baselines, name)):
        wrapped = functools.wraps(getattr(baselines, name))(spy(name))  # with the signature of what it wraps
        monkeypatch.setattr(baselines, name, wrapped)
    competing = set()
    for case in all_cases(script):
        prepared = case.prepare(16, CPU, torch.float32)
        for name in case.implementations(CPU):
            called.clear()
            with kinds.using(name):
                prepared.forward()
                if case.operations and name != "baseline":
                    chosen = {ops.implementation(operation, "cpu") for operation in case.operations}
                    assert chosen == {{"auto": "cpu"}.get(name, name)}
            # One baseline may call another.
            assert called >= set(case.operations) if name == "baseline" else not called
            assert ops.implementation("givens_mix", "cpu") == "reference"
            competing.add((case.name, name))
    assert {("givens_mix", "baseline"), ("converter", "baseline"), ("flt", "portable")} <= competing


def test_a_baseline_refuses_what_it_does_not_know(script):
    with (
        script("kernel.kinds").using("baseline"),
        pytest.raises(ValueError, match="wrap is False; allowed: what the baseline of link_mix assumes"),
    ):
        ops.link_mix(torch.ones(1, 3, 2), torch.ones(1, 3, 1, 1), torch.ones(1, 1, dtype=torch.int64), wrap=False)


def test_competitors_take_turns_and_slow_ones_run_once(script, monkeypatch):
    measuring = script("measuring")
    clock = itertools.accumulate(itertools.count())  # 0, 1, 3, 6, ...: nobody waits, every sample is longer
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(clock))
    order = []
    competitors = [measuring.Competitor(name, lambda name=name: order.append(name)) for name in "abc"]
    monkeypatch.setattr(measuring, "SLOW", 5.5)
    found = measuring.interleaved(competitors, 0.0, CPU)
    # The first runs take 1, 3 and 5 on this clock, the others more.
    assert "".join(order) == "abc" + "abc" * measuring.FEWEST_ROUNDS
    assert {len(times) for times in found.values()} == {measuring.FEWEST_ROUNDS}
    order.clear()
    found = measuring.interleaved(competitors, 0.0, CPU)
    assert "".join(order) == "abc" and {len(times) for times in found.values()} == {1}


def test_peak_memory_counts_what_comes_and_goes_every_time():
    code = f"""
import sys, torch
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
import measuring
torch.set_num_threads(1)
measuring.return_memory()
def call(size=1 << 20):
    temporary = torch.ones(16 * size)
    return temporary[: 4 * size] + temporary[4 * size : 8 * size]
call(2 << 20)  # more than is measured
competitor = measuring.Competitor("", call)
for _ in range(2):
    print(measuring.peak_memory(competitor, torch.device("cpu")))
measuring.limit_memory(64 << 20)
try:
    call()
except RuntimeError as error:
    print("allocate memory" in str(error))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    first, second, refused = process.stdout.split()
    # 64 MiB for a moment, and 16 MiB of result.
    assert abs(int(first) - (80 << 20)) < 2 << 20 and abs(int(second) - (80 << 20)) < 2 << 20
    assert refused == "True"


@pytest.mark.full
def test_memory_is_measured_in_another_process(script):
    with script("kernel_memory").MemoryMeter(1, torch.float32) as meter:
        small, large = (meter.measure("lifting", "auto", 4096, method) for method in ("forward", "gradients"))
        meter.process.kill()
        again = meter.measure("lifting", "auto", 4096, "forward")
    result = 2 * 4096 * 128 * 4
    # Result and bands; beside them the gradient.
    assert 1.8 * result < small < 2.5 * result and small < large < 4.5 * result
    assert again is None or abs(again - small) < 1 << 20
    assert meter.process.returncode is not None


def test_the_least_moved_is_what_must_be_read_and_written(script):
    operations = script("kernel.cases").OPERATIONS
    value, angles = 2 * 64 * 128 * 2 * 4, 2 * (6 * 63 + 64) * 4
    forward, both = operations["givens_mix"].least_moved(64, torch.float32)
    assert (forward, both) == (2 * value + angles, 5 * value + 3 * angles)
    rows, taps = 2 * 64 * 128 * 2, 16 * 128 * 2
    assert operations["wavelet-3"].least_moved(64, torch.float16) == (4 * rows + 2 * taps, 10 * rows + 6 * taps)
    assert operations["lifting"].least_moved(64, torch.float16) == (4 * rows, 8 * rows)


class Meter:
    """In place of the process that measures memory."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def measure(self, name, implementation, length, direction):
        return None if implementation == "baseline" and length > 64 else 5_000_000


def command(script, monkeypatch, *words):
    module = script("kernel_speed")
    monkeypatch.setattr(sys, "argv", ["kernel_speed.py", *words])
    monkeypatch.setattr(module, "MemoryMeter", Meter)
    monkeypatch.setattr(module, "copy_bandwidth", lambda device: [2e9, 1e9, 4e9])
    return module.main()


@pytest.mark.full
def test_the_command_records_everything_and_draws_it(script, monkeypatch, results, document):
    monkeypatch.setattr(script("kernel_report"), "LENGTH", 128)
    words = ("--operations", "link_mix", "layers", "--lengths", "64", "128", "--threads", "1", "--budget-seconds", "0")
    assert command(script, monkeypatch, *words) == 0
    rows = {(row["case"], row["figure"], row["shape"]): row for row in script("record").rows("kernels")}
    assert rows["copy", "bandwidth", ""]["value"] == "2"
    row = rows["link_mix", "forward+backward, auto", "B=2 N=128 D=128 M=12 K=13"]
    assert (row["device"], row["threads"], row["dtype"], row["memory"]) == ("cpu", "1", "float32", "5")
    assert float(row["p20"]) <= float(row["value"]) <= float(row["p80"]) and row["unit"] == "ms" and row["runs"] == "3"
    assert ("layer flt", "forward, portable", "B=2 N=64 D=256") in rows
    # What does not fit is recorded as such.
    assert rows["link_mix", "forward, baseline", "B=2 N=128 D=128 M=12 K=13"]["value"] == "inf"
    text = document.read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("| `link_mix` | forward | > 8 GB |")]
    assert line.split(" | ")[5] == "5" and text.count("| `layer converter` | softmax attention | faster |") == 1
    for name in ("operations", "layers"):
        picture = document.parent / "kernels" / f"{name}.svg"
        drawn = picture.read_text(encoding="utf-8")
        assert drawn.count("link_mix, forward</") == (name == "operations")
        script("kernel_report").redraw()
        assert picture.read_text(encoding="utf-8") == drawn and document.read_text(encoding="utf-8") == text


@pytest.mark.full
def test_a_quick_run_records_nothing(script, monkeypatch, results, document, capsys):
    before = document.read_text(encoding="utf-8")
    assert command(script, monkeypatch, "--quick", "--operations", "lifting", "--threads", "1") == 0
    assert "lifting, forward, auto, B=2 N=256 D=128 J=3: " in capsys.readouterr().out
    assert not results.exists() and document.read_text(encoding="utf-8") == before


def test_nothing_is_measured_where_something_is_wrong(script, monkeypatch, results, document, capsys):
    right = script("kernel.baselines").linear_attention
    wrong = functools.wraps(right)(lambda **keywords: 1.01 * right(**keywords))
    monkeypatch.setattr(script("kernel.baselines"), "linear_attention", wrong)
    assert command(script, monkeypatch, "--operations", "linear_attention", "--threads", "1") == 1
    captured = capsys.readouterr()
    assert "linear_attention, baseline, N=67: the result is off by" in captured.err and captured.out == ""
    assert not results.exists()


def test_goals_are_met_or_marked(script, results):
    report, figures, record = script("kernel_report"), script("kernel.figures"), script("record")

    def note(case, figure, milliseconds, memory=None, dtype="float32", threads=2):
        shape = script("kernel.kinds").shape_of(figures.CASES[case], 4096)
        about = {"device": "cpu", "threads": threads, "dtype": dtype, "shape": shape, "memory": memory}
        record.append("kernels", case, figure, [milliseconds], "ms", **about)

    values, rest = 2 * 4096 * 128 * 2 * 4, 2 * (6 * 4095 + 4096) * 4
    # What counts is the newest with as many threads as the newest of all.
    for milliseconds, threads in ((1, 2), (10, 2), (500, 1)):
        note("givens_mix", "forward, auto", milliseconds, threads=threads)
    note("givens_mix", "forward, auto", 1, dtype="float16")
    note("givens_mix", "forward, baseline", 260)
    note("givens_mix", "forward+backward, auto", 20, memory=(values + values + rest + 2.5 * values) / 1e6)
    note("givens_mix", "forward+backward, baseline", 399)
    note("layer flt", "forward, auto", 10)
    note("layer softmax", "forward, auto", 10.5)
    note("layer flt", "forward+backward, auto", 10)
    note("layer softmax", "forward+backward, auto", 9)
    table = report.goals_table(figures.Figures("cpu", "float32"))
    assert "| `givens_mix` | baseline | ≥ 25 | 26 | ≥ 20, memory ≤ 3 | *20*, 2.5 |" in table
    assert "| `layer flt` | softmax attention | faster | 1.05 | faster | *0.90* |" in table
    assert "| `link_mix` | portable | ≥ 2 | – | ≥ 2 | – |" in table


def test_the_crossover_lies_between_the_lengths_around_it(script):
    crossover = script("kernel.figures").crossover
    linear, square = ({n: n**power / 1e3 for n in (128, 512, 2048, 8192)} for power in (1, 2))
    assert crossover({n: 1000 * value for n, value in linear.items()}, square) == pytest.approx(1000)
    assert crossover({n: 1e5 * value for n, value in linear.items()}, square) is None
    assert crossover(linear, square) == 128
    assert crossover({}, square) is None


def test_the_document_has_the_marks():
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    for name in ("goals", "operations", "layers", "gpu"):
        assert text.count(f"<!-- {name}: begin -->\n") == text.count(f"<!-- {name}: end -->") == 1

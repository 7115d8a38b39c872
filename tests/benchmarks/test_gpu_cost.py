"""The model of GPUs: times, rows of the tables, bounds of layers, and the command that writes them."""

import csv
import dataclasses
import json
import os
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
TOKENS = 2048


def test_time_is_the_slowest_unit_and_the_launch(script):
    cards = script("gpu_model.cards")
    a100 = next(card for card in cards.CARDS if card.name == "A100")
    moving = cards.Launch("copy", 2, 1_555_000_000)
    assert a100.seconds(moving) == pytest.approx(1e-3 + 6e-6)
    computing = cards.Launch("mm", 1, 8, 312_000_000_000, "tensor core")
    assert a100.seconds(computing) == pytest.approx(1e-3 + 3e-6)
    serial = cards.Launch("triton", 1, 1_555_000_000, 0, "fp32", programs=27)
    assert a100.seconds(serial) == pytest.approx(1e-3 + 3e-6)
    assert a100.seconds(serial, only_its_programs=True) == pytest.approx(4e-3 + 3e-6)


def test_documents_fill_the_batch_and_end_with_samples(script):
    layers = script("gpu_model.layers")
    for positions in layers.LENGTHS:
        lengths = layers.document_lengths(positions)
        ends = {sum(lengths[: i + 1]) for i in range(len(lengths))}
        assert max(ends) == layers.TOKENS and set(range(positions, layers.TOKENS + 1, positions)) <= ends


def test_the_transformer_has_a_row_with_each_attention(script):
    layers = script("gpu_model.layers")
    cases = layers.cases(("transformer",), (TOKENS,))
    rows = script("gpu_cost").layer_rows(cases, TOKENS, **SMALL)
    assert [(row["layer"], row["documents"]) for row in rows] == [
        ("transformer", False),
        ("transformer, portable", False),
        ("transformer", True),
        ("transformer, portable", True),
        ("transformer, dense mask", True),
    ]
    for row in rows:
        assert set(row["milliseconds"]) == {"V100", "A100", "H100", "H200"}
        assert row["launches"] > 0 and row["bytes"] > 0 and row["operations"]["tensor core"] > 0
        kernels = {launch["kernel"] for launch in row["triton"]}
        assert kernels == (set() if row["layer"].endswith("portable") else {"turn_heads"})
    alone, plain, packed, _, dense = rows
    assert alone["operations"]["tensor core"] == plain["operations"]["tensor core"]
    assert alone["bytes"] < plain["bytes"] and alone["kept"] < plain["kept"]
    assert packed["operations"]["tensor core"] < alone["operations"]["tensor core"]
    assert packed["launches"] < dense["launches"] and packed["bytes"] < dense["bytes"]


@pytest.mark.parametrize("variant", [None, "portable"])
def test_a_layer_keeps_what_its_backward_pass_reads(variant, script):
    """Of each token in 16 bit: inputs and results of both norms, queries, keys and values, one tensor in plain
    PyTorch, that has the first two once more, turned, what attention gives, and twice the feed-forward layer's inner
    width; in fp32 two statistics of each norm, the logarithm of each head's sum, and sine and cosine of each position's
    angles.
    """
    layers = script("gpu_model.layers")
    fields = {**layers.fields_of("transformer"), **SMALL, "num_hidden_layers": 1}
    width, inner, heads = (fields[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    _, kept, _ = layers._run(layers.Case("transformer", False, 16, variant), fields, 1, torch.bfloat16, True, TOKENS)
    turned = 0 if variant is None else 2
    of_a_token = 2 * ((4 + 3 + turned + 1) * width + 2 * inner) + 4 * (heads + 2 * 2)
    assert kept == TOKENS * of_a_token + 16 * 2 * 4 * width // heads


def test_the_most_memory_at_once_is_that_of_what_is_alive(script):
    given = torch.empty(1000, dtype=torch.uint8, device="meta")
    with script("gpu_model.live").LiveMemory([given]) as live:
        one = given.view(10, 100) + 1
        two = one.T
        assert live.peak == 1000
        del one
        three = torch.cat([two, two])
        assert live.peak == 3000
        del two, three
        four = torch.empty(2500, dtype=torch.uint8, device="meta")
        assert live.peak == 3000
        four.sum(dtype=torch.int64)
        del four
        torch.empty(4000, dtype=torch.uint8, device="meta")
    assert live.peak == 4000


def test_faster_is_what_the_tables_show_as_faster(script):
    def row(layer, milliseconds):
        times = {"milliseconds": {"A100": milliseconds}, "milliseconds_of_programs": {"A100": milliseconds}}
        return {"layer": layer, "documents": False, "positions": 512, **times}

    verdict = script("gpu_model.report").verdict
    said = verdict([row("transformer", 4.0), row("flt", 3.99), row("wavspa", 3.9)])
    assert "wavspa at N = 512" in said and "flt" not in said


def test_a_missed_goal_is_in_italics(script):
    report = script("gpu_model.report")

    def row(layer, milliseconds, documents=False, positions=2048):
        times = {"milliseconds": {"A100": milliseconds}, "milliseconds_of_programs": {"A100": milliseconds}}
        return {"layer": layer, "documents": documents, "positions": positions, **times}

    plain = "transformer, portable"
    rows = [row("transformer", 3.0), row(plain, 4.0), row("flt", 3.5), row("flt, portable", 9.0)]
    rows += [row("transformer", 3.0, True), row(plain, 4.0, True), row("flt", 4.7, True)]
    _, _, cells = report._multiples(rows)
    assert ["flt", "*1.17*", "*1.57*", "0.88", "1.18"] in cells
    assert ["flt, portable", "3.00", "–", "2.25", "–"] in cells


@dataclasses.dataclass(frozen=True)
class Kernel:
    """As gpu_model/compiling.py has them."""

    name: str = "whole_forward"
    target: str = "sm_80"
    dtype: str = "float32"
    registers: int = 255
    spilled_bytes: int = 1234
    shared_bytes: int = 4096
    fits: bool = True
    tensor_core_instructions: int = 0
    seconds: float = 4.3


def test_the_command_prints_writes_and_records(script, monkeypatch, tmp_path, capsys):
    cost, report, layers = (script(name) for name in ("gpu_cost", "gpu_model.report", "gpu_model.layers"))
    cases = layers.cases(("transformer",), (512,))
    monkeypatch.setattr(layers, "cases", lambda: cases)
    monkeypatch.setattr(script("record"), "RESULTS", tmp_path / "results.csv")
    monkeypatch.setattr(report, "DOCUMENT", tmp_path / "page.md")
    report.DOCUMENT.write_text("<!-- gpu model: begin -->\n<!-- gpu model: end -->\n", encoding="utf-8")
    stand_in = types.ModuleType("gpu_model.compiling")
    stand_in.compiled_kernels = lambda: [Kernel()]
    monkeypatch.setitem(sys.modules, "gpu_model.compiling", stand_in)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(sys, "argv", ["gpu_cost.py", "--record", "--json", str(tmp_path / "cost.json")])
    script("record").append("training_speed", "a, case", "speed", [1.0], "tokens/s")
    for _ in range(2):  # what was counted before is no measurement to keep
        cost.main()
    found = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    assert found["kernels"] == [dataclasses.asdict(Kernel())] and len(found["layers"]) == 5
    printed, page = capsys.readouterr().out, report.DOCUMENT.read_text(encoding="utf-8")
    for text in (printed, page):
        assert "1234" in text and "transformer, dense mask" in text and "With packed documents: none" in text
    assert "A model, not a measurement: nothing has run on a GPU" in printed and "Measured" not in page
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        first, *rows = csv.DictReader(file)
    assert first["benchmark"] == "training_speed"
    assert (tmp_path / "results.csv").read_bytes().count(b"\r\n") == 2 + len(rows)
    assert len(rows) == 5 * (4 + 3) + 1 and {row["benchmark"] for row in rows} == {"gpu_cost"}
    assert all("model" in row["device"] for row in rows if not row["figure"].startswith("most spilled"))


def test_what_cannot_be_done_is_refused_before_counting(script, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(sys, "argv", ["gpu_cost.py"])
    with pytest.raises(SystemExit):
        script("gpu_cost").main()
    assert "TRITON_INTERPRET is 1" in capsys.readouterr().err
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(sys, "argv", ["gpu_cost.py", "--json", "nowhere/cost.json"])
    with pytest.raises(SystemExit):
        script("gpu_cost").main()
    assert "--json: nowhere is not a folder; make it first" in capsys.readouterr().err


def test_without_triton_plain_pytorch_is_counted(script, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "triton", None)
    cases = script("gpu_model.layers").cases(("s3attention",), (32,))
    rows = script("gpu_cost").layer_rows(cases, 64, **SMALL, row_landmarks=4, column_landmarks=4)
    assert [row["layer"] for row in rows] == ["s3attention, portable"]
    assert script("gpu_cost").kernel_rows() == []
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == [
        "triton is not installed",
        "s3attention does not keep packed documents apart",
        "triton is not installed",
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    "mixer",
    ["transformer", "flt", "paramixer", "converter", "s3attention", "wavspa", "wavspa-linear", "wavspa-lifting"],
)
def test_every_further_layer_launches_what_the_second_does(script, mixer):
    layers = script("gpu_model.layers")
    for case in layers.cases((mixer,), (512,)):
        if not case.needs_triton:
            fields = {**layers.fields_of(mixer), "num_hidden_layers": 3}
            launches, kept, _ = layers._run(case, fields, 3, torch.bfloat16, True, 1024)
            of_twelve = layers.count(case, torch.bfloat16, True, 1024, fields)
            each = {launch: number / 12 for launch, number in launches.items()}
            assert sums(each) == pytest.approx(sums(of_twelve.launches))
            assert kept / 12 == pytest.approx(of_twelve.kept)


def sums(counted):
    """{(what is launched, its unit, what is counted): sum}: what is launched once for all layers grows with them."""
    found = Counter()
    for launch, number in counted.items():
        for quantity in ("launches", "bytes", "operations"):
            found[launch.name, launch.unit, quantity] += number * getattr(launch, quantity)
    return {of: total for of, total in found.items() if total}


BOUNDS, OPERATIONS = json.loads((FOLDER / "gpu_model" / "layer_bounds.json").read_text(encoding="utf-8")).values()
PLACES = [(layer, kind, length) for layer in BOUNDS for kind in BOUNDS[layer] for length in BOUNDS[layer][kind]]


def test_the_goals_that_are_missed_are_those_that_the_documents_name(script):
    """docs/kernels.md says of each what would be needed."""
    layers, baseline = script("gpu_model.layers"), BOUNDS["transformer"]
    missed = {name: set() for name in ("milliseconds", "launches", "programs", "gigabytes kept", "gigabytes at most")}
    for layer, kind, length in PLACES:
        found, other = BOUNDS[layer][kind][length], baseline[kind][length]
        if layer.startswith("transformer") or layer.endswith("portable"):
            continue
        place, goals = (layer, kind, length), layers.GOALS[kind == "documents"]
        if found["milliseconds"] > goals[int(length)] * other["milliseconds"]:
            missed["milliseconds"].add(place)
        if found["launches"] > layers.MOST_LAUNCHES:
            missed["launches"].add(place)
        if found["programs"] < 2 * 108:
            missed["programs"].add(place)
        for name in ("gigabytes kept", "gigabytes at most"):
            if found[name] > other[name]:
                missed[name].add(place)

    def places(layer, alone="", packed=""):
        alike = (("alone", alone), ("documents", packed))
        return {(layer, kind, length) for kind, lengths in alike for length in lengths.split()}

    every = " ".join(map(str, layers.LENGTHS))
    lifting, converter = places("wavspa-lifting", every), places("converter", every, every)
    assert missed == {
        "milliseconds": places("wavspa-lifting", "8192")
        | places("paramixer", "2048 8192", "2048 8192")
        | places("flt", "8192", "8192")
        | places("wavspa", "8192"),
        "launches": set(),
        "programs": places("paramixer", "8192"),
        "gigabytes kept": lifting | converter | places("paramixer", "2048 8192", "2048 8192") | places("flt", every),
        "gigabytes at most": lifting
        | converter
        | places("paramixer", every, every)
        | places("flt", every, "8192")
        | places("s3attention", every),  # eight layers in place of twelve
    }


@pytest.fixture(scope="module")
def costs(triton):
    """{place: costs} of all layers that have bounds."""
    return {
        tuple(place): found for place, found in counted_alone("[[place, costs(case)] for case, place in bounded()]")
    }


def counted_alone(expression):
    """What an expression gives in layer_bounds, in a process of its own: Triton's interpreter, which other tests run,
    has other blocks.
    """
    program = f"import json; from gpu_model.layer_bounds import *; print(json.dumps({expression}))"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.full
@pytest.mark.parametrize("place", PLACES, ids=", ".join)
def test_layers_cost_no_more_than_they_did(place, costs):
    layer, kind, length = place
    assert_within(costs[place], BOUNDS[layer][kind][length])


def test_operations_cost_no_more_than_they_did_in_any_form(triton):
    found = counted_alone("operation_costs()")
    assert found.keys() == OPERATIONS.keys()
    for form, bound in OPERATIONS.items():
        assert_within(found[form], bound)


def assert_within(costs, bound):
    found = dict(costs)
    assert found.pop("programs", 0) >= bound.get("programs", 0)
    kernels = found.pop("kernels", {})
    assert all(value <= bound[name] for name, value in found.items()), (found, bound)
    for name, values in kernels.items():
        assert all(value <= most for value, most in zip(values, bound["kernels"][name], strict=True)), (name, bound)


@pytest.mark.full
def test_the_command_writes_every_row(triton, tmp_path):
    """In a process of its own: Triton's interpreter, which other tests run, has other blocks. Nothing is compiled."""
    program = "import gpu_cost; gpu_cost.kernel_rows = list; gpu_cost.main()"
    command = [sys.executable, "-c", program, "--json", str(tmp_path / "cost.json")]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=True)
    assert "A model, not a measurement" in done.stdout
    assert "s3attention does not keep packed documents apart: no rows for them" in done.stderr
    found = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    places = [(row["layer"], row["documents"], row["positions"]) for row in found["layers"]]
    assert len(places) == len(set(places)) and {positions for *_, positions in places} == {512, 2048, 8192}
    assert {layer.partition(",")[0] for layer, *_ in places} == {
        "transformer",
        "flt",
        "paramixer",
        "converter",
        "s3attention",
        "wavspa",
        "wavspa-linear",
        "wavspa-lifting",
    }


def test_a_kernel_that_does_not_compile_is_one_line(script, monkeypatch, tmp_path, capsys):
    command, path = script("gpu_cost"), tmp_path / "cost.json"

    def fails():
        raise RuntimeError("Traceback\n  File\ntriton.CompilationError: at 3:4")

    monkeypatch.setattr(command, "layer_rows", lambda cases: [])
    monkeypatch.setattr(command, "kernel_rows", fails)
    monkeypatch.setattr(command.report, "show", lambda found: None)
    monkeypatch.setattr(command.report, "layer_tables", lambda rows: [])
    monkeypatch.setattr(command.report, "verdict", lambda rows: "")
    monkeypatch.setattr("sys.argv", ["gpu_cost.py", "--json", str(path)])
    monkeypatch.setattr(command, "interpreted", lambda: False)
    with pytest.raises(SystemExit, match=r"^error: .*: triton.CompilationError: at 3:4$"):
        command.main()
    assert not path.exists()

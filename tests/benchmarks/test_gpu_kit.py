"""The GPU kit: what is measured survives kills and crashes, the page is made of what there is, and all of it runs on a
CPU."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture
def measurement(script):
    return script("gpu_kit.records").Measurement


# What the kit keeps.


def test_what_is_there_is_not_measured_again_and_what_failed_once_more(script, measurement, tmp_path):
    records = script("gpu_kit.records").Records(tmp_path / "results.jsonl")
    planned = [measurement(key, "a:b") for key in ("done", "absent", "failed once", "failed twice", "cut off")]
    for key, status in (
        ("done", "failed"),
        ("done", "done"),
        ("absent", "absent"),
        ("failed once", "failed"),
        ("failed twice", "failed"),
        ("failed twice", "failed"),
    ):
        records.append(key, status)
    assert [one.key for one in records.due(planned)] == ["failed once", "cut off"]
    with pytest.raises(BlockingIOError):
        script("gpu_kit.records").Records(tmp_path / "results.jsonl")
    records.close()


def test_a_line_that_a_kill_cut_short_is_dropped(script, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"key": "whole", "status": "done"}\n{"key": "half", "sta')
    records = script("gpu_kit.records").Records(path)
    records.append("next", "done", answer={"x": 1.5})
    records.close()
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["whole", "next"]


def test_a_stage_leaves_its_time_to_those_behind_it(script):
    share = script("gpu_kit.runner").share
    assert share(600, [4]) == 600
    first = share(600, [1, 2, 3])
    assert 0 < first < share(600, [1, 2]) < share(600, [1]) == 600
    # One that ends at once: the next has more of what is left than it would have had.
    assert share(600, [2, 3]) > share(600 - first, [2, 3]) > 0


def test_a_trial_and_a_whole_measurement_do_not_share_a_folder(script, setting):
    setting.refuse_another()
    setting.refuse_another()
    other = script("dataclasses").replace(setting, card="NVIDIA A100")
    with pytest.raises(script("gpu_kit.setting").UserMistakeError, match=r"holds results of another setting .*A100"):
        other.refuse_another()


def test_code_without_its_history_has_the_commit_of_the_pack(script, monkeypatch, tmp_path):
    settings = script("gpu_kit.setting")
    monkeypatch.setattr(settings, "commit", lambda: "")
    assert settings.commit_with(None) == settings.commit_with(tmp_path) == ""
    (tmp_path / "MANIFEST.json").write_text('{"commit": "0123abc+changes"}')
    assert settings.commit_with(tmp_path) == "0123abc+changes (the pack's)"
    monkeypatch.setattr(settings, "commit", lambda: "4567def")
    assert settings.commit_with(tmp_path) == "4567def"


# What runs in processes of its own.


@pytest.fixture
def jobs(script, setting, monkeypatch, tmp_path):
    """jobs(seconds, **source of functions): the outcomes of one measurement each, by name."""

    def run(together=1, deadline=60.0, **sources):
        text = "".join(f"def {name}(setting):\n    {body}\n" for name, body in sources.items())
        (tmp_path / "made_jobs.py").write_text(f"import os, time\nfrom gpu_kit.processes import NotHereError\n{text}")
        paths = [str(tmp_path), str(ROOT / "benchmarks")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        monkeypatch.setattr(script("gpu_kit.processes"), "PRELOADED", [])
        workers, found = script("gpu_kit.processes").Workers(setting, "fork"), {}
        monkeypatch.syspath_prepend(str(tmp_path))
        Measurement = script("gpu_kit.records").Measurement
        measurements = [
            Measurement(f"0/{name}", f"made_jobs:{name}", seconds=1.0 if name == "hang" else 60.0) for name in sources
        ]
        workers.run(
            measurements,
            together,
            time.monotonic() + deadline,
            lambda one, outcome: found.update({one.key.removeprefix("0/"): outcome}),
        )
        sys.modules.pop("made_jobs", None)
        return found

    return run


def test_a_crash_a_hang_and_an_error_cost_a_row_each(jobs):
    found = jobs(
        right="return {'x': 1}",
        crash="os.write(1, b'so far'); os.kill(os.getpid(), 9)",
        error="raise ValueError('two\\nlines')",
        absent="raise NotHereError('no such library')",
        hang="os.system('sleep 60.125')",
        after="return {'x': 2}",
    )
    told = {name: (outcome.status, outcome.answer) for name, outcome in found.items()}
    assert told == {
        "right": ("done", {"x": 1}),
        "crash": ("failed", "killed by SIGKILL; last word: so far"),
        "error": ("failed", "ValueError: two lines"),
        "absent": ("absent", "no such library"),
        "hang": ("failed", "no end within 1 s"),
        "after": ("done", {"x": 2}),
    }
    assert not any(b"60.125" in command for command in _commands())


def _commands():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def test_what_the_end_of_a_stage_cuts_off_has_no_row(jobs):
    found = jobs(deadline=0.3, long="time.sleep(60)", never="return {}")
    assert {name: outcome.status for name, outcome in found.items()} == {"long": None}


# The page, of figures that are put in by hand.

PREDICTION = {
    "layers": [
        {"layer": layer, "documents": documents, "positions": 512, "milliseconds": {"A100": 2.0, "H100": milliseconds}}
        for layer, documents, milliseconds in (
            ("flt", False, 1.25),
            ("flt, portable", False, 4.125),
            ("flt", True, 1.5),
            ("transformer", False, 0.75),
        )
    ],
    "kernels": [],
}
TIME = {"median": 3.0, "p20": 2.5, "p80": 3.5, "runs": 9}
BOTH = {**TIME, "median": 6.0}
TIMED = {
    "forward": TIME,
    "both": BOTH,
    "graph": {**TIME, "median": 4.5},
    "launches": [["mix_all", 2, 1234.5]],
    "memory": 12.0,
    "error": 1e-3,
    "clocks": [{}, {}],
}
ROWS = {
    "1/plan": ["1/proof/link_mix/float16", "1/proof/link_mix/float32"],
    "1/doctor": {"code": 1, "text": "torch  2.11.0\n  kernel <x>\x1b[2J"},
    "1/proof/link_mix/float16": {"cases": {"ragged": [1e-4, 2e-4, True]}, "wrong": ["ragged: the result is off"]},
    "2/block/flt/512/portable": {**TIMED, "blocks": 12},
    "2/block/flt/512/kernels": {**TIMED, "blocks": 12},
    "2/block/flt-documents/512/kernels": {**TIMED, "blocks": 12},
    "2/block/s3attention/512/portable": {**TIMED, "blocks": 8},
    "2/attention-documents/512/flex": TIMED,
    "2/operation/link_mix/512/compiled": TIMED,
    "3/speed/transformer/zero1/bf16": {
        "tokens_per_second": 5e5,
        "mfu": 0.421,
        "loss": [10.4, 9.5],
        "kernels": "linear_cross_entropy portable, rotary_heads triton",
    },
    "3/resume/flt/zero1": {"killed_at": 7, "resumed_at": 4, "compared": 8, "equal": 8, "largest": 0.0},
    "4/learning/flt": {"tokens": 10**6, "rate": 1e-3, "loss": [9.0, 5.0], "masked_accuracy": 0.25},
    "4/learning/wavspa": {"tokens": 10**6, "rate": 2e-3, "loss": [9.0, 6.0], "masked_accuracy": 0.125},
    "4/tasks/flt": {"scores": {"cola": {"pretrained": 0.125, "random": 0.0, "random at scale": -0.0625}}},
}


@pytest.fixture
def page(script, setting, monkeypatch):
    """page(prediction, **rows): the page of these rows, as (Markdown, HTML)."""
    monkeypatch.setattr(script("gpu_kit.plots"), "draw", lambda *words: None)

    def make(prediction, rows):
        records = script("gpu_kit.records").Records(setting.work / "results.jsonl")
        for key, (status, answer) in rows.items():
            records.append(key, status, answer=answer, commit="abc")
        folder = script("gpu_kit.page").make(script("dataclasses").replace(setting, quick=False), records, prediction)
        records.close()
        return [(folder / name).read_text(encoding="utf-8") for name in ("report.md", "report.html")]

    return make


def test_the_page_shows_every_figure_beside_the_models(page, setting):
    markdown, html = page(PREDICTION, {key: ("done", answer) for key, answer in ROWS.items()})
    lines = [line.replace(" ", "") for line in markdown.splitlines()]
    for line in (
        "|link_mix/float16|1|0.0001|0.0002|1of1|ragged:theresultisoff|",
        "|flt|512|portable|3|6|2.5to3.5|4.5|12|1e-03|–|4.12|",
        "|flt|512|mix_all|2|1,234|",
        "|flt|512|kernels|3|6|2.5to3.5|4.5|12|1e-03|–|1.25|",
        "|flt-documents|512|kernels|3|6|2.5to3.5|4.5|12|1e-03|–|1.5|",
        # Of equal parameters: 8 of its blocks for 12 of the transformer's.
        "|s3attention|512|portable|2|4|1.67to2.33|3|12|1e-03|–|–|",
        "|documents|512|flex|3|6|2.5to3.5|4.5|12|1e-03|–|",
        "|link\\_mix|512|compiled|3|6|2.5to3.5|4.5|12|1e-03|–|",
        # 16384 tokens in 12 layers of 0.75 ms.
        "|transformer/zero1/bf16|500,000|–|42.1%|–|–|10.4to9.5|1,820,444|–|",
        "|flt/zero1|7|4|8|8|0|",
        "|flt|1,000,000|0.001|9|5|25.0|cola12.5/0.0/-6.2|",
        "|wavspa|1,000,000|0.002|9|6|12.5|notmeasured:thetimeranout|",
        "|1|2|1|0|0|1|",
    ):
        assert line in lines or line.replace("\\", "") in lines, line
    assert "\n    torch  2.11.0\n      kernel <x>\\x1b[2J" in markdown and "\n  kernel &lt;x&gt;\\x1b[2J" in html
    assert "Exit code 1" in markdown
    assert "There are no plots: matplotlib is not installed." in markdown and "<td>1.25</td>" in html
    names = {path.name: path.stat().st_size for path in (setting.work / "page").iterdir()}
    assert len(names) <= 8 and max(names.values()) <= 16 << 20
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz._-") for name in names)


def test_the_page_can_be_made_of_nothing_and_of_failures(page):
    page(None, {})
    reason = "OutOfMemoryError: <b>too | much</b>"
    markdown, html = page(None, {key: ("failed", reason) for key in ROWS if not key.endswith("plan")})
    assert markdown.count("failed: OutOfMemoryError: &lt;b&gt;too") == html.count("failed: OutOfMemoryError:") == 12
    assert "<b>" not in html and html.count('<td class="text">failed') == 11  # they do not stretch the columns


def test_blocks_stand_beside_the_transformers_fastest(page):
    def measured(both, graph=None, blocks=12):
        times = {name: {"median": time, "p20": time, "p80": time} for name, time in (("both", both), ("graph", graph))}
        return "done", {**TIMED, **times, "graph": times["graph"] if graph else None, "blocks": blocks}

    markdown, _ = page(
        None,
        {
            "2/block/transformer/512/portable": measured(4.0, 2.0),
            "2/block/transformer/512/compiled": measured(3.0, 1.6),
            "2/block/transformer-documents/512/portable": measured(4.0),
            "2/block/s3attention/512/kernels": measured(9.0, 2.4, 8),
            "2/block/flt-documents/512/kernels": measured(5.0),
            "2/block/flt/2048/kernels": measured(5.0),  # nothing to stand beside
            "2/block/wavspa/512/kernels": ("failed", "why"),
        },
    )
    found = markdown.partition("Blocks beside the transformer's")[2].partition("\n## ")[0].replace(" ", "")
    assert "|s3attention|512|kernels|1.00|bygraphs|" in found
    assert "|flt-documents|512|kernels|1.25|aslaunched|" in found
    assert "|transformer|" not in found and "|flt|" not in found and "wavspa" not in found


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("why", ": why"),
        ({"wrong": ["ragged: off", "more"], "cases": {}}, ", but WRONG: ragged: off"),
        (
            {"wrong": [], "cases": {"a": [1e-3, 2e-3, True], "b": [3e-3, 1e-3, True]}},
            ": 2 inputs, largest errors 3.0e-03 and 2.0e-03",
        ),
        (
            {"forward": {"median": 1.25}, "both": {"median": 3.5}, "graph": {"median": 3.0}},
            ": forward 1.25, both 3.5, by a graph 3 ms",
        ),
        ({"forward": {"median": 1.25}, "both": {"median": 3.5}, "graph": None}, ": forward 1.25, both 3.5 ms"),
        ({"tokens_per_second": 123456.7}, ": 123,457 tokens/s"),
        ({"card": "H100"}, ""),
    ],
)
def test_the_console_has_the_figures(script, answer, text):
    assert script("gpu_kit.runner").told_of(answer) == text


def test_what_was_measured_before_there_were_graphs_has_a_page(page):
    older = {name: value for name, value in TIMED.items() if name not in ("graph", "launches")}
    markdown, _ = page(None, {"2/block/flt/512/kernels": ("done", {**older, "blocks": 12})})
    assert "|flt|512|kernels|3|6|2.5to3.5|–|12|" in markdown.replace(" ", "")


# All of it.


@pytest.mark.slow
@pytest.mark.full
def test_a_trial_on_a_cpu_is_killed_and_goes_on_to_its_page(triton, tmp_path):
    # A limit, not a duration: a stage that comes to the end of its share leaves measurements for another call.
    command = [sys.executable, str(GPU), "--work", str(tmp_path / "work"), "--quick", "--stages", "1,2,3"]
    command += ["--minutes", "120"]
    results = tmp_path / "work" / "results.jsonl"

    def rows():
        text = results.read_text() if results.is_file() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    first = subprocess.Popen(command)
    while not any(row["key"].startswith("1/proof") for row in rows()) and first.poll() is None:
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = {row["key"] for row in rows() if row["status"] == "done"}
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = [row for row in rows() if not row["key"].endswith("/plan")]
    assert len({row["key"] for row in found}) == len(found) > len(before) > 1
    status = {row["key"]: row["status"] for row in found}
    assert {key: state for key, state in status.items() if state == "failed"} == {}
    assert not any(row["answer"].get("wrong") for row in found if row["status"] == "done")
    assert {key[0] for key in status} == {"1", "2", "3"}
    (resumed,) = (row["answer"] for row in found if row["key"] == "3/resume/paramixer/zero1")
    assert resumed["killed_at"] >= 3 and resumed["compared"] == resumed["equal"] > 0
    page = tmp_path / "work" / "page"
    report = (page / "report.md").read_text(encoding="utf-8")
    assert "| paramixer/zero1 | " in report and "Triton's kernels" in report
    assert (page / "trace.json.gz").stat().st_size > 1000
    again = subprocess.run(command, capture_output=True, text=True)
    # Of the first two stages.
    assert again.stdout.count(" 0 of 15 measurements to make") == 2
    assert len(rows()) == len(found) + 1 + 3 + 3  # plans


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "error: torch sees no GPU here (longmix doctor says why); to try the kit on a CPU, add --quick"),
        (["--stages", "1,7"], "'1,7'; allowed: some of 1,2,3,4, with commas between"),
        (["--pack", "nowhere"], "--pack nowhere is no folder; make one with benchmarks/gpu_pack.py"),
    ],
)
def test_mistakes_are_told_in_a_line(words, told, tmp_path):
    ended = subprocess.run([sys.executable, str(GPU), "--work", str(tmp_path), *words], capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.strip().splitlines()[-1].endswith(told)

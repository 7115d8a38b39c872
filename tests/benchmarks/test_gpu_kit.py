"""The GPU kit: what is measured survives kills and crashes, the page is made of what there is, and all of it runs on a
CPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture
def setting(script, tmp_path):
    return script("gpu_kit.setting").Setting(tmp_path, "cpu", "NVIDIA H100 80GB HBM3", 1, (9, 0), True, None)


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
        measurements = [Measurement(f"0/{name}", f"made_jobs:{name}", seconds=1.0) for name in sources]
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
        hang="os.system('sleep 60')",
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
    assert not [line for line in _processes() if line.startswith("sleep 60")]


def _processes():
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()


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
TIMED = {"forward": TIME, "both": {**TIME, "median": 6.0}, "memory": 12.0, "error": 1e-3, "clocks": [{}, {}]}
ROWS = {
    "1/plan": ["1/proof/link_mix/float16", "1/proof/link_mix/float32"],
    "1/proof/link_mix/float16": {"cases": {"ragged": [1e-4, 2e-4, True]}, "wrong": ["ragged: the result is off"]},
    "2/block/flt/512/portable": {**TIMED, "blocks": 12},
    "2/block/flt/512/kernels": {**TIMED, "blocks": 12},
    "2/block/flt-documents/512/kernels": {**TIMED, "blocks": 12},
    "2/block/s3attention/512/portable": {**TIMED, "blocks": 8},
    "2/attention-documents/512/flex": TIMED,
    "2/operation/link_mix/512/compiled": TIMED,
    "3/speed/transformer/zero1/bf16": {"tokens_per_second": 5e5, "mfu": 0.421, "loss": [10.4, 9.5]},
    "3/resume/flt/zero1": {"killed_at": 7, "resumed_at": 4, "compared": 8, "equal": 8, "largest": 0.0},
    "4/learning/flt": {"tokens": 10**6, "loss": [9.0, 5.0], "scores": {"cola": 0.125}},
}


@pytest.fixture
def page(script, setting, monkeypatch):
    """page(prediction, **rows): the page of these rows, as (Markdown, HTML)."""
    monkeypatch.setattr(script("gpu_kit.plots"), "draw", lambda setting, newest: None)

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
        "|flt|512|portable|3|6|2.5to3.5|12|1e-03|–|4.12|",
        "|flt|512|kernels|3|6|2.5to3.5|12|1e-03|–|1.25|",
        "|flt-documents|512|kernels|3|6|2.5to3.5|12|1e-03|–|1.5|",
        # Of equal parameters: 8 of its blocks for 12 of the transformer's.
        "|s3attention|512|portable|2|4|1.67to2.33|12|1e-03|–|–|",
        "|documents|512|flex|3|6|2.5to3.5|12|1e-03|–|",
        "|link\\_mix|512|compiled|3|6|2.5to3.5|12|1e-03|–|",
        # 16384 tokens in 12 layers of 0.75 ms.
        "|transformer/zero1/bf16|500,000|–|42.1%|–|–|10.4to9.5|1,820,444|–|",
        "|flt/zero1|7|4|8|8|0|",
        "|flt|1,000,000|9|5|cola12.5|",
        "|1|2|1|0|0|1|",
    ):
        assert line in lines or line.replace("\\", "") in lines, line
    assert "There are no plots: matplotlib is not installed." in markdown and "<td>1.25</td>" in html
    names = {path.name: path.stat().st_size for path in (setting.work / "page").iterdir()}
    assert len(names) <= 8 and max(names.values()) <= 16 << 20
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz._-") for name in names)


def test_the_page_can_be_made_of_nothing_and_of_failures(page):
    page(None, {})
    reason = "OutOfMemoryError: <b>too | much</b>"
    markdown, html = page(None, {key: ("failed", reason) for key in ROWS if not key.endswith("plan")})
    assert markdown.count("failed: OutOfMemoryError: &lt;b&gt;too") == html.count("failed: OutOfMemoryError:") == 10
    assert "<b>" not in html

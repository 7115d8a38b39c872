"""The GLUE table, small and whole: runs that fail, a killed table, and stage 4 of the kit for GPUs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def test_what_fails_takes_no_other_row_with_it(script, table, monkeypatch):
    stages, cases = script("glue_table.stages"), script("glue_table.cases")
    said = {"flt": "ten steps in a row had a loss or gradients that are not finite", "bert": "Killed", "fnet": ""}

    def longmix(words, log, threads, **environment):
        assert list(environment) == ["CUDA_VISIBLE_DEVICES"]  # else a run would take all GPUs
        row = log.parent.name
        log.write_text(f"begin\n{said[row]}\n")
        return (0 if row == "fnet" else 1), {"seconds": 2.0, "cpu_seconds": 1.0, "peak_bytes": 1}

    monkeypatch.setattr(script("commands"), "timed_longmix", longmix)
    readers = []
    monkeypatch.setattr(stages, "figures", lambda case: readers.append(threading.current_thread()) or {"loss": 3.0})
    runner = stages.Runner(2, 1)
    wanted = [table.search(row)[0] for row in said]
    runner.run(wanted)
    assert [case.row for case, _ in runner.failed] == ["bert"]
    found = {case.row: case.record() for case in wanted}
    assert found["flt"]["loss"] is None and found["fnet"]["loss"] == 3.0 and found["bert"] is None
    # transformers cannot load two models at the same time.
    assert readers == [threading.main_thread()]
    # Diverging is an answer in a search, and of fine-tuning, but not of pre-training.
    table.tuning_search("flt", "random", "imdb")[0].finish({"rate": 6e-4})
    case = table.tuning("flt", "random", "imdb", 0)
    runner.run([case])
    assert case.record()["scores"] is None and table.tuning("flt", "random", "imdb", 0).about["rate"] == 2e-4
    with contextlib.suppress(FileExistsError):
        (table.work / "runs").mkdir(parents=True)
    runner.run([cases.Case("pretraining", "flt", ("train",), table.work / "runs" / "flt" / "x", table.work / "x.json")])
    assert [case.stage for case, _ in runner.failed] == ["search", "pretraining"]


DRIVER = """
import dataclasses, sys
sys.path.insert(0, sys.argv.pop(1))
import glue
from glue_table import budget, cases, data, plan
small = [f"model.{name}={value}" for name, value in
         {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "link_hidden_size": 4}.items()]
budget.SIZES["tiny"] = {
    **{"rates": (1e-3,), "tuning_rates": (1e-3,), "overrides": tuple(small), "evaluations": 2, "labels": 20},
    **{"pretraining_seeds": 1, "tuning_seeds": 2, "control_seeds": 2, "passed_over": 5, "reported": 10},
}
cases.SPEED_STEPS = plan.SPEED_STEPS = (1, 2)
data.TASKS.update({name: dataclasses.replace(task, epochs=1) for name, task in data.TASKS.items()})
sys.exit(glue.main())
"""


def begin(files, work):
    arguments = [
        *("--work", work, "--corpus", files / "unlabelled.tsv", files / "wiki.txt", "--imdb", files / "imdb"),
        *("--recipe", files / "recipe.yaml", "--tokens", "4000", "--rows", "paramixer"),
    ]
    command = [sys.executable, "-c", DRIVER, str(BENCHMARKS), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def what_was_measured(work):
    results = json.loads((work / "results" / "results.json").read_text())
    for row in results["rows"].values():
        row["measured"].pop("tokens_per_second")
    # Times, and the commit that ran.
    return {name: value for name, value in results.items() if name not in ("stages", "made", "written_by")}


@pytest.mark.full
def test_a_table_that_was_killed_is_the_same_in_the_end(files, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert "The gate (paramixer on imdb, 1 x 2 seeds) is" in finish(begin(files, whole))
    for count in (2, 4):
        process = begin(files, killed)
        while process.poll() is None and len(list((killed / "records").rglob("*.json"))) < count:
            time.sleep(0.05)
        time.sleep(1.5)  # in the middle of the next run
        process.send_signal(signal.SIGKILL)
        process.communicate()
    output = finish(begin(files, killed))
    assert "speed" not in output.partition("stage ")[0]  # what had finished was not run again
    assert what_was_measured(killed) == what_was_measured(whole)
    results = what_was_measured(whole)
    assert [len(results["rows"]["paramixer"]["runs"]), list(results["tasks"])] == [1, ["imdb"]]
    for task in results["tasks"].values():
        starts = task["rows"]["paramixer"]
        assert {name: [len(row) for row in one["scores"]] for name, one in starts.items()} == {
            "pretrained": [2],
            "random": [2],
            "random at scale": [2],
        }
    # Nothing that is large stays but the pre-trained model and the controls.
    assert len(list(whole.rglob("*.safetensors"))) == 3
    assert "tuning" not in finish(begin(files, whole)).partition("stage ")[0]
    assert sorted(os.listdir(whole / "results")) == sorted(os.listdir(killed / "results"))


@pytest.fixture
def setting(script, tmp_path):
    made = script("gpu_kit.setting").Setting
    return made(tmp_path / "kit", "cpu", "CPU", 0, (0, 0), quick=True, pack=tmp_path / "pack")


def test_the_kit_trains_every_row_before_it_fine_tunes_one(script, setting):
    setting.work.mkdir()
    learning, records = script("gpu_kit.learning"), script("gpu_kit.records").Records(setting.work / "results.jsonl")
    planned = learning.plan(setting, records, 8 * 1060.0)
    rows = script("glue_table.rows").ROWS
    keys = ["4/corpus", *(f"4/learning/{row}" for row in rows), *(f"4/tasks/{row}" for row in rows)]
    assert [one.key for one in planned] == keys and planned[1].arguments == planned[9].arguments
    # 500 tokens a second in six tenths of the time of a row: decided once.
    assert planned[1].arguments == {"model": "transformer", "tokens": 300_000}
    assert learning.plan(setting, records, 60.0) == planned
    records.close()


@pytest.mark.full
def test_the_kit_makes_its_rows_of_the_tables_runs(script, files, setting, monkeypatch):
    learning, data = script("gpu_kit.learning"), script("glue_table.data")
    setting.work.mkdir(parents=True)
    corpus = data.corpus(setting.work, [files / "wiki.txt"], None, 1)
    (setting.pack / "corpus").mkdir(parents=True)
    for name in ("train", "validation", "tokenizer"):
        (corpus / name).rename(setting.pack / "corpus" / name)
    (setting.pack / "glue").symlink_to(files / "glue")
    monkeypatch.setattr(learning, "RECIPE", files / "recipe.yaml")
    with pytest.raises(RuntimeError, match="it has not been pre-trained"):
        learning.fine_tune(setting, "fnet", 2000)
    found = learning.learn(setting, "fnet", 2000)
    assert found["corpus"] == "the pack's" and found["loss"][1] < found["loss"][0] and found["tokens"] > 1000
    scores = learning.fine_tune(setting, "fnet", 2000)["scores"]
    assert {task: list(starts) for task, starts in scores.items()} == {
        task: ["pretrained", "random", "random at scale"] for task in ("cola", "sst2")
    }

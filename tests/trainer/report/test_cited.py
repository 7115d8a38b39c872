"""The papers' figures in a report: beside the runs of their model, task, size and variant, and no others."""

import re

import pytest

from longmix.trainer.many_runs.read import read_run
from longmix.trainer.report import cited


def test_the_papers_figures_stand_beside_those_of_their_model_and_task(tmp_path, write_run):
    def figures(folder, **changes):
        return [entry.value for entry in cited.citations(read_run(write_run(tmp_path / folder, **changes)))]

    full = {"provenance__data__sequence_length": 1999}
    assert figures("wavspa", **full) == [55.40]
    assert figures("none", model__space="none", model__attention="performer", **full) == [18.01]
    assert figures("other", provenance__data__task={"name": "probe"}, **full) == []
    s3 = {
        "model__model_type": "s3attention",
        "provenance__data__task": {"name": "forecasting", "source": "exchange_rate.csv"},
    }
    assert figures("exchange", **s3, objective__horizon=96, objective__input_length=96) == [0.086, 0.204]
    assert figures("far", **s3, objective__horizon=720, objective__input_length=96) == [0.727, 0.669]


@pytest.mark.parametrize(
    ("task", "full", "smaller", "value"),
    [
        ({"name": "listops"}, 1999, 199, 55.40),
        ({"name": "text-bytes"}, 4096, 1000, 81.60),
        ({"name": "retrieval", "columns": ["label", "text1", "text2"]}, 4000, 512, 79.27),
        ({"name": "image", "noise": 0}, 1024, 256, 55.58),
        ({"name": "pathfinder", "path_length": 14}, 1024, 256, 81.12),
    ],
)
def test_a_smaller_version_of_a_task_is_not_compared_with_the_papers(tmp_path, task, full, smaller, value, write_run):
    for length, values in ((full, [value]), (smaller, []), (None, [])):
        about = {"provenance__data__task": task, "provenance__data__sequence_length": length}
        run = read_run(write_run(tmp_path / str(length), **about))
        assert [entry.value for entry in cited.citations(run)] == values


@pytest.mark.parametrize(
    ("task", "length", "model", "values"),
    [
        ({"name": "image", "noise": 8, "noise_splits": "all"}, 1024, {"model_type": "transformer"}, [28.12]),
        ({"name": "image", "noise": 8, "noise_splits": "test"}, 1024, {"model_type": "transformer"}, []),
        ({"name": "image", "noise": 0}, 1024, {"model_type": "transformer"}, [42.44]),
        ("image", 1024, {"model_type": "s3attention"}, []),
        ({"name": "pathfinder", "path_length": 6}, 1024, {"model_type": "transformer"}, []),
        ({"name": "pathfinder", "path_length": 14}, 1024, {"model_type": "transformer"}, [71.40]),
        ({"name": "retrieval", "columns": ["label", "query", "text"]}, 4000, {"model_type": "transformer"}, []),
        ({"name": "forecasting", "source": "exchange_rate.csv"}, 24, {"model_type": "s3attention"}, []),
        ("wikitext", 512, {"model_type": "flt", "spectral_kind": "local", "mask_bound": 1e-12}, [31.1]),
        ("wikitext", 512, {"model_type": "flt", "spectral_kind": "local", "mask_bound": 4.0, "exact_reach": 0}, [30.1]),
        ("wikitext", 512, {"model_type": "flt", "spectral_kind": "local", "mask_bound": 4.0, "exact_reach": 4}, []),
    ],
)
def test_a_variant_of_a_task_or_model_has_the_papers_figures_for_that_variant(
    tmp_path, task, length, model, values, write_run
):
    about = {"provenance__data__task": task, "provenance__data__sequence_length": length, "model": model}
    objective = {"forecasting": "forecasting", "wikitext": "clm"}.get(task if isinstance(task, str) else task["name"])
    if objective is not None:
        about["objective"] = {"name": objective, "input_length": length, "horizon": 96}
    run = read_run(write_run(tmp_path / "run", **about))
    assert [entry.value for entry in cited.citations(run)] == values


def test_every_cited_figure_names_paper_and_table():
    tables_of_papers = cited._tables()
    assert len({table["paper"] for _, table in tables_of_papers}) == 5
    for paper, table in tables_of_papers:
        assert paper["cite"] and re.fullmatch(r"table \w+", table["table"])
        for row in table["rows"]:
            assert len(row["values"]) == len(table["columns"]) and row["name"] and row["model"]
        assert all(column.get("metric", table.get("metric")) for column in table["columns"])

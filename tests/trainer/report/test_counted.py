"""What counting reaches beside language models, at the tokens that their evaluations predict."""

import json

import numpy as np
import pytest

from longmix.data_prep.manifest import fingerprint
from longmix.data_prep.shards import LIST_INT32, write_dataset
from longmix.trainer.objectives.causal_bigram import CausalBigram, pairs
from longmix.trainer.objectives.masking import TokenMasker
from longmix.trainer.objectives.neighbour_bigram import NeighbourBigram, positions
from longmix.trainer.report import counted, plots, tables
from longmix.trainer.report.page import page
from longmix.trainer.samples.dataset import ShardedDataset

VOCABULARY, MASK, SPECIAL = 12, 2, [0, 1, 2]


def write_chain(folder, seed, count):
    """Rows of a first-order chain over tokens 3 to 11; the fingerprint."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        tokens = [int(generator.integers(9))]
        while len(tokens) < 12 + len(rows) % 5:
            tokens.append((tokens[-1] + 2) % 9 if generator.random() < 0.8 else int(generator.integers(9)))
        rows.append({"input_ids": [1, *(3 + token for token in tokens)], "document_starts": [0]})
    columns = {"input_ids": LIST_INT32, "document_starts": LIST_INT32}
    fields = {"vocab_size": VOCABULARY, "mask_token_id": MASK, "pad_token_id": 0, "special_token_ids": SPECIAL}
    return fingerprint(write_dataset(folder, rows, columns, split="train", split_rule="all", **fields))


@pytest.fixture
def data(tmp_path):
    """Changes of a run of language modelling on the chain."""
    noted = {
        f"data.{key}": [write_chain(tmp_path / "chain" / folder, seed, count)]
        for seed, (key, folder, count) in enumerate((("train", "train", 300), ("eval", "validation", 60)))
    }
    return {
        "data": {
            "train": str(tmp_path / "chain" / "train"),
            "eval": str(tmp_path / "chain" / "validation"),
            "test": None,
        },
        "checkpoint__best": None,
        "provenance__data__fingerprints": noted,
        "provenance__data__task": None,
    }


def test_masked_tokens_are_counted_where_evaluations_hide_them(tmp_path, data, write_run, report_of, monkeypatch):
    monkeypatch.setattr(counted, "MOST_TOKENS", 2000)
    objective = {"name": "mlm", "mask_probability": 0.5}
    write_run(tmp_path / "run", **data, objective=objective, eval={"samples": 20, "mask_probability": 0.25})
    report = report_of(tmp_path / "run")
    ((setting, (found,)),) = counted.count(report).items()
    training, evaluation = (ShardedDataset(data["data"][key]) for key in ("train", "eval"))
    masker = TokenMasker(0, 0.25, MASK, VOCABULARY, SPECIAL)
    where = positions(evaluation, np.arange(20) * 3, masker, is_training=False)
    rows = 300 * 2000 // training.manifest.tokens
    bigram = NeighbourBigram(training, np.arange(rows) * 300 // rows, masker)
    assert found.bigram == pytest.approx(bigram.evaluate(where)["loss"], rel=1e-5)
    assert found.unigram == pytest.approx(-np.log(bigram.unigram[where.targets]).mean())
    assert found.bigram < found.unigram - 0.3 and 1900 < found.tokens < 2100
    sentence = f"Counting {found.tokens:,} training tokens reaches a validation loss of {found.unigram:.4g} by unigrams"
    assert found.said.endswith(f"per token {np.exp(found.unigram):.4g} and {np.exp(found.bigram):.4g}.")
    assert sentence in tables.markdown(report, {}, None, {setting: [found]})
    assert sentence in page(report, {}, None, {setting: [found]})


def test_next_tokens_are_counted_and_data_that_have_changed_are_not(tmp_path, data, write_run, report_of):
    write_run(tmp_path / "run", **data, objective={"name": "clm"}, eval={"samples": None})
    report = report_of(tmp_path / "run")
    (((found,),),) = [counted.count(report).values()]
    training, evaluation = (ShardedDataset(data["data"][key]) for key in ("train", "eval"))
    expected = CausalBigram(training, np.arange(300)).loss(pairs(evaluation, np.arange(60)))
    assert found.bigram == pytest.approx(expected) and found.tokens == training.manifest.tokens
    data["provenance__data__fingerprints"]["data.train"] = ["other data"]
    write_run(tmp_path / "other", **data, objective={"name": "clm"}, eval={"samples": None})
    assert counted.count(report_of(tmp_path / "other")) == {}


def test_rows_with_other_evaluations_are_marked_and_have_lines_of_their_own(
    tmp_path, data, write_run, report_of, monkeypatch
):
    """In the plot lines of one name look alike: they are one entry of the legend, with letters on each."""
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    for name, samples in (("few", 20), ("all", None), ("again", None)):
        changes = {"optim__lr": {"few": 1e-3, "all": 1e-3, "again": 3e-3}[name], "eval": {"samples": samples}}
        run = write_run(tmp_path / name, **data, objective={"name": "mlm", "mask_probability": 0.15}, **changes)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        # An evaluation between two records of training.
        records.insert(-1, {"kind": "eval", "step": 25, "loss": 0.5, "masked_accuracy": 0.5})
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report = report_of(tmp_path / "few", tmp_path / "all", tmp_path / "again")
    assert [row.letter for row in report.rows] == ["A", "B", "B"]
    assert "Not held equal: evaluated samples" in tables.markdown(report, {}, None)
    reached = counted.count(report)
    ((of_few, of_all),) = reached.values()
    assert (of_few.letters, of_all.letters) == (("A",), ("B",)) and of_few.bigram != of_all.bigram
    lines, flat = [], []
    plot, axhline = Axes.plot, Axes.axhline
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: (lines.append((*a, k["label"])), plot(self, *a, **k))[1])
    monkeypatch.setattr(Axes, "axhline", lambda self, y, **k: (flat.append((y, k["label"])), axhline(self, y, **k))[1])
    drawn, savefig = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), savefig(self, *a, **k))[1])
    ((what, name, _), *_), *_ = plots.draw(report, reached).values()
    assert what.startswith("Loss over tokens, ") and name.startswith("tokens-")
    tokens, losses, label = lines[0]
    assert tokens == pytest.approx([0, 3600, 4500, 7200]) and losses == [1.0, 1.0, 0.5, 1.0]
    assert label.endswith("(A)") and [label[-3:] for _, _, label in lines[1:3]] == ["(B)", "(B)"]
    assert flat == [
        (of_few.unigram, "unigram"),
        (of_few.bigram, "interpolated bigram"),
        (of_all.unigram, None),
        (of_all.bigram, None),
    ]
    (legend,), (axes,) = drawn[0].legends, drawn[0].axes
    assert [text.get_text() for text in legend.get_texts()][3:] == ["unigram", "interpolated bigram"]
    on = {(text.xy[1], text.get_text()): text.get_window_extent() for text in axes.texts}
    assert set(on) == {(loss, each.letters[0]) for each in (of_few, of_all) for loss in (each.unigram, each.bigram)}
    # However close the lines are, no letter covers another.
    ends, starts = ([box for (_, letter), box in on.items() if letter == of] for of in "AB")
    assert max(box.x1 for box in ends) < min(box.x0 for box in starts)
    assert "letters on them" in axes.get_title(loc="right")

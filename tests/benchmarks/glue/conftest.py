"""Made files of the GLUE table, and a table of theirs."""

import dataclasses
import itertools
import random

import pytest

RECIPE = """
objective: {name: mlm, mask_probability: 0.15}
batch: {samples: 4, micro_batch: 4}
optim: {lr: 1e-3, warmup_steps: 1, max_steps: 10}
precision: fp32
"""

WORDS = ["".join(parts) for parts in itertools.product("bdfgkl", "aeiou", "mnprst", ("", "o", "an"))]


def sentences(count, seed):
    """Made reviews: the words of a kind say the label."""
    draw, kinds = random.Random(seed), (("bad", "dull", "poor"), ("good", "fine", "great"))
    made = []
    for number in range(count):
        words = draw.choices(WORDS, k=8)
        words.insert(draw.randrange(8), draw.choice(kinds[number % 2]))
        made.append((" ".join(words), number % 2))
    return made


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A corpus, GLUE's folder with SST-2 and CoLA, IMDb's, and a recipe, all made."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("glue/SST-2", "glue/CoLA", "imdb"):
        (folder / name).mkdir(parents=True)
    # Paragraphs of several sentences, for a document is more than a line.
    texts = [". ".join(text for text, _ in sentences(6, seed)) for seed in range(300)]
    (folder / "wiki.txt").write_text("\n\n".join(texts[:150]))
    rows = [f"{number}\t{text}<br /><br />end" for number, text in enumerate(texts[150:])]
    (folder / "unlabelled.tsv").write_text("id\ttext\n" + "\n".join(rows) + "\n")
    for file, count in (("train.tsv", 60), ("dev.tsv", 20)):
        pairs = sentences(count, len(file))
        (folder / "glue/SST-2" / file).write_text("sentence\tlabel\n" + "".join(f"{t}\t{y}\n" for t, y in pairs))
        (folder / "glue/CoLA" / file).write_text("".join(f"x\t{y}\t\t{t}\n" for t, y in pairs))
    for file, count in (("train.tsv", 60), ("test.tsv", 30)):
        pairs = sentences(count, count)
        lines = [f"{y}\t{n}\t7\t{t}<br /><br />so" for n, (t, y) in enumerate(pairs)]
        (folder / "imdb" / file).write_text("label\tid\trating\ttext\n" + "\n".join(lines) + "\n")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture
def budget(script, files):
    made = script("glue_table.budget").Budget.of("tiny", 4000, recipe=files / "recipe.yaml")
    rates = {"rates": (7.5e-4, 1.5e-3, 3e-3), "tuning_rates": (2e-4, 6e-4, 2e-3)}
    return dataclasses.replace(made, **rates, labels=20, passed_over=5, reported=10)


@pytest.fixture
def table(script, budget, tmp_path, monkeypatch):
    """A table without data: what a sample holds is said here."""
    monkeypatch.setattr(script("glue_table.cases"), "tokens_of_a_sample", lambda folder: 100.0)
    monkeypatch.setattr(script("glue_table.plan"), "validation_tokens", lambda folder: 300)
    sizes = {"examples": 20, "reported": 10, "train_tokens": 900, "reported_tokens": 300}
    return script("glue_table.cases").Table(tmp_path / "work", budget, tmp_path / "corpus", {"imdb": sizes})

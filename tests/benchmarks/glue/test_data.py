"""What the GLUE table reads: its share of a corpus, its tasks, and the classifier beside them."""

import dataclasses
import json

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.tokenizer import train_tokenizer
from longmix.trainer.finetune.custom import load_custom
from longmix.trainer.finetune.sources import load_task
from longmix.trainer.finetune.tasks import TASKS as GLUE


def test_a_short_file_leaves_its_share_to_the_others(script):
    shares = script("glue_table.data")._shares
    assert shares([100, 1000, 1000], 900) == [100, 400, 400]
    assert shares([1000, 1000], 900) == [450, 450]
    assert shares([10, 20], 900) == [10, 20] == shares([10, 20], None)


def test_what_is_shown_lies_behind_what_is_read_and_a_gap(script, tmp_path):
    data = script("glue_table.data")
    lines = [f"{number:03d} {'word ' * 9}" for number in range(200)]
    size = len(lines[0]) + 1  # of a line; each has as many bytes
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "b.tsv").write_text("text\n" + "".join(f"{line}\n" for line in lines))
    made = {}
    for name, wanted in (("a.txt", 100 * size), ("b.tsv", 100 * (size + len('{"text": ""}')))):
        for _ in range(2):  # what is there is not made again
            made[name] = [path.read_text() for path in data._beginning(tmp_path / name, wanted, tmp_path / name[0])]
        assert [path.read_text() for path in data._beginning(tmp_path / name, 1, tmp_path / name[0])] == made[name]
    train, held_out = made["a.txt"]
    assert train.splitlines() == lines[:100] and held_out.splitlines() == lines[101:102]
    train, held_out = ([json.loads(line)["text"] for line in text.splitlines()] for text in made["b.tsv"])
    assert train == lines[:100] and held_out == lines[101:102]
    # A file of which all is read has nothing behind it.
    for name in ("a.txt", "b.tsv"):
        assert data._beginning(tmp_path / name, 10**6, tmp_path / f"{name}-whole")[1] is None


def test_rates_are_chosen_on_other_documents_than_those_that_are_shown(script, files, table, tmp_path):
    data = script("glue_table.data")
    corpus = data.corpus(tmp_path / "w", [files / "unlabelled.tsv", files / "wiki.txt"], 8000, 1)
    assert data.shown(corpus) == "test"
    of_table = dataclasses.replace(table, corpus=corpus)
    for case in of_table.search("flt"):
        case.finish({"loss": 5.0})
        assert f"data.eval={corpus / 'validation'}" in case.words
    assert f"data.eval={corpus / 'test'}" in of_table.pretraining("flt", 0).words
    # All of the files is read: what is shown is what rates are chosen on.
    whole = data.corpus(tmp_path / "whole", [files / "unlabelled.tsv", files / "wiki.txt"], None, 1)
    assert data.shown(whole) == "validation" and not (whole / "test").exists()


def test_tasks_have_few_labels_and_the_dev_set_as_it_is(script, files, budget, tmp_path):
    data = script("glue_table.data")
    about = data.tasks(tmp_path, budget, files / "glue", files / "imdb")
    assert {name: (one["examples"], one["reported"]) for name, one in about.items()} == {
        "sst2": (20, 20),
        "imdb": (20, 10),
        "cola": (60, 20),
    }
    for name in ("sst2", "cola"):
        made = load_task(str(data.task_folder(tmp_path, name)), GLUE[name])
        given = load_task(str(files / "glue"), GLUE[name])
        assert made.dev["dev"].first == given.dev["dev"].first and made.dev["dev"].labels == given.dev["dev"].labels
        assert set(zip(made.train.first, made.train.labels, strict=True)) <= set(
            zip(given.train.first, given.train.labels, strict=True)
        )
        assert not made.test and len(set(made.train.labels)) == 2
    reviews = load_custom(str(data.task_folder(tmp_path, "imdb")), ("text",), "label")
    assert all(text.endswith("  so") and "<br" not in text for text in reviews.train.first)
    # The same examples whenever they are drawn.
    again = tmp_path / "again"
    assert data.tasks(again, budget, files / "glue", files / "imdb") == about
    assert data.tasks(again, budget, files / "glue", None).keys() == {"sst2", "cola"}
    assert data.tasks(again, budget, None, files / "imdb").keys() == {"imdb"}
    for path in (tmp_path / "data").rglob("*.tsv"):
        assert path.read_bytes() == (again / path.relative_to(tmp_path)).read_bytes()


def test_a_linear_classifier_of_the_pieces_learns_words_and_no_order(script, tmp_path):
    bag_of_words, data = script("glue_table.bag_of_words"), script("glue_table.data")
    tokenizer = tmp_path / "tokenizer"
    train_tokenizer(["the cat sees a dog", "an old bird runs again"] * 20, tokenizer, 25, model_max_length=16)
    folder = data.task_folder(tmp_path, "imdb")
    folder.mkdir(parents=True)
    words = [("the cat sees", "the bird sees"), ("a dog runs", "the old dog runs")]
    rows = [(f"{text} {'again ' * number}", label) for number in range(8) for label in (0, 1) for text in words[label]]
    for split in ("train", "dev"):
        lines = ["text\tlabel", *(f"{text.strip()}\t{label}" for text, label in rows)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    assert bag_of_words.score(tmp_path, "imdb", tokenizer) == 1.0
    place = data.task_folder(tmp_path, "cola") / "CoLA"
    place.mkdir(parents=True)
    for split in ("train", "dev"):  # the same words in another order
        lines = [f"-\t{label}\t\t{text}" for text, label in (("cat sees dog", 1), ("dog sees cat", 0)) * 8]
        (place / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    assert bag_of_words.score(tmp_path, "cola", tokenizer) == 0.0


def test_reviews_by_which_something_was_found_are_not_reported(script, files, budget, tmp_path):
    data = script("glue_table.data")

    def reported(name, **counts):
        data.tasks(tmp_path / name, dataclasses.replace(budget, **counts), None, files / "imdb")
        return load_custom(str(data.task_folder(tmp_path / name, "imdb")), ("text",), "label").dev["dev"].first

    # Made reviews may be equal: what is told apart is their order.
    seen, fresh = reported("seen", passed_over=0, reported=5), reported("fresh", passed_over=5, reported=10)
    assert reported("both", passed_over=0, reported=15) == seen + fresh
    with pytest.raises(UserError, match=r"test\.tsv has 30 reviews, and the first 30 of their shuffled order are"):
        reported("none", passed_over=30)


def test_a_task_that_is_not_given_has_no_column(script, files, budget, tmp_path):
    data = script("glue_table.data")
    (tmp_path / "empty").mkdir()
    assert data.tasks(tmp_path, budget, tmp_path / "empty", None) == {}


def test_a_table_of_other_columns_is_refused_with_its_name(script, files, budget, tmp_path):
    data = script("glue_table.data")
    for file in ("train.tsv", "test.tsv"):
        (tmp_path / file).write_text("review\tlabel\nfine\t1\n")
    with pytest.raises(UserError, match=r"train\.tsv: no column 'text' in its header; it has: review, label"):
        data.tasks(tmp_path / "work", budget, None, tmp_path)


def test_the_order_of_the_examples_chooses_no_penalty(script, tmp_path):
    """CoLA's lie by their sources: folds of a source each would say that nothing can be learned."""
    bag_of_words, data = script("glue_table.bag_of_words"), script("glue_table.data")
    words = [letter * 3 for letter in "bcdfghjklm"]
    tokenizer = tmp_path / "tokenizer"
    train_tokenizer([" ".join(words)] * 40, tokenizer, 24, model_max_length=16)
    place = data.task_folder(tmp_path, "cola") / "CoLA"
    place.mkdir(parents=True)
    rows = [(word, number % 2) for number, word in enumerate(words) for _ in range(12 if number % 2 else 3)]
    for split in ("train", "dev"):
        (place / f"{split}.tsv").write_text("".join(f"-\t{label}\t\t{word}\n" for word, label in rows))
    assert bag_of_words.score(tmp_path, "cola", tokenizer) == 1.0

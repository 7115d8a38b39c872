"""The embedded corpus and task: repeatable, in CoLA's format, and held out for real."""

import re

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.tasks.embedded import write_embedded
from longmix.data_prep.text.documents import TITLE_RULE, parse_rule, split_documents
from longmix.data_prep.text.sources import find_sources

# The corpus is cut from the standard library: seconds, before anything is tested.
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    return write_embedded(tmp_path_factory.mktemp("embedded") / "python")


def read_task(embedded, split):
    lines = (embedded.glue / "CoLA" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines]


def test_corpus_is_cut_into_its_documents_without_being_told(embedded):
    (source,) = find_sources([str(embedded.text)])
    rule, documents = split_documents(source.parts[0].units(), parse_rule(None), is_records=False)
    assert rule == TITLE_RULE
    assert len(list(documents)) == embedded.documents > 100
    assert embedded.text.stat().st_size == embedded.bytes > 500_000


def test_task_has_colas_format(embedded):
    for split in ("train", "dev"):
        rows = read_task(embedded, split)
        assert len(rows) == embedded.sentences[split] > 100
        assert all(len(row) == 4 and row[2] == ("" if row[1] == "1" else "*") for row in rows)
        share = sum(row[1] == "1" for row in rows) / len(rows)
        assert 0.4 < share < 0.6
    header, *rows = read_task(embedded, "test")
    assert header == ["index", "sentence"]
    assert [int(row[0]) for row in rows] == list(range(embedded.sentences["test"]))


def test_sentences_are_of_documents_outside_the_corpus(embedded):
    corpus = " ".join(embedded.text.read_text(encoding="utf-8").split())
    titles = set(re.findall(r"(?m)^ = (.+) = $", embedded.text.read_text(encoding="utf-8")))
    splits = {split: read_task(embedded, split) for split in ("train", "dev")}
    sources = {split: {row[0] for row in rows} for split, rows in splits.items()}
    assert not sources["train"] & sources["dev"]
    assert not (sources["train"] | sources["dev"]) & titles
    as_written = [row[3] for rows in splits.values() for row in rows if row[1] == "1"]
    # A sentence may still lie within a longer one of the corpus, which is not the same sentence.
    assert sum(sentence in corpus for sentence in as_written) <= 0.01 * len(as_written)
    everything = [row[3] for rows in splits.values() for row in rows]
    assert len(set(everything)) == len(everything)


def test_exchanged_sentences_hold_the_same_words_in_another_order(embedded):
    whole = {tuple(sorted(row[3].split())) for row in read_task(embedded, "train") if row[1] == "0"}
    written = {tuple(sorted(row[3].split())) for row in read_task(embedded, "train") if row[1] == "1"}
    assert len(whole & written) < 0.01 * len(whole), "no sentence appears in both forms"


def test_a_second_call_uses_the_first_and_a_fresh_one_repeats_it(embedded, tmp_path):
    stamp = embedded.text.stat().st_mtime_ns
    assert write_embedded(embedded.text.parent.parent) == embedded
    assert embedded.text.stat().st_mtime_ns == stamp
    again = write_embedded(tmp_path / "again")
    first, second = embedded.text.parent.parent, again.text.parent.parent
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in files)


def test_foreign_folder_and_python_without_documentation(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match=r"holds notes\.txt, which longmix did not write there"):
        write_embedded(tmp_path)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="full standard library"):
        write_embedded(tmp_path / "new")


def test_the_task_has_files_of_its_own_with_the_names_of_its_classes(embedded):
    for split in ("train", "dev"):
        header, *rows = (embedded.task / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        assert header == "sentence\tlabel"
        names = {"1": "as written", "0": "exchanged"}
        assert rows == [f"{row[3]}\t{names[row[1]]}" for row in read_task(embedded, split)]


def test_the_task_says_itself_that_it_is_not_cola(embedded):
    from longmix.trainer.finetune.sources import load_task
    from longmix.trainer.finetune.tasks import TASKS

    data = load_task(str(embedded.glue), TASKS["cola"])
    assert data.notes == [" ".join((embedded.glue / "CoLA" / "note.txt").read_text(encoding="utf-8").split())]
    assert "exchanged words in Python's documentation" in data.notes[0] and "Not CoLA" in data.notes[0]

"""The first look at the sources: the split's threshold, and the tokenizer's sample."""

import random

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.text.documents import parse_rule
from longmix.data_prep.text.first_look import take_first_look
from longmix.data_prep.text.reading import Reader
from longmix.data_prep.text.sources import find_sources


def make_sources(folder, texts):
    path = folder / "corpus.txt"
    path.write_text("\n\n".join(texts))
    return find_sources([str(path)])


def look_at(sources, **options):
    return take_first_look(sources, parse_rule(None), with_sample=True, advance=lambda size: None, **options)


def test_sample_holds_training_documents_only(tmp_path):
    sources = make_sources(tmp_path, [f"document {index}" for index in range(500)])
    look = look_at(sources)
    documents = list(Reader(sources, parse_rule(None)))
    training = {document.text for document in documents if document.digest >= look.threshold}
    assert set(look.sample) == training
    assert 0 < len(documents) - len(training) < 100
    assert look.documents == 500


def test_sample_is_bounded_spread_out_and_free_of_the_order(tmp_path):
    texts = [f"document {index} " + "x" * 80 for index in range(5000)]
    sample = look_at(make_sources(tmp_path, texts), sample_characters=20_000).sample
    assert 20_000 <= sum(map(len, sample)) < 20_200
    positions = sorted(int(text.split()[1]) for text in sample)
    assert positions[0] < 250 and positions[-1] > 4750
    random.Random(0).shuffle(texts)
    assert look_at(make_sources(tmp_path, texts), sample_characters=20_000).sample == sample


def test_threshold_is_one_percent_of_a_large_corpus_and_more_of_a_small_one(tmp_path):
    large = look_at(make_sources(tmp_path, [f"{index} " + "x" * 1000 for index in range(30_000)]))
    assert large.threshold == (1 << 64) // 100
    small = look_at(make_sources(tmp_path, [f"{index:03} " + "x" * 1000 for index in range(200)]))
    documents = Reader(make_sources(tmp_path, [f"{index:03} " + "x" * 1000 for index in range(200)]), parse_rule(None))
    assert sum(document.digest < small.threshold for document in documents) == 10


@pytest.mark.parametrize("count", [2, 3])
def test_the_smallest_corpora_have_both_splits(tmp_path, count):
    for trial in range(50):
        sources = make_sources(tmp_path, [f"{trial} {index}" for index in range(count)])
        look = look_at(sources)
        split = [document.digest < look.threshold for document in Reader(sources, parse_rule(None))]
        assert True in split and False in split
        assert look.sample


def test_what_cannot_be_split_is_refused(tmp_path):
    with pytest.raises(UserError, match="one document:"):
        look_at(make_sources(tmp_path, ["alone"]))
    with pytest.raises(UserError, match="3 documents, all alike"):
        look_at(make_sources(tmp_path, ["same"] * 3))

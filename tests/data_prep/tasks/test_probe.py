"""longmix prepare probe: every label stands at its distance, and the samples depend on nothing but the settings."""

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import locked
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.manifest_fields import IGNORED
from longmix.data_prep.tasks import probe
from longmix.data_prep.tasks.probe import ProbeSettings, make_sample, prepare_probe


def samples_of(settings, count=200, split="train"):
    return [make_sample(settings, split, index) for index in range(count)]


@pytest.mark.parametrize("direction", ["left", "right"])
@pytest.mark.parametrize("distance", [1, 4, 16])
def test_copy_labels_every_position_that_has_the_neighbour(direction, distance):
    offset = -distance if direction == "left" else distance
    lengths = set()
    for sample in samples_of(ProbeSettings("copy", distance, direction)):
        tokens, labels = sample["input_ids"], sample["labels"]
        lengths.add(len(tokens))
        assert "token_type_ids" not in sample
        for position, label in enumerate(labels):
            there = position + offset
            assert label == (tokens[there] - 1 if 0 <= there < len(tokens) else IGNORED)
    assert min(lengths) >= distance + 1 and max(lengths) <= 2 * distance + 2 and len(lengths) > 1


@pytest.mark.parametrize("direction", ["left", "right"])
@pytest.mark.parametrize("distance", [4, 16, 64])
def test_lookup_labels_the_queries_with_the_values_of_their_keys(direction, distance):
    for sample in samples_of(ProbeSettings("lookup", distance, direction)):
        tokens, labels = np.asarray(sample["input_ids"]), np.asarray(sample["labels"])
        is_query = tokens >= probe.FIRST_QUERY
        pairs = np.flatnonzero((tokens >= probe.FIRST_PAIR) & ~is_query)
        queries = np.flatnonzero(is_query)
        assert len(pairs) == len(queries) == probe.PAIRS and len(set(tokens[queries])) == probe.PAIRS
        assert ((labels != IGNORED) == is_query).all()
        values = {(tokens[place] - probe.FIRST_PAIR) // probe.VALUES: None for place in pairs}
        assert len(values) == probe.PAIRS, "two pairs with one key"
        for place in pairs:
            key, values[key] = divmod(tokens[place] - probe.FIRST_PAIR, probe.VALUES)
        assert [values[tokens[place] - probe.FIRST_QUERY] for place in queries] == labels[queries].tolist()
        between = queries - pairs
        assert (between == (distance if direction == "left" else -distance)).all()


@pytest.mark.parametrize("task", ["copy", "lookup"])
def test_both_directions_are_told_by_the_token_types(task):
    settings = ProbeSettings(task, 5, length=30)
    samples = samples_of(settings)
    kinds = [set(sample["token_type_ids"]) for sample in samples]
    assert all(len(kind) == 1 for kind in kinds) and 0.3 < np.mean([kind == {1} for kind in kinds]) < 0.7
    for sample, (kind,) in zip(samples, kinds, strict=True):
        tokens, labels = np.asarray(sample["input_ids"]), np.asarray(sample["labels"])
        if task == "copy":
            shifted = tokens[5:] if kind else tokens[:-5]
            assert (labels[labels != IGNORED] == shifted - 1).all()
        else:
            first_query = np.argmax(tokens >= probe.FIRST_QUERY)
            first_pair = np.argmax((tokens >= probe.FIRST_PAIR) & (tokens < probe.FIRST_QUERY))
            assert first_query - first_pair == (-5 if kind else 5)


def test_samples_depend_on_seed_split_and_number_alone():
    settings = ProbeSettings("lookup", 8)
    everything = samples_of(settings, 20)
    alone = make_sample(settings, "train", 13)
    assert all((everything[13][name] == alone[name]).all() for name in alone)
    others = [
        make_sample(settings, "validation", 13),
        make_sample(ProbeSettings("lookup", 8, seed=1), "train", 13),
        everything[12],
    ]
    assert all(other["input_ids"].tolist() != alone["input_ids"].tolist() for other in others)


def test_the_folder_tells_the_trainer_what_it_needs(tmp_path, rows_of):
    settings = ProbeSettings("copy", 4, samples=30)
    prepare_probe(settings, tmp_path / "out")
    train, validation = (Manifest.load(tmp_path / "out" / split) for split in ("train", "validation"))
    assert (train.samples, validation.samples) == (30, 3)
    assert (train.num_labels, train.vocab_size, train.pad_token_id) == (16, 17, 0)
    assert train.sequence_length == 10 and train.tokenizer is None and train.mask_token_id is None
    rows = rows_of(tmp_path / "out" / "train")
    expected = [make_sample(settings, "train", index) for index in range(30)]
    assert rows == [{name: values.tolist() for name, values in sample.items()} for sample in expected]


def test_a_second_call_keeps_what_is_there_and_an_interrupted_one_is_finished(tmp_path):
    settings = ProbeSettings("copy", 4, samples=20)
    first = prepare_probe(settings, tmp_path)
    stamps = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*.parquet"))]
    assert prepare_probe(settings, tmp_path) == first
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*.parquet"))] == stamps
    for path in (tmp_path / "validation").iterdir():
        path.unlink()
    (tmp_path / "validation").rmdir()
    (tmp_path / ".validation.77.new").mkdir()
    assert prepare_probe(settings, tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train", "validation"]


def test_other_data_are_never_replaced(tmp_path):
    prepare_probe(ProbeSettings("copy", 4, samples=20), tmp_path / "probe")
    for other in (ProbeSettings("copy", 5, samples=20), ProbeSettings("copy", 4, samples=20, seed=1)):
        with pytest.raises(UserError, match="already holds other data"):
            prepare_probe(other, tmp_path / "probe")
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match=r"notes\.txt|probe"):
        prepare_probe(ProbeSettings("copy", 4), tmp_path)
    with pytest.raises(UserError, match="is a file"):
        prepare_probe(ProbeSettings("copy", 4), tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("copy", 0), "--distance is 0, but copy needs at least 1"),
        (("lookup", 3), "--distance is 3, but lookup needs at least 4"),
        (("copy", 16, "left", 16), "--length is 16, but copy at distance 16 needs at least 17"),
        (("lookup", 16, "left", 19), "--length is 19, but lookup at distance 16 needs at least 20"),
        (("copy", 4, "left", 99999999999), "--length is 99999999999, but must be at most 131072"),
        (("copy", 131072), "--distance is 131072, but must be at most 131071 for copy"),
        (("lookup", 10**30), "--distance is 1000000000000000000000000000000, but must be at most 131068 for lookup"),
        (("copy", 4, "both", None, 0), "--samples is 0"),
        (("copy", 4, "both", None, 1, -1), "--seed is -1"),
        (("sort", 4), "--task is 'sort', but must be one of copy, lookup"),
        (("copy", 4, "up"), "--direction is 'up'"),
    ],
)
def test_mistakes_name_the_option_its_value_and_what_is_allowed(options, message):
    with pytest.raises(UserError, match=message):
        ProbeSettings(*options)


def test_the_longest_samples_can_be_made():
    for task, distance in (("copy", 131071), ("lookup", 131068)):
        settings = ProbeSettings(task, distance)
        assert len(make_sample(settings, "train", 0)["labels"]) == settings.length == 131072


@pytest.mark.parametrize("output", ["file/probe", "file/deep/probe", "/proc/probe"])
def test_an_output_that_cannot_be_written(tmp_path, output):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UserError, match="cannot be used"):
        prepare_probe(ProbeSettings("copy", 4, samples=2), tmp_path / output)


def test_an_output_that_another_process_writes(tmp_path):
    with locked(tmp_path), pytest.raises(UserError, match="at work in"):
        prepare_probe(ProbeSettings("copy", 4, samples=2), tmp_path)


def test_the_command_makes_the_folder_and_says_what_it_holds(tmp_path, capsys, run_prepare, rows_of):
    words = ["probe", "--task", "lookup", "--distance", "9", "--direction", "right", "--length", "20"]
    assert run_prepare(*words, "--samples", "12", "--seed", "3", "--output", tmp_path) == 0
    assert "train: 12 samples" in (text := capsys.readouterr().out) and "validation: 2 samples" in text
    settings = ProbeSettings("lookup", 9, "right", 20, 12, 3)
    assert rows_of(tmp_path / "train")[5]["input_ids"] == make_sample(settings, "train", 5)["input_ids"].tolist()

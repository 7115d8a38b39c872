import dataclasses
import itertools

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import sha256_of_folder
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tokenizer import encode, load_tokenizer
from longmix.trainer.export.card import inputs_of
from longmix.trainer.finetune import encode as encode_module
from longmix.trainer.finetune.encode import Encoder, encode_task, load_encoder, longest_first, selection_split
from longmix.trainer.finetune.jobs import read_labels
from longmix.trainer.finetune.readers import Examples
from longmix.trainer.finetune.sources import TaskData
from longmix.trainer.finetune.tasks import TASKS, custom_task
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.label_scale import LabelScale


def examples(count, pairs=False, labels=True, classes=2):
    return Examples(
        first=[f"the cat sees {i}" for i in range(count)],
        second=[f"a dog {i}" for i in range(count)] if pairs else None,
        labels=[i % classes for i in range(count)] if labels else None,
        indices=[str(i) for i in range(count)],
    )


def own_encoder(folder, max_length=16, token_types=True):
    tokenizer = load_tokenizer(folder)
    return Encoder(tokenizer, max_length, max_length, token_types, True, len(tokenizer))


def test_longest_first_cuts_one_token_at_a_time():
    for a, b, room in itertools.product(range(9), range(9), range(2, 12)):
        left, right = a, b
        while left + right > room:
            if left > right:
                left -= 1
            else:
                right -= 1
        assert longest_first(a, b, room) == (left, right)


def test_own_tokenizer_layout(tokenizer_folder):
    encoder = own_encoder(tokenizer_folder)
    cls, sep = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
    (a, b) = encode(encoder.tokenizer, ["the cat", "dog"])
    (pair,) = encoder.encode(["the cat"], ["dog"])
    assert pair["input_ids"] == [cls, *a, sep, *b, sep]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    (single,) = own_encoder(tokenizer_folder, token_types=False).encode(["the cat"], None)
    assert single == {"input_ids": [cls, *a, sep]}


def test_literal_special_tokens_stay_text(tokenizer_folder):
    encoder = own_encoder(tokenizer_folder)
    (sample,) = encoder.encode(["[MASK] [SEP]"], None)
    assert encoder.tokenizer.mask_token_id not in sample["input_ids"]
    assert sample["input_ids"].count(encoder.tokenizer.sep_token_id) == 1


def test_truncation_keeps_the_frame(tokenizer_folder):
    encoder = own_encoder(tokenizer_folder, max_length=9)
    (sample,) = encoder.encode(["the cat " * 20], ["dog"])
    cls, sep = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
    assert len(sample["input_ids"]) == 9
    assert sample["input_ids"][0] == cls and sample["input_ids"][-1] == sep
    assert sample["input_ids"][-2:-1] == encode(encoder.tokenizer, ["dog"])[0][-1:]
    (single,) = encoder.encode(["the cat " * 20], None)
    assert len(single["input_ids"]) == 9 and single["input_ids"][-1] == sep


def test_other_encoders_use_their_own_tokenizer(bert_folder):
    encoder = load_encoder(str(bert_folder), None)
    assert (encoder.max_length, encoder.token_types, encoder.literal) == (32, True, False)
    (sample,) = encoder.encode(["the cat"], ["a dog"])
    tokenizer = encoder.tokenizer
    assert tokenizer.convert_ids_to_tokens(sample["input_ids"]) == ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "[SEP]"]
    assert sample["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    (cut,) = load_encoder(str(bert_folder), 8).encode(["the " * 30], ["a dog"])
    assert tokenizer.convert_ids_to_tokens(cut["input_ids"]) == [
        "[CLS]",
        "the",
        "the",
        "the",
        "[SEP]",
        "a",
        "dog",
        "[SEP]",
    ]


def test_checkpoints_that_cannot_be_used(tmp_path, bert_folder):
    with pytest.raises(UserError, match=r"is no loadable checkpoint"):
        load_encoder(str(tmp_path), None)
    with pytest.raises(UserError, match="no such folder"):
        load_encoder(str(tmp_path / "absent"), None)
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"is a run folder; its checkpoint is .*model"):
        load_encoder(str(tmp_path / "run"), None)
    with pytest.raises(UserError, match=r"--max-length is 64, but .* takes 8 to 32"):
        load_encoder(str(bert_folder), 64)


def test_selection_split_is_stratified_and_disjoint():
    train = examples(100)
    train.labels = [1] * 70 + [0] * 30
    kept, held_out = selection_split(train, TASKS["cola"])
    assert sorted(kept + held_out) == list(range(100))
    assert [train.labels[i] for i in held_out].count(1) == 7 and len(held_out) == 10
    assert selection_split(train, TASKS["cola"]) == (kept, held_out)
    assert len(selection_split(examples(50_000), TASKS["sst2"])[1]) == 2000
    alike = examples(20)
    alike.labels = list(range(20))
    with pytest.raises(UserError, match=r"every class occurs once .*give --regression"):
        selection_split(alike, custom_task(("text",), "number", tuple(map(str, range(20)))))
    with pytest.raises(UserError, match="9 training examples; at least 10"):
        selection_split(examples(9), TASKS["cola"])


def test_a_class_with_one_example_stays_in_training():
    train = examples(20)
    train.labels = [0] * 19 + [1]
    kept, held_out = selection_split(train, TASKS["cola"])
    assert 19 in kept and len(held_out) == 2


def test_data_sets_on_disk(tmp_path, tokenizer_folder):
    data = TaskData(
        TASKS["rte"], examples(40, True), {"dev": examples(5, True)}, {"test": examples(3, True, labels=False)}, "x"
    )
    encoded = encode_task(data, own_encoder(tokenizer_folder), tmp_path / "data", tokenizer_folder)
    assert encoded.train_samples == 36
    train, selection = Manifest.load(tmp_path / "data" / "train"), Manifest.load(tmp_path / "data" / "selection")
    assert (train.samples, selection.samples, train.num_labels) == (36, 4, 2)
    assert train.label_names == ["entailment", "not_entailment"]
    assert train.tokenizer == {"path": "../tokenizer", "sha256": sha256_of_folder(tokenizer_folder)}
    assert sha256_of_folder(tmp_path / "data" / "tokenizer") == train.tokenizer["sha256"]
    assert "4 of 40 training examples" in selection.split_rule
    dataset = ShardedDataset(str(tmp_path / "data" / "dev"))
    rows = dataset.read(np.arange(5))
    assert [int(row["labels"]) for row in rows] == data.dev["dev"].labels
    assert len(rows[0]["token_type_ids"]) == len(rows[0]["input_ids"])
    assert "labels" not in Manifest.load(tmp_path / "data" / "test").columns
    # The dev file never reaches the selection split: its texts come from the training file.
    texts = {
        tuple(row["input_ids"].tolist())
        for row in ShardedDataset(str(tmp_path / "data" / "selection")).read(np.arange(4))
    }
    given = {tuple(s["input_ids"]) for s in own_encoder(tokenizer_folder).encode(data.train.first, data.train.second)}
    assert texts <= given


def test_data_sets_are_reused_until_something_changes(tmp_path, tokenizer_folder):
    data = TaskData(TASKS["cola"], examples(20), {"dev": examples(5)}, {}, "x")
    encoder = own_encoder(tokenizer_folder)
    folder = tmp_path / "data"
    first = encode_task(data, encoder, folder, tokenizer_folder)
    stamp = (folder / "train" / "manifest.json").stat().st_ino
    assert encode_task(data, encoder, folder, tokenizer_folder) == first
    assert (folder / "train" / "manifest.json").stat().st_ino == stamp
    shorter = dataclasses.replace(encoder, max_length=8)
    assert encode_task(data, shorter, folder, tokenizer_folder).fingerprint != first.fingerprint
    data.train.labels[0] = 1 - data.train.labels[0]
    assert encode_task(data, encoder, folder, tokenizer_folder).fingerprint != first.fingerprint


@pytest.fixture
def values():
    """A task of regression whose labels are far from 0."""
    train = examples(20, True)
    train.labels = [2000 + i / 4 for i in range(20)]
    return TaskData(TASKS["stsb"], train, {"dev": train}, {}, "x")


def test_labels_of_a_regression_are_standardised_by_those_that_are_trained_on(tmp_path, tokenizer_folder, values):
    encode_task(values, own_encoder(tokenizer_folder), tmp_path / "data", tokenizer_folder)
    manifest = Manifest.load(tmp_path / "data" / "dev")
    assert (manifest.num_labels, manifest.label_names, manifest.columns["labels"]["dtype"]) == (None, None, "float32")
    train = ShardedDataset(str(tmp_path / "data" / "train"))
    labels = np.array([sample["labels"] for sample in train.read(np.arange(len(train)))])
    assert abs(labels.mean()) < 1e-6 and labels.std() == pytest.approx(1)
    assert read_labels(tmp_path / "data" / "dev") == pytest.approx(values.train.labels)
    assert inputs_of(manifest).label_scale == LabelScale.of_manifest(train.manifest)


def test_what_an_earlier_version_has_begun_keeps_its_labels(tmp_path, tokenizer_folder, values, monkeypatch):
    encoder, folder = own_encoder(tokenizer_folder), tmp_path / "data"
    hashed = encode_module._fingerprint
    with monkeypatch.context() as earlier:
        earlier.setattr(encode_module.LabelScale, "of", lambda labels: None)
        first = encode_task(values, encoder, folder, tokenizer_folder)
    assert first.fingerprint == hashed(values, encoder, sha256_of_folder(tokenizer_folder))
    assert encode_task(values, encoder, folder, tokenizer_folder) == first
    assert ShardedDataset(str(folder / "dev")).read(np.arange(2))[1]["labels"] == 2000.25
    assert inputs_of(Manifest.load(folder / "dev")).label_scale is None


def test_labels_too_far_from_those_that_are_trained_on_are_told(tmp_path, tokenizer_folder, values):
    values.dev["dev"] = dataclasses.replace(values.train, labels=[1e38] * 20)
    values.train.labels = [1e-3 * label for label in values.train.labels]
    with pytest.raises(UserError, match=r"example 1: its label 1e\+38 lies .* standard deviations from the mean 2"):
        encode_task(values, own_encoder(tokenizer_folder), tmp_path / "data", tokenizer_folder)


def test_answers_have_the_digits_that_tell_labels_apart():
    assert LabelScale(1.7e9, 150.0).rounded(1.7e9 + 150 * 0.123456789) == 1700000018.5185
    assert LabelScale(0.0, 2e-7).rounded(2e-7 * 0.5) == 1e-7


def test_equal_labels_are_no_division_by_zero():
    assert LabelScale.of([0.1] * 1000).standardised(1.1) == 1.0  # whose deviation is rounding

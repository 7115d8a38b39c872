"""Real values, coordinates and second sequences on their way from the shards through a run."""

import json

import numpy as np
import pytest
import torch

from longmix.data_prep.errors import UserError
from longmix.data_prep.shards import LIST_INT32, SCALAR_FLOAT32, SCALAR_INT64, write_dataset
from longmix.trainer.cli import main
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.samples.collate import collate, count_positions
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.run_data import RunData
from longmix.trainer.settings import reading
from longmix.trainer.settings.sections import ObjectiveSection

LONGEST = 12


def vectors(width):
    return {"dtype": "float32", "shape": [None, width]}


def adding(generator):
    """Values (n, 2): numbers, and a mark on two of them, whose sum is the label."""
    length = int(generator.integers(4, LONGEST + 1))
    values = np.zeros((length, 2), dtype=np.float32)
    values[:, 0] = generator.random(length)
    values[generator.choice(length, 2, replace=False), 1] = 1
    return {"values": values, "labels": np.float32((values[:, 0] * values[:, 1]).sum())}


def points(generator):
    """Tokens at places in a cube, and how far they are from its middle on average."""
    length = int(generator.integers(4, LONGEST + 1))
    places = generator.normal(size=(length, 3)).astype(np.float32)
    label = np.float32(np.linalg.norm(places, axis=1).mean())
    return {"input_ids": generator.integers(2, 8, length), "coordinates": places, "labels": label}


def pair(generator):
    """Two sequences of unlike lengths: do they begin with the same token?"""
    first, second = (generator.integers(2, 8, generator.integers(3, LONGEST + 1)) for _ in range(2))
    label = int(generator.integers(2))
    second[0] = first[0] if label else 2 + (first[0] - 1) % 6
    return {"input_ids": first, "input_ids_b": second, "labels": label}


TASKS = {
    "adding": (adding, {"values": vectors(2), "labels": SCALAR_FLOAT32}, {}),
    "points": (
        points,
        {"input_ids": LIST_INT32, "coordinates": vectors(3), "labels": SCALAR_FLOAT32},
        {"vocab_size": 8, "pad_token_id": 0, "mask_token_id": 1, "special_token_ids": [0, 1]},
    ),
    "pair": (
        pair,
        {"input_ids": LIST_INT32, "input_ids_b": LIST_INT32, "labels": SCALAR_INT64},
        {"vocab_size": 8, "pad_token_id": 0, "mask_token_id": 1, "special_token_ids": [0, 1], "num_labels": 2},
    ),
}


def write(folder, name, count, seed, **fields):
    make, columns, own = TASKS[name]
    generator = np.random.default_rng(seed)
    common = {"split": "train", "split_rule": "test", "sequence_length": LONGEST, "packing": "one-per-row"}
    samples = [make(generator) for _ in range(count)]
    return write_dataset(folder, samples, columns, **{**common, **own, **fields}), samples


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with `NAME/train` (96 samples) and `NAME/validation` (40) of each task."""
    folder = tmp_path_factory.mktemp("tasks")
    for name in TASKS:
        write(folder / name / "train", name, 96, 1)
        write(folder / name / "validation", name, 40, 2, split="validation")
    return folder


@pytest.fixture
def of(tasks):
    """of("adding", objective) -> changes of a run file."""

    def changes(name, objective):
        data = {"data.train": str(tasks / name / "train"), "data.eval": str(tasks / name / "validation")}
        return {**data, "objective.name": objective, "eval.samples": None}

    return changes


@pytest.mark.parametrize("name", TASKS)
def test_samples_come_back_as_they_were_written(tmp_path, name):
    manifest, samples = write(tmp_path / "set", name, 300, 0)
    read = ShardedDataset(str(tmp_path / "set")).read(np.arange(300)[::-1])
    for before, now in zip(samples[::-1], read, strict=True):
        assert before.keys() == now.keys()
        for column, value in before.items():
            assert np.asarray(now[column]).dtype.name == TASKS[name][1][column]["dtype"]
            np.testing.assert_array_equal(now[column], value)
    assert manifest.tokens == sum(
        len(sample[column])
        for sample in samples
        for column in sample
        if column in ("input_ids", "input_ids_b", "values")
    )


def test_vectors_are_padded_with_zeros_and_both_sequences_have_their_own_mask():
    sample = {"values": np.ones((2, 3), np.float32), "coordinates": np.full((2, 1), 2, np.float32)}
    longer = {"values": np.ones((3, 3), np.float32), "coordinates": np.full((3, 1), 2, np.float32)}
    batch = collate([sample, longer], None)
    assert batch["values"].dtype == batch["coordinates"].dtype == torch.float32
    assert batch["values"][0].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]] and batch["values"].shape == (2, 3, 3)
    assert batch["coordinates"][:, :, 0].tolist() == [[2, 2, 0], [2, 2, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert count_positions(sample) == 2
    one = {"input_ids": np.asarray([5, 6]), "input_ids_b": np.asarray([7, 8, 9]), "labels": 1}
    two = {"input_ids": np.asarray([5, 6]), "input_ids_b": np.asarray([7]), "labels": 0}
    batch = collate([one, two], 3)
    assert batch["input_ids_b"].tolist() == [[7, 8, 9], [7, 3, 3]] and "attention_mask" not in batch
    assert batch["attention_mask_b"].tolist() == [[1, 1, 1], [1, 0, 0]] and batch["labels"].tolist() == [1, 0]
    assert count_positions(one) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": [[1.0, float("nan")]] * 4}, "values holds values that are not finite"),
        ({"labels": np.float32(np.inf)}, "labels holds values that are not finite"),
        ({"values": [[0.0, 0.0]] * 13}, "a sample has 13 positions, the manifest says at most 12"),
    ],
)
def test_values_that_contradict_the_manifest(tmp_path, change, message):
    make, columns, _ = TASKS["adding"]
    sample = make(np.random.default_rng(0))
    fields = {"split": "train", "split_rule": "test", "sequence_length": LONGEST}
    write_dataset(tmp_path / "set", [sample, {**sample, **change}], columns, **fields)
    with pytest.raises(UserError, match="cannot be read as a shard") as caught:
        ShardedDataset(str(tmp_path / "set")).read(np.asarray([0]))
    assert message in str(caught.value)


def test_the_second_sequence_is_checked_as_the_first(tmp_path):
    _, samples = write(tmp_path / "set", "pair", 20, 0)
    for change, message in (
        ({"input_ids_b": [2, 8]}, r"input_ids_b holds 8, the manifest's vocabulary allows 0 \.\. 7"),
        ({"input_ids_b": [2] * 13}, "a sample has 13 tokens, the manifest says at most 12"),
    ):
        fields = {"split": "train", "split_rule": "test", "sequence_length": LONGEST, **TASKS["pair"][2]}
        write_dataset(tmp_path / "set", [*samples, {**samples[0], **change}], TASKS["pair"][1], **fields)
        with pytest.raises(UserError, match=message):
            ShardedDataset(str(tmp_path / "set")).read(np.asarray([0]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"values": {"dtype": "float32", "shape": [None]}}, r"column values is float32\[\], which cannot be read"),
        ({"values": {"dtype": "float64", "shape": [None, 2]}}, r"column values is float64\[\]\[2\], which cannot"),
        ({"values": {"dtype": "float32", "shape": [None, None]}}, r"column values is float32\[\]\[\], which cannot"),
        ({"input_ids": LIST_INT32, "values_b": vectors(2)}, "column values_b belongs to no second sequence"),
        ({"input_ids": LIST_INT32, "coordinates_b": vectors(2)}, "column coordinates_b, but no input_ids_b"),
    ],
)
def test_columns_that_no_model_reads(tmp_path, columns, message):
    write_dataset(tmp_path / "set", [{name: [] for name in columns}], columns, split="train", split_rule="test")
    with pytest.raises(UserError, match=message):
        ShardedDataset(str(tmp_path / "set"))


@pytest.mark.parametrize("model_type", ["converter", "flt", "paramixer", "s3attention", "transformer", "wavspa"])
def test_every_mixer_learns_from_real_values(train, of, read_metrics, tmp_path, model_type):
    changes = {**of("adding", "regression"), "optim.max_steps": 2, "eval.every_steps": 2}
    train(tmp_path / "run", model_type, **changes)
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["input_channels"] == 2 and config["problem_type"] == "regression"
    records = read_metrics(tmp_path / "run", "train")
    dataset = ShardedDataset(changes["data.train"])
    assert len({record["tokens_seen"] for record in records}) == 2 and records[0]["tokens_per_second"] > 0
    assert 2 * 16 * 4 <= records[-1]["tokens_seen"] <= dataset.manifest.tokens


def test_a_loss_of_real_values_does_not_depend_on_how_the_batch_is_cut(train, of, read_metrics, tmp_path):
    losses = []
    for micro_batch in (16, 2):
        folder = tmp_path / str(micro_batch)
        train(folder, "flt", **of("points", "regression"), **{"batch.micro_batch": micro_batch})
        losses.append([record["loss"] for record in read_metrics(folder, "train")])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and losses[0][-1] < losses[0][0]


def test_coordinates_reach_the_mixer_that_reads_them_and_spare_the_others(train, of, tmp_path, capsys):
    changes = {**of("points", "regression"), "optim.max_steps": 2, "data.eval": None}
    train(tmp_path / "placed", "flt", **changes)
    config = json.loads((tmp_path / "placed" / "model" / "config.json").read_text())
    assert config["coordinate_dimensions"] == 3 and "the data's coordinates" not in capsys.readouterr().err
    for number, (model_type, more) in enumerate({"paramixer": {}, "flt": {"model.coordinate_dimensions": 0}}.items()):
        train(tmp_path / str(number), model_type, **changes, **more)
        assert f"this {model_type} does not read the data's coordinates" in capsys.readouterr().err


def test_the_rehearsed_batch_is_the_largest_that_can_come(tasks):
    from longmix.trainer.run import dry_run

    for name, objective, longest in (
        ("adding", "regression", "values"),
        ("pair", "pair_classification", "input_ids_b"),
    ):
        dataset = ShardedDataset(str(tasks / name / "train"))
        data = RunData([dataset], None, None, None)
        made = make_objective(ObjectiveSection(objective), 0, dataset.manifest, None)
        batch = dry_run.largest_micro_batch(data, made, dry_run.longest_sample(data), 4)
        real = made.evaluation_batch(dataset.read(np.arange(96)), np.arange(96))
        assert batch.keys() == real.keys() and batch[longest].shape[1:] == real[longest].shape[1:]
        assert all(batch[column].dtype == real[column].dtype for column in batch if column != "labels")


def test_check_counts_positions(run_values, write_run_file, of, tmp_path, capsys):
    values = run_values(tmp_path / "run", **of("adding", "regression"))
    assert main(["train", write_run_file(tmp_path / "run.yaml", values), "--check"]) == 0
    text = capsys.readouterr().out
    assert "96 samples, 8 positions each" in text and "this run file is valid" in text


def mistake(run_values, folder, changes, model_type="transformer"):
    from longmix.trainer.run.setup import prepare

    checked = reading.from_dict(run_values(folder, model_type, **changes), "test")
    with pytest.raises(UserError) as caught:
        prepare(checked, 1, torch.device("cpu"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_does_not_fit_together_is_told_before_anything_is_built(run_values, of, tasks, tmp_path):
    def said(name, objective, model_type="transformer", **changes):
        return mistake(run_values, tmp_path / "run", {**of(name, objective), **changes}, model_type)

    assert "mlm predicts tokens, but the data set holds real values" in said("adding", "mlm")
    assert "clm predicts tokens, but the data set holds real values" in said("adding", "clm")
    assert "needs classes, but the labels of the data set are real values" in said("adding", "classification")
    assert "a label for each pair of sequences: pair_classification" in said("pair", "classification")
    assert "a label for each sample: classification or regression" in said("points", "pair_classification")
    assert "values have 2 channels" in said("adding", "regression", **{"model.input_channels": 3})
    assert "bert reads tokens, but the data holds real values" in said("adding", "regression", "bert")
    assert "bert has no AutoModelForSequencePairClassification" in said("pair", "pair_classification", "bert")
    wrong = {"model.coordinate_dimensions": 2}
    assert "is 2, but the data holds coordinates of 3 dimensions" in said("points", "regression", "flt", **wrong)
    assert "is 2, but the data holds no coordinates" in said("pair", "pair_classification", "flt", **wrong)
    other = {"data.eval": str(tasks / "points" / "validation")}
    assert "has vocab_size 8, but" in said("adding", "regression", **other)


def test_inputs_of_other_widths_are_refused(run_values, of, tmp_path):
    columns = {"values": vectors(5), "labels": SCALAR_FLOAT32}
    fields = {"split": "validation", "split_rule": "test", "sequence_length": LONGEST}
    write_dataset(tmp_path / "wide", [{"values": [[0.0] * 5] * 4, "labels": 1.0}] * 9, columns, **fields)
    changes = {**of("adding", "regression"), "data.eval": str(tmp_path / "wide")}
    assert "has the inputs values (N, 5), but" in mistake(run_values, tmp_path / "run", changes)


def test_evaluation_data_without_labels_are_refused_before_training(run_values, of, tmp_path):
    columns = {"values": vectors(2)}
    fields = {"split": "validation", "split_rule": "test", "sequence_length": LONGEST}
    write_dataset(tmp_path / "bare", [{"values": [[0.0] * 2] * 4}] * 9, columns, **fields)
    changes = {**of("adding", "regression"), "data.eval": str(tmp_path / "bare")}
    assert f"{tmp_path / 'bare'}: objective regression needs a data set with a column labels" in mistake(
        run_values, tmp_path / "run", changes
    )


def test_a_pair_is_learnt_and_evaluated_alike_everywhere(train, of, tmp_path, capsys, read_metrics):
    changes = {
        **of("pair", "pair_classification"),
        "model.classifier_pooling": "first",
        "model.hidden_size": 32,
        "optim.lr": 1e-2,
        "optim.max_steps": 60,
        "eval.every_steps": 60,
        "checkpoint.every_steps": 60,
        "checkpoint.best": {"metric": "roc_auc", "mode": "max"},
    }
    train(tmp_path / "run", **changes)
    before, *_, after = read_metrics(tmp_path / "run", "eval")
    assert before["roc_auc"] < 0.8 and after["accuracy"] > 0.9 and after["roc_auc"] > 0.95 and after["items"] == 40
    for micro_batch in (40, 7):
        command = ["evaluate", str(tmp_path / "run" / "model"), "--data", changes["data.eval"]]
        capsys.readouterr()
        assert main([*command, "--micro-batch", str(micro_batch)]) == 0
        found = {name: float(value) for name, value in map(str.split, capsys.readouterr().out.splitlines())}
        names = ("loss", "matthews", "accuracy", "f1", "macro_f1", "roc_auc", "items")
        assert found == pytest.approx({name: after[name] for name in names}, abs=1e-4)


@pytest.mark.parametrize("engine", ["zero1", pytest.param("zero3", marks=pytest.mark.full)])
def test_pairs_and_values_train_under_deepspeed(train, of, read_metrics, tmp_path, engine):
    for number, given in enumerate((("pair", "pair_classification"), ("adding", "regression"))):
        losses = []
        for chosen in (None, engine):
            folder = tmp_path / f"{number}-{chosen}"
            train(folder, **{**of(*given), "deepspeed": chosen, "optim.max_steps": 3, "data.eval": None})
            losses.append([record["loss"] for record in read_metrics(folder, "train")])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)

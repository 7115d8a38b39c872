"""longmix prepare points: energies recomputed pair by pair, and the files that others bring."""

import math

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.tasks.points import PointsSettings, energy, make_sample, prepare_points


def pair_by_pair(coordinates, charges):
    total = 0.0
    for i, (one, q) in enumerate(zip(coordinates, charges, strict=True)):
        for two, p in list(zip(coordinates, charges, strict=True))[i + 1 :]:
            r = math.dist(one, two)
            total += 4 / r**12 - 4 / r**6 + 4 * q * p * math.exp(-r) / r
    return total / len(coordinates)


def test_labels_are_the_energies_of_the_stored_points(tmp_path, rows_of):
    made = prepare_points(PointsSettings(samples=30, points=(4, 12), seed=1), tmp_path / "out")
    assert [made[name].samples for name in ("train", "validation", "test")] == [30, 3, 3]
    task = made["train"].report["task"]
    labels = []
    for name in made:
        for row in rows_of(tmp_path / "out" / name):
            charges = [charge for (charge,) in row["values"]]
            assert 4 <= len(charges) == len(row["coordinates"]) <= 12
            assert set(charges) <= {-1.0, 1.0} and sum(charges) == len(charges) % 2
            expected = pair_by_pair(row["coordinates"], charges)
            assert row["labels"] * task["label_scale"] + task["label_mean"] == pytest.approx(expected, abs=1e-5)
            if name == "train":
                labels.append(row["labels"])
    assert np.mean(labels) == pytest.approx(0, abs=1e-5) and np.std(labels) == pytest.approx(1, abs=1e-5)
    manifest = made["train"]
    assert manifest.columns["coordinates"] == {"dtype": "float32", "shape": [None, 3]}
    assert manifest.columns["values"] == {"dtype": "float32", "shape": [None, 1]}
    assert manifest.num_labels is None and manifest.vocab_size is None and manifest.sequence_length == 12


def test_particles_keep_their_distance_and_density():
    settings = PointsSettings(points=(16, 48))
    for index in range(20):
        coordinates, _, _ = make_sample(settings, "train", index)
        apart = np.linalg.norm(coordinates[:, None] - coordinates[None], axis=-1) + 9 * np.eye(len(coordinates))
        assert apart.min() > 0.999
        side = (len(coordinates) / 0.3) ** (1 / 3)
        assert np.abs(coordinates).max() <= side / 2 + 1e-5 and np.ptp(coordinates, axis=0).min() > 0.6 * side


def test_the_target_is_geometric():
    """Only distances count, and they do: moving the cluster changes nothing, moving its charges nearly everything."""
    generator = np.random.default_rng(0)
    settings = PointsSettings(points=(32, 32))
    kept, shuffled, labels = [], [], []
    for index in range(60):
        coordinates, values, label = make_sample(settings, "train", index)
        places = coordinates.astype(np.float64)
        rotation = np.linalg.qr(generator.standard_normal((3, 3)))[0]
        order = generator.permutation(32)
        moved = (places @ rotation + 5)[order]
        assert energy(moved, values[order, 0]) == pytest.approx(label, rel=1e-9)
        labels.append(label)
        shuffled.append(energy(places, generator.permutation(values[:, 0])))
        kept.append(energy(places, np.zeros(32)))
    charges = np.array(labels) - kept
    assert charges.std() > 0.7 * np.std(labels), "charges matter"
    assert np.corrcoef(charges, np.array(shuffled) - kept)[0, 1] < 0.6, "and where they are"


def test_a_sample_depends_on_seed_split_and_number_alone():
    settings = PointsSettings(points=(5, 9))
    one, two = (make_sample(settings, "train", 3) for _ in range(2))
    assert (one[0] == two[0]).all() and (one[1] == two[1]).all() and one[2] == two[2]
    others = [
        make_sample(settings, "test", 3),
        make_sample(settings, "train", 4),
        make_sample(PointsSettings(points=(5, 9), seed=1), "train", 3),
    ]
    assert len({one[2], *(other[2] for other in others)}) == 4


@pytest.fixture
def table(tmp_path):
    """write(name, count, **changes): a file of samples; sample i has i % 3 + 1 points and the label 10 i."""

    def write(name, count, **changes):
        counts = np.arange(count) % 3 + 1
        total = int(counts.sum())
        arrays = {
            "coordinates": np.arange(3.0 * total).reshape(total, 3),
            "counts": counts,
            "labels": 10.0 * np.arange(count),
            "values": np.repeat(np.arange(count), counts)[:, None] * [1, -1],
        }
        arrays = {key: value for key, value in (arrays | changes).items() if value is not None}
        np.savez(tmp_path / name, **arrays)
        return str(tmp_path / name)

    return write


def test_each_split_may_have_its_file_and_none_shares_a_sample(tmp_path, table):
    files = {"train": table("a.npz", 28), "validation": table("b.npz", 24), "test": table("c.npz", 20)}
    made = prepare_points(PointsSettings(**files), tmp_path / "out")
    # The first samples of the three are alike, and belong to the test split.
    assert [made[name].samples for name in ("train", "validation", "test")] == [4, 4, 20]
    assert made["train"].report["left_out"] == 24 and made["validation"].report["left_out"] == 20
    # Of the labels 240, 250, 260 and 270.
    task = made["train"].report["task"]
    assert task["label_mean"] == 255 and task["label_scale"] == pytest.approx(125**0.5)


def test_labels_that_are_all_alike_become_zero(tmp_path, table, rows_of):
    made = prepare_points(PointsSettings(train=table("a.npz", 30, labels=np.full(30, 0.1))), tmp_path / "out")
    assert all(row["labels"] == 0 for name in made for row in rows_of(tmp_path / "out" / name))
    assert made["test"].report["task"]["label_scale"] == 1


def test_splits_without_files_are_cut_off_train(tmp_path, table, rows_of):
    made = prepare_points(PointsSettings(train=table("a.npz", 30)), tmp_path / "out")
    assert [made[name].samples for name in ("train", "validation", "test")] == [24, 3, 3]
    task = made["train"].report["task"]
    numbers = {}
    for name in made:
        numbers[name] = []
        for row in rows_of(tmp_path / "out" / name):
            number = round(row["values"][0][0])
            assert row["values"] == [[number, -number]] * (number % 3 + 1)
            first = 3 * sum(i % 3 + 1 for i in range(number))
            expected = np.arange(first, first + 3 * (number % 3 + 1)).reshape(-1, 3)
            assert (np.array(row["coordinates"]) == expected).all()
            assert row["labels"] * task["label_scale"] + task["label_mean"] == pytest.approx(10 * number, abs=1e-3)
            numbers[name].append(number)
    assert sorted(number for each in numbers.values() for number in each) == list(range(30))
    labels = 10.0 * np.array(numbers["train"])
    assert task["label_mean"] == pytest.approx(labels.mean()) and task["label_scale"] == pytest.approx(labels.std())
    assert made["train"].sequence_length == 3 and made["train"].columns["values"]["shape"] == [None, 2]


def test_points_without_values_and_a_test_file(tmp_path, table, rows_of):
    test = table("t.npz", 5, values=None, coordinates=1000 + np.arange(27.0).reshape(9, 3))
    made = prepare_points(PointsSettings(train=table("a.npz", 20, values=None), test=test), tmp_path / "out")
    assert [made[name].samples for name in ("train", "validation", "test")] == [18, 2, 5]
    assert all(set(map(tuple, row["values"])) == {(1.0,)} for row in rows_of(tmp_path / "out" / "train"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "has no array labels: it must hold coordinates, counts, labels"),
        ({"energies": np.zeros(20)}, "has an array energies"),
        ({"counts": np.zeros(20, dtype=int)}, "counts must hold a whole number of points, at least 1"),
        ({"counts": np.ones(20)}, "counts must hold a whole number"),
        ({"counts": np.full(20, 1 << 40)}, "but a sample may have"),
        ({"counts": np.ones(20, dtype=int)}, r"coordinates holds float64 of shape \(39, 3\), .* numbers \(20, 3\)"),
        ({"coordinates": np.zeros((39, 2))}, r"must hold numbers \(39, 3\)"),
        ({"coordinates": np.full((39, 3), np.nan)}, r"coordinates\[0, 0\] is nan"),
        ({"values": np.full((39, 1), 1e300)}, r"values\[0, 0\] is 1e\+300, but must be a finite number of float32"),
        ({"values": np.zeros((39, 0))}, r"must hold numbers \(39, C\)"),
        ({"values": np.full((39, 1), "x")}, "values holds <U1"),
        ({"labels": np.full(20, np.inf)}, r"labels\[0\] is inf"),
        ({"labels": np.zeros(19)}, r"must hold numbers \(20,\)"),
    ],
)
def test_mistakes_in_files(tmp_path, table, changes, message):
    with pytest.raises(UserError, match=message):
        prepare_points(PointsSettings(train=table("a.npz", 20, **changes)), tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": "a.npz"}, "need --train"),
        ({"samples": 0}, "--samples is 0"),
        ({"points": (1, 5)}, "--points is 1 5, but must be the fewest and the most"),
        ({"points": (6, 5)}, "--points is 6 5"),
        ({"points": (6, 5000)}, "--points is 6 5000"),
        ({"seed": -1}, "--seed is -1"),
    ],
)
def test_mistakes_in_options(options, message):
    with pytest.raises(UserError, match=message):
        PointsSettings(**options)


def test_files_that_do_not_fit_together(tmp_path, table):
    train = table("a.npz", 20)
    with pytest.raises(UserError, match=r"b.npz has 1 values a point, .*a.npz has 2"):
        prepare_points(PointsSettings(train=train, test=table("b.npz", 4, values=None)), tmp_path / "out")
    with pytest.raises(UserError, match="--train has 9 samples: cutting validation off needs at least 10"):
        prepare_points(PointsSettings(train=table("c.npz", 9)), tmp_path / "out")


def test_the_command(tmp_path, capsys, run_prepare, rows_of):
    words = ["points", "--samples", "6", "--points", "3", "5", "--seed", "4", "--output", tmp_path]
    assert run_prepare(*words) == 0
    assert "train: 6 samples, " in capsys.readouterr().out
    expected = make_sample(PointsSettings(samples=6, points=(3, 5), seed=4), "train", 2)[0]
    assert rows_of(tmp_path / "train")[2]["coordinates"] == expected.tolist()

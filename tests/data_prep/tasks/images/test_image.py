"""longmix prepare image: gray pixels as tokens, noise where it belongs, and splits that keep the test files apart."""

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tasks.images.image import ImageSettings, prepare_image
from longmix.data_prep.tasks.images.image_sources import ImageSource


@pytest.fixture
def tokens_of(rows_of):
    """tokens_of(folder) -> (M, N) gray values."""
    return lambda folder: np.array([row["input_ids"] for row in rows_of(folder)]) - 2


@pytest.fixture
def gray(tmp_path):
    """Files of 40 and 12 gray images of 8 x 8 pixels; image i of train has the label i % 4."""
    generator = np.random.default_rng(0)
    pixels = {"train": generator.integers(0, 256, (40, 8, 8)), "test": generator.integers(0, 256, (12, 8, 8))}
    pixels["train"][:, 0], pixels["test"][:, 0] = 0, 255  # where noise is clipped
    pixels["train"][:, 1, 0], pixels["test"][:, 1, 0] = np.arange(40), np.arange(12)  # no two are alike
    files = {}
    for name, array in pixels.items():
        files[name] = (str(tmp_path / f"{name}.npy"), str(tmp_path / f"{name}_labels.npy"))
        np.save(files[name][0], array.astype(np.uint8))
        np.save(files[name][1], (np.arange(len(array)) % 4).astype(np.uint8))
    return ImageSource(**files), pixels


def cifar(folder, generator, names=True):
    """A small CIFAR-10 in the binary version; returns the records of each file."""
    folder.mkdir()
    records = {}
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records[name] = [bytes([int(generator.integers(10)), *generator.bytes(3072)]) for _ in range(4)]
        (folder / name).write_bytes(b"".join(records[name]))
    if names:
        (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    return records


def gray_of(record):
    red, green, blue = record[1:1025], record[1025:2049], record[2049:]
    return [round(0.2989 * r + 0.5870 * g + 0.1140 * b) for r, g, b in zip(red, green, blue, strict=True)]


def test_the_binary_version_becomes_gray_pixels(tmp_path, rows_of):
    records = cifar(tmp_path / "cifar", np.random.default_rng(1))
    made = prepare_image(ImageSettings(ImageSource(cifar=str(tmp_path / "cifar"))), tmp_path / "out")
    test = rows_of(tmp_path / "out" / "test")
    assert [row["input_ids"] for row in test] == [[2 + v for v in gray_of(r)] for r in records["test_batch.bin"]]
    assert [row["labels"] for row in test] == [record[0] for record in records["test_batch.bin"]]
    assert (made["train"].samples, made["validation"].samples) == (18, 2)
    expected = sorted((gray_of(r), r[0]) for name, each in records.items() if "data" in name for r in each)
    both = rows_of(tmp_path / "out" / "train") + rows_of(tmp_path / "out" / "validation")
    assert sorted(([v - 2 for v in row["input_ids"]], row["labels"]) for row in both) == expected
    manifest = made["train"]
    assert (manifest.vocab_size, manifest.pad_token_id, manifest.mask_token_id) == (258, 0, 1)
    assert manifest.special_token_ids == [0, 1] and manifest.sequence_length == 1024
    assert manifest.num_labels == 10 and manifest.label_names == list("abcdefghij")


def test_gray_arrays_are_taken_as_they_are_and_the_test_files_are_the_test_split(tmp_path, gray, rows_of, tokens_of):
    source, pixels = gray
    made = prepare_image(ImageSettings(source), tmp_path / "out")
    assert (tokens_of(tmp_path / "out" / "test") == pixels["test"].reshape(12, 64)).all()
    train, validation = (tokens_of(tmp_path / "out" / name)[:, 8] for name in ("train", "validation"))
    assert len(validation) == 4 and sorted([*train, *validation]) == list(range(40))
    assert [row["labels"] for row in rows_of(tmp_path / "out" / "train")] == [index % 4 for index in train]
    assert made["train"].num_labels == 4 and made["train"].vocab_size == 258
    another = prepare_image(ImageSettings(source, seed=1), tmp_path / "another")
    assert another["validation"].samples == 4
    assert set(tokens_of(tmp_path / "another" / "validation")[:, 8]) != set(validation)


def test_colour_arrays(tmp_path, gray, tokens_of):
    colours = np.random.default_rng(0).integers(0, 256, (10, 2, 3, 3)).astype(np.uint8)
    np.save(tmp_path / "x.npy", colours)
    np.save(tmp_path / "y.npy", np.arange(10) % 2)
    np.save(tmp_path / "z.npy", 255 - colours)
    files = (str(tmp_path / "x.npy"), str(tmp_path / "y.npy"))
    source = ImageSource(train=(str(tmp_path / "z.npy"), files[1]), test=files)
    prepare_image(ImageSettings(source), tmp_path / "out")
    flat = colours.reshape(10, 6, 3).tolist()
    expected = [[round(0.2989 * r + 0.5870 * g + 0.1140 * b) for r, g, b in image] for image in flat]
    assert tokens_of(tmp_path / "out" / "test").tolist() == expected


def test_noise_is_uniform_clipped_and_of_all_splits(tmp_path, gray, rows_of, tokens_of):
    source, _ = gray
    prepare_image(ImageSettings(source), tmp_path / "clean")
    prepare_image(ImageSettings(source, noise=2), tmp_path / "noisy")
    differences = []
    for name in ("train", "validation", "test"):
        clean, noisy = tokens_of(tmp_path / "clean" / name), tokens_of(tmp_path / "noisy" / name)
        assert noisy.min() >= 0 and noisy.max() <= 255
        inside = (clean >= 2) & (clean <= 253)
        differences.append((noisy - clean)[inside])
        assert set(differences[-1]) == {-2, -1, 0, 1, 2}
        edge = noisy[clean == (0 if name != "test" else 255)]
        assert set(edge) == ({0, 1, 2} if name != "test" else {255, 254, 253})
    counts = np.bincount(np.concatenate(differences) + 2)
    assert counts.min() > 0.8 * counts.mean()
    labels = [[row["labels"] for row in rows_of(tmp_path / kind / "train")] for kind in ("clean", "noisy")]
    assert labels[0] == labels[1]


def test_noise_of_the_test_split_alone(tmp_path, gray, tokens_of):
    source, pixels = gray
    prepare_image(ImageSettings(source, noise=8, noise_splits="test"), tmp_path / "out")
    prepare_image(ImageSettings(source), tmp_path / "clean")
    for name in ("train", "validation"):
        assert (tokens_of(tmp_path / "out" / name) == tokens_of(tmp_path / "clean" / name)).all()
    assert np.abs(tokens_of(tmp_path / "out" / "test") - pixels["test"].reshape(12, 64)).max() == 8


def test_the_noise_of_an_image_does_not_depend_on_its_neighbours(tmp_path, gray, tokens_of):
    source, _ = gray
    prepare_image(ImageSettings(source, noise=4), tmp_path / "all")
    made = prepare_image(ImageSettings(source, noise=4, samples=9), tmp_path / "part")
    assert [made[name].samples for name in ("train", "validation", "test")] == [9, 1, 3]
    for name in made:
        whole = {tuple(row) for row in tokens_of(tmp_path / "all" / name)}
        assert {tuple(row) for row in tokens_of(tmp_path / "part" / name)} <= whole
    prepare_image(ImageSettings(source, noise=4, seed=1), tmp_path / "other")
    assert not {tuple(row) for row in tokens_of(tmp_path / "other" / "test")} & {
        tuple(row) for row in tokens_of(tmp_path / "all" / "test")
    }


def test_blocks_are_averaged(tmp_path, gray, tokens_of):
    source, pixels = gray
    made = prepare_image(ImageSettings(source, size=4), tmp_path / "out")
    image = pixels["test"][3]
    expected = [round(image[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].sum() / 4) for y in range(4) for x in range(4)]
    assert tokens_of(tmp_path / "out" / "test")[3].tolist() == expected and made["test"].sequence_length == 16


@pytest.mark.parametrize("noise", [{}, {"noise": 8}, {"noise": 8, "noise_splits": "test"}])
def test_an_image_of_the_test_files_is_not_trained_on(tmp_path, gray, noise):
    source, pixels = gray
    pixels["train"][5] = pixels["test"][7]
    np.save(source.train[0], pixels["train"].astype(np.uint8))
    made = prepare_image(ImageSettings(source, **noise), tmp_path / "out")
    assert made["train"].report["left_out"] + made["validation"].report["left_out"] == 1
    assert made["test"].samples == 12


def test_other_files_are_another_task(tmp_path, gray):
    source, pixels = gray
    prepare_image(ImageSettings(source), tmp_path / "out")
    pixels["train"][0, 7, 7] ^= 1
    np.save(source.train[0], pixels["train"].astype(np.uint8))
    with pytest.raises(UserError, match="already holds other data"):
        prepare_image(ImageSettings(source), tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": -1}, "--noise is -1, but must be 0 to 255"),
        ({"noise_splits": "train"}, "--noise-splits is 'train'"),
        ({"size": 3}, "--size is 3, but must divide the images' 8 rows"),
        ({"size": 0}, "--size is 0"),
        ({"samples": 37}, "--samples is 37, but must be 1 to 36"),
        ({"seed": -1}, "--seed is -1"),
    ],
)
def test_mistakes_in_options(tmp_path, gray, options, message):
    with pytest.raises(UserError, match=message):
        prepare_image(ImageSettings(gray[0], **options), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train", np.zeros((40, 8, 8)), "holds float64 of shape"),
        ("train", np.zeros((40, 64), np.uint8), "must hold uint8 of shape"),
        ("train", np.zeros((40, 8, 8, 4), np.uint8), "must hold uint8 of shape"),
        ("train", np.zeros((40, 4, 8), np.uint8), "both must be of one size"),
        ("train", np.zeros((9, 8, 8), np.uint8), "must hold a whole number for each of the 9 images"),
        ("train_labels", np.arange(40.0), "must hold a whole number for each"),
        ("train_labels", np.arange(40) - 1, "label 0 .counted from 0. is -1"),
        ("train_labels", np.full(40, 3), r"train_labels\.npy: all images to train on are of the class 3: at least two"),
        ("test_labels", np.arange(12), "label 4 .counted from 0. is 4, but the labels of .* end at 3"),
    ],
)
def test_mistakes_in_arrays(tmp_path, gray, name, array, message):
    np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(UserError, match=message):
        prepare_image(ImageSettings(gray[0]), tmp_path / "out")


def test_mistakes_in_the_binary_version(tmp_path):
    folder = tmp_path / "cifar"
    records = cifar(folder, np.random.default_rng(2), names=False)
    settings = ImageSettings(ImageSource(cifar=str(folder)))
    (folder / "batches.meta.txt").write_text("cat dog")
    with pytest.raises(UserError, match="has 2 names, but CIFAR-10 has 10"):
        prepare_image(settings, tmp_path / "out")
    (folder / "batches.meta.txt").unlink()
    whole = b"".join(records["data_batch_3.bin"])
    (folder / "data_batch_3.bin").write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"data_batch_3.bin has 12291 bytes, .* whole records of 3073"):
        prepare_image(settings, tmp_path / "out")
    (folder / "data_batch_3.bin").write_bytes(whole[:3073] + b"\x0a" + whole[3074:])
    with pytest.raises(UserError, match=r"record 1 .counted from 0. has the label 10"):
        prepare_image(settings, tmp_path / "out")
    for number in (3, 4):
        (folder / f"data_batch_{number}.bin").unlink()
    with pytest.raises(UserError, match=r"has no data_batch_3\.bin, data_batch_4\.bin: name the unpacked folder"):
        prepare_image(settings, tmp_path / "out")
    (folder / "test_batch.bin").unlink()
    with pytest.raises(UserError, match=r"has no .*, test_batch\.bin: name"):
        prepare_image(settings, tmp_path / "out")
    with pytest.raises(UserError, match="the Python version is pickled"):
        prepare_image(ImageSettings(ImageSource(cifar=str(tmp_path))), tmp_path / "out")


@pytest.mark.parametrize("options", [{}, {"cifar": "a", "train": ("b", "c")}, {"train": ("b", "c")}])
def test_sources_that_contradict_each_other(options):
    with pytest.raises(UserError, match="--train and --test"):
        ImageSource(**options)


def test_the_command(tmp_path, gray, capsys, run_prepare):
    source = gray[0]
    words = ["image", "--train", *source.train, "--test", *source.test, "--noise", "2", "--samples", "18"]
    assert run_prepare(*words, "--noise-splits", "test", "--size", "4", "--output", tmp_path / "out") == 0
    assert "train: 18 samples" in capsys.readouterr().out
    task = Manifest.load(tmp_path / "out" / "train").report["task"]
    assert (task["noise"], task["noise_splits"], task["size"], task["samples"], task["seed"]) == (2, "test", 4, 18, 0)

"""longmix prepare patches: which pixel stands where, and statistics of what is trained on alone."""

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tasks.images.image_sources import ImageSource
from longmix.data_prep.tasks.images.patches import PatchesSettings, prepare_patches

TRAIN, TEST = 40, 10
HEIGHT, WIDTH, CHANNELS = 4, 6, 3


@pytest.fixture
def colours(tmp_path):
    """Images whose first pixel's red is their number; blue never varies."""
    generator = np.random.default_rng(0)
    pixels, files = {}, {}
    for name, count, brightest in (("train", TRAIN, 100), ("test", TEST, 256)):
        pixels[name] = generator.integers(0, brightest, (count, HEIGHT, WIDTH, CHANNELS)).astype(np.uint8)
        pixels[name][:, 0, 0, 0] = np.arange(count)
        pixels[name][..., 2] = 7
        files[name] = (str(tmp_path / f"{name}.npy"), str(tmp_path / f"{name}_labels.npy"))
        np.save(files[name][0], pixels[name])
        np.save(files[name][1], np.arange(count) % 3)
    return ImageSource(**files), pixels


def test_values_are_standardised_by_the_training_split_alone(tmp_path, colours, rows_of):
    source, pixels = colours
    made = prepare_patches(PatchesSettings(source, patch_size=2), tmp_path / "out")
    assert [made[name].samples for name in ("train", "validation", "test")] == [36, 4, 10]
    values = np.array([row["values"] for row in rows_of(tmp_path / "out" / "train")]).reshape(-1, CHANNELS)
    assert np.allclose(values.mean(axis=0), 0, atol=1e-6) and np.allclose(values.std(axis=0), [1, 1, 0], atol=1e-6)
    task = made["train"].report["task"]
    mean, scale = np.array(task["mean"]), np.array(task["scale"])
    rows = rows_of(tmp_path / "out" / "train")
    numbers = [round(row["values"][0][0] * scale[0] + mean[0]) for row in rows]
    kept = pixels["train"][numbers].reshape(-1, CHANNELS).astype(float)
    assert np.allclose(mean, kept.mean(axis=0)) and np.allclose(scale[:2], kept.std(axis=0)[:2])
    assert mean[2] == 7 and scale[2] == 1, "a channel that never varies"
    validation = [round(row["values"][0][0] * scale[0] + mean[0]) for row in rows_of(tmp_path / "out" / "validation")]
    assert sorted(numbers + validation) == list(range(TRAIN))
    assert [row["labels"] for row in rows] == [number % 3 for number in numbers]


def test_an_image_of_the_test_files_does_not_count(tmp_path, colours, rows_of):
    source, pixels = colours
    pixels["train"][:4] = pixels["test"][:4] = 255
    np.save(source.train[0], pixels["train"])
    np.save(source.test[0], pixels["test"])
    made = prepare_patches(PatchesSettings(source, patch_size=2), tmp_path / "out")
    assert made["train"].report["left_out"] + made["validation"].report["left_out"] == 4
    values = np.array([row["values"] for row in rows_of(tmp_path / "out" / "train")]).reshape(-1, CHANNELS)
    assert np.allclose(values.mean(axis=0), 0, atol=1e-6) and np.allclose(values.std(axis=0), [1, 1, 0], atol=1e-6)


def test_patches_go_row_by_row_and_so_do_their_pixels(tmp_path, colours, rows_of):
    source, pixels = colours
    made = prepare_patches(PatchesSettings(source, patch_size=2, coordinates=True), tmp_path / "out")
    task = made["test"].report["task"]
    for number, row in enumerate(rows_of(tmp_path / "out" / "test")):
        patch = 0
        for top in range(0, HEIGHT, 2):
            for left in range(0, WIDTH, 2):
                expected = []
                for y in (top, top + 1):
                    for x in (left, left + 1):
                        for channel in range(CHANNELS):
                            pixel = int(pixels["test"][number, y, x, channel])
                            expected.append((pixel - task["mean"][channel]) / task["scale"][channel])
                assert np.allclose(row["values"][patch], expected, atol=1e-5)
                assert row["coordinates"][patch] == [top // 2, left // 2]
                patch += 1
        assert patch == len(row["values"]) == len(row["coordinates"]) == made["test"].sequence_length == 6
    assert made["test"].columns["values"] == {"dtype": "float32", "shape": [None, 12]}
    assert made["test"].columns["coordinates"] == {"dtype": "float32", "shape": [None, 2]}
    assert made["test"].num_labels == 3 and made["test"].vocab_size is None and made["test"].pad_token_id is None


def test_gray_patches_and_a_part_of_the_images(tmp_path, colours, rows_of):
    source, pixels = colours
    settings = PatchesSettings(source, patch_size=1, gray=True, samples=18)
    made = prepare_patches(settings, tmp_path / "out")
    assert [made[name].samples for name in ("train", "validation", "test")] == [18, 2, 5]
    task = made["test"].report["task"]
    gray = {
        tuple(round(0.2989 * int(r) + 0.5870 * int(g) + 0.1140 * int(b)) for r, g, b in image.reshape(-1, 3))
        for image in pixels["test"]
    }
    for row in rows_of(tmp_path / "out" / "test"):
        assert "coordinates" not in row
        assert tuple(round(value * task["scale"][0] + task["mean"][0]) for (value,) in row["values"]) in gray


@pytest.mark.parametrize("size", [0, -1, 3, 6])
def test_patches_that_do_not_divide_the_image(tmp_path, colours, size):
    with pytest.raises(UserError, match=f"--patch-size is {size}, but must divide the images' 4 rows and 6 columns"):
        prepare_patches(PatchesSettings(colours[0], patch_size=size), tmp_path / "out")


def test_the_command(tmp_path, colours, capsys, run_prepare):
    source = colours[0]
    words = ["patches", "--train", *source.train, "--test", *source.test, "--patch-size", "2", "--gray"]
    assert run_prepare(*words, "--coordinates", "--output", tmp_path / "out") == 0
    assert "test: 10 samples" in capsys.readouterr().out
    manifest = Manifest.load(tmp_path / "out" / "test")
    assert manifest.columns["values"]["shape"] == [None, 4] and "coordinates" in manifest.columns

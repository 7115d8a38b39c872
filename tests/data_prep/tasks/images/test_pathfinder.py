"""longmix prepare pathfinder: generated images, and the layout of the official release."""

import numpy as np
import pytest
from PIL import Image

from longmix.data_prep.errors import UserError
from longmix.data_prep.tasks.images.pathfinder import PathfinderSettings, Release, prepare_pathfinder
from longmix.data_prep.tasks.images.pathfinder_images import make_image


@pytest.fixture
def release(tmp_path):
    """30 images of 4 x 4 pixels as the release has them: image i shows i everywhere, its label is i % 2."""
    folder = tmp_path / "pathfinder32" / "curv_contour_length_14"
    (folder / "metadata").mkdir(parents=True)
    for batch in range(3):
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        for number in range(10):
            value = 10 * batch + number
            image = Image.fromarray(np.full((4, 4), value, dtype=np.uint8))
            image.save(folder / "imgs" / str(batch) / f"sample_{number}.png")
            lines.append(f"imgs/{batch} sample_{number}.png {number} {value % 2} 1.0 14 4 2 0.5 1 1\n")
        (folder / "metadata" / f"{batch}.npy").write_text("".join(lines))
    return folder


def test_generated_images_become_tokens(tmp_path, rows_of):
    settings = PathfinderSettings(path_length=6, samples=10, seed=3)
    made = prepare_pathfinder(settings, tmp_path / "out")
    assert [made[name].samples for name in ("train", "validation", "test")] == [10, 2, 2]
    for name in made:
        for index, row in enumerate(rows_of(tmp_path / "out" / name)):
            image, label = make_image(6, 3, name, index)
            assert row == {"input_ids": (2 + image.reshape(-1).astype(int)).tolist(), "labels": label}
    manifest = made["train"]
    assert (manifest.vocab_size, manifest.pad_token_id, manifest.mask_token_id, manifest.num_labels) == (258, 0, 1, 2)
    assert manifest.sequence_length == 1024 and manifest.label_names == ["not joined", "joined"]


def test_the_release_is_cut_80_10_10(tmp_path, release, rows_of):
    for source in (release, release.parent):
        output = tmp_path / f"out-{source.name}"
        made = prepare_pathfinder(PathfinderSettings(source=str(source)), output)
        assert [made[name].samples for name in ("train", "validation", "test")] == [24, 3, 3]
        rows = [row for name in made for row in rows_of(output / name)]
        assert sorted(row["input_ids"][0] - 2 for row in rows) == list(range(30))
        assert all(row["input_ids"] == [row["input_ids"][0]] * 16 for row in rows)
        assert all(row["labels"] == (row["input_ids"][0] - 2) % 2 for row in rows)
    assert made["train"].sequence_length == 16
    other = prepare_pathfinder(PathfinderSettings(source=str(release), seed=1), tmp_path / "other")
    assert other["test"].shards != made["test"].shards


def test_a_part_of_the_release_and_text_metadata(tmp_path, release):
    for file in (release / "metadata").iterdir():
        file.rename(file.with_suffix(".txt"))
    made = prepare_pathfinder(PathfinderSettings(source=str(release), samples=8), tmp_path / "out")
    assert [made[name].samples for name in ("train", "validation", "test")] == [8, 1, 1]


def test_an_image_without_bytes_is_left_out_and_counted(tmp_path, release):
    (release / "imgs" / "1" / "sample_4.png").write_bytes(b"")
    made = prepare_pathfinder(PathfinderSettings(source=str(release)), tmp_path / "out")
    assert sum(manifest.samples for manifest in made.values()) == 29
    assert made["train"].report["task"]["empty"] == 1


def test_the_order_is_that_of_the_numbers(release):
    for number in range(3, 12):
        (release / "metadata" / f"{number}.npy").write_text("imgs/0 sample_0.png 0 0\n")
    (release / "metadata" / "10.npy").write_text("imgs/2 sample_9.png 9 1\n")
    pixels = [Release(release, 14).read(index)[0][0, 0] for index in range(39)]
    assert pixels == [*range(30), *[0] * 7, 29, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("imgs/0 sample_0.png 0", "0.npy, line 1: .* should be a folder, a file, a number, 0 or 1"),
        ("imgs/0 sample_0.png 0 2 1.0", "0.npy, line 1"),
        ("../../x sample_0.png 0 1", "line 1: .* leads out of the release"),
        ("/etc passwd 0 1", "line 1: .* leads out of the release"),
        ("imgs/0 sample_99.png 0 1", "0.npy lists imgs/0/sample_99.png, which cannot be read"),
        ("imgs/0 a\0b 0 1", "which cannot be read"),
    ],
)
def test_mistakes_in_the_metadata(tmp_path, release, line, message):
    (release / "metadata" / "0.npy").write_text(line + "\n")
    with pytest.raises(UserError, match=message):
        prepare_pathfinder(PathfinderSettings(source=str(release)), tmp_path / "out")


def test_metadata_that_are_no_text(tmp_path, release):
    np.save(release / "metadata" / "0.npy", np.arange(300))
    with pytest.raises(UserError, match=r"0\.npy is not the text that the release has there"):
        prepare_pathfinder(PathfinderSettings(source=str(release)), tmp_path / "out")


def test_mistakes_in_images(tmp_path, release):
    path = release / "imgs" / "0" / "sample_3.png"
    whole = path.read_bytes()
    settings = PathfinderSettings(source=str(release))
    for number, content in enumerate((b"no image", whole[:40], whole.replace(b"IDAT", b"JUNK"))):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"sample_3.png is no PNG image, or a damaged one"):
            prepare_pathfinder(settings, tmp_path / f"out{number}")
    Image.fromarray(np.zeros((5, 5), dtype=np.uint8)).save(path)
    with pytest.raises(UserError, match=r"sample_3.png has \(5, 5\) pixels, the first image 4 x 4"):
        prepare_pathfinder(settings, tmp_path / "out3")
    Image.fromarray(np.zeros((2, 600), dtype=np.uint8)).save(path)
    with pytest.raises(UserError, match="at most 512 a side"):
        prepare_pathfinder(settings, tmp_path / "out4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path_length": 7}, "--path-length is 7, but must be one of 6, 9, 14"),
        ({"samples": 0}, "--samples is 0"),
        ({"seed": -1}, "--seed is -1"),
        ({"source": "missing"}, "holds no curv_contour_length_14/metadata"),
        ({"source": "release", "path_length": 6}, "has no paths of --path-length 6"),
        ({"source": "release", "samples": 25}, "has 30 images: too few for 25 to train on"),
    ],
)
def test_mistakes_in_options(tmp_path, release, options, message):
    if options.get("source") == "release":
        options = {**options, "source": str(release)}
    with pytest.raises(UserError, match=message):
        prepare_pathfinder(PathfinderSettings(**options), tmp_path / "out")


def test_the_command(tmp_path, capsys, run_prepare, rows_of):
    words = ["pathfinder", "--path-length", "9", "--samples", "8", "--seed", "2", "--output", tmp_path]
    assert run_prepare(*words) == 0
    assert "train: 8 samples" in capsys.readouterr().out
    expected = make_image(9, 2, "train", 5)[0]
    assert rows_of(tmp_path / "train")[5]["input_ids"] == (2 + expected.reshape(-1).astype(int)).tolist()

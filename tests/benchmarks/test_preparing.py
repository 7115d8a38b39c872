"""The benchmark of preparing text in shares measures every stage, and computes from it."""

import gzip
import random

import pytest

from longmix.data_prep.text.state import TextSettings


@pytest.mark.full
def test_every_stage_is_measured(script, tmp_path):
    preparing = script("samples.preparing")
    words = ["bafin", "codex", "gulho", "wyst"]
    documents = [f"{' '.join(random.Random(n).choices(words, k=40))} {n}" for n in range(400)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    settings = TextSettings(source=(str(tmp_path / "text.txt"),), vocab_size=60, sequence_length=32)
    seconds = preparing.measure(settings, tmp_path / "out")
    assert set(seconds) == {*preparing.STAGES, "encode"} and min(seconds.values()) > 0
    assert (tmp_path / "out" / "train" / "manifest.json").is_file()


def test_text_is_counted_unpacked(script, tmp_path):
    preparing = script("samples.preparing")
    (tmp_path / "plain.txt").write_bytes(b"a word " * 1000)
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(b"a word " * 1000))
    assert [preparing.bytes_of_text(path) for path in tmp_path.iterdir()] == [7000, 7000]


def test_a_terabyte_is_read_by_one_process_of_each_share_and_encoded_by_all(script):
    preparing = script("samples.preparing")
    speeds = {"count": 100.0, "pack": 100.0, "encode": 5.0, "write": 50.0}
    assert preparing.of_a_terabyte(speeds, 100, 8) == pytest.approx(
        {"count": 100.0, "pack": (100 + 2000) / 8, "write": 200.0}
    )
    assert preparing.of_a_terabyte(speeds, 100, 64)["pack"] == pytest.approx(100.0)

"""The benchmarks of starting far into a run, and of feeding it, measure what they say."""

from types import SimpleNamespace

import pytest


def test_the_first_batch_is_read_from_both_places(script, monkeypatch, tmp_path):
    seek = script("samples.seek")
    monkeypatch.setattr(seek, "LENGTH", 8)
    seek.write(tmp_path, 3 * 65536)
    for share in (0.0, 0.9):
        assert set(seek.first_batch(str(tmp_path), share)) == {"open", "first batch", "processor", "memory"}
    assert len(seek.ShardedDataset(str(tmp_path))) == 3 * 65536


def test_feeding_counts_the_tokens_of_the_steps_that_it_times(script, monkeypatch, tmp_path):
    seek, feeding = script("samples.seek"), script("feeding")
    monkeypatch.setattr(seek, "LENGTH", 8)
    seek.write(tmp_path, 65536)
    monkeypatch.setattr(feeding, "time", SimpleNamespace(process_time=iter([1.0, 3.0, 4.0, 7.0]).__next__))
    assert feeding.seconds_per_million(str(tmp_path), 32, 2) == pytest.approx(2e6 / (2 * 256 * 8))
    assert feeding.seconds_per_million(str(tmp_path), 8, 2, batch=512, ranks=64) == pytest.approx(3e6 / (2 * 8 * 8))

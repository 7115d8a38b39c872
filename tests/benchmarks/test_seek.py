"""The benchmark of starting far into a run measures what it says."""


def test_the_first_batch_is_read_from_both_places(script, monkeypatch, tmp_path):
    seek = script("samples.seek")
    monkeypatch.setattr(seek, "LENGTH", 8)
    seek.write(tmp_path, 3 * 65536)
    for share in (0.0, 0.9):
        assert set(seek.first_batch(str(tmp_path), share)) == {"open", "first batch", "processor", "memory"}
    assert len(seek.ShardedDataset(str(tmp_path))) == 3 * 65536

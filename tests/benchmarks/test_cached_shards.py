"""The benchmark of cached shards measures the first use and the later ones apart."""


def test_the_first_use_hashes_and_later_ones_do_not(script, monkeypatch, tmp_path):
    benchmark = script("samples.cached_shards")
    hashed = []
    defect = benchmark.verified_copies.defect
    monkeypatch.setattr(
        benchmark.verified_copies, "defect", lambda copy, name, size: hashed.append(name) or defect(copy, name, size)
    )
    monkeypatch.setattr(benchmark, "USES", 3)
    speed, later = benchmark.measure(tmp_path, 1)
    assert len(hashed) == 1 and speed > 0 and later > 0

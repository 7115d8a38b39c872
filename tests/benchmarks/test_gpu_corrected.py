"""The model of GPUs, corrected by what a card took for each kernel."""

import pytest

CSV = """code,model,documents,positions,kernel,launches,microseconds
old,transformer,0,512,PyTorch's,70,9999
new,transformer,0,512,PyTorch's,70,2000
new,transformer,0,2048,PyTorch's,70,6000
new,flt,0,512,PyTorch's,50,1000
new,flt,0,512,mix_near,1,40
new,flt,0,512,whole_forward,1,7777
"""


@pytest.fixture
def factors(script, tmp_path):
    path = tmp_path / "launches.csv"
    path.write_text(CSV)
    return lambda rows: script("gpu_model.corrected").Factors(rows, path)


def row(layer, positions=512, **kernels):
    parts = {name.replace("PyTorch", "PyTorch's"): milliseconds for name, milliseconds in kernels.items()}
    of_cards = {"H100": parts, "A100": parts}
    place = {"layer": layer, "documents": False, "positions": positions}
    return {**place, "parts": of_cards, "parts as measured": of_cards}


def test_a_kernel_takes_as_many_times_longer_as_where_it_was_measured(factors):
    rows = [
        row("transformer", PyTorch=1.0),
        row("transformer", 2048, PyTorch=2.0),
        row("transformer", 8192, PyTorch=2.0),
    ]
    found = factors(rows)
    # At 8192, where nothing was measured, the median of 2 and 3.
    assert [found.milliseconds(each, "A100") for each in rows] == [2.0, 6.0, 5.0]
    assert found.knows("transformer") and not found.knows("flt")


def test_small_kernels_were_measured_with_the_librarys(factors):
    rows = [row("flt", PyTorch=0.4, add_parts=0.1, mix_near=0.01)]
    assert factors(rows).medians["flt", "PyTorch's"] == pytest.approx(2.0)
    assert factors(rows).milliseconds(rows[0], "A100") == pytest.approx(1.04)


def test_what_a_layer_does_no_more_was_measured_with_it(factors, script, monkeypatch):
    monkeypatch.setitem(script("gpu_model.corrected").MORE, "flt", 0.3)
    now = row("flt", PyTorch=0.2, mix_near=0.01)
    assert factors([now]).milliseconds(now, "H100") == pytest.approx(1.04 - 0.3 * 2)


def test_a_layer_that_has_changed_is_measured_by_what_it_was(factors):
    now, then = row("flt", PyTorch=0.1, mix_near=0.01), row("flt", PyTorch=0.5, mix_near=0.04)
    found = {**now, "parts as measured": then["parts"]}
    assert factors([found]).milliseconds(found, "H100") == pytest.approx(0.1 * 2 + 0.01)


def test_a_kernel_that_is_part_of_another_since_counts_with_it(factors, script, monkeypatch):
    monkeypatch.setitem(script("gpu_model.corrected").JOINED, "mix_near", "mix_all")
    now = row("flt", PyTorch=0.5, mix_all=0.02)
    assert factors([now]).milliseconds(now, "H100") == pytest.approx(1.04)


def test_layers_are_counted_as_the_baselines(factors, script, monkeypatch):
    corrected = script("gpu_model.corrected")
    fields = {"flt": {"num_hidden_layers": 8}, "transformer": {"num_hidden_layers": 12}}
    monkeypatch.setattr(corrected, "fields_of", fields.__getitem__)
    found = factors([row("flt", PyTorch=0.5)])
    assert found.milliseconds(row("flt", PyTorch=0.5), "H100") == pytest.approx(1.0 * 8 / 12)


def test_what_was_measured_names_kernels_that_there_are(script):
    """But those that are gone, and PyTorch's."""
    corrected, work = script("gpu_model.corrected"), script("gpu_model.triton_work").WORK
    known = {name.lstrip("_") for name in work} | {corrected.LIBRARY}
    for kernels in corrected.measured().values():
        assert set(kernels) <= known

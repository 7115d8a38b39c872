"""What a loss costs, measured on small shapes."""

import csv

import pytest

SHAPES = ((9, 70, 8), (80, 70, 8))


@pytest.fixture
def loss_cost(script, monkeypatch, tmp_path):
    module, record = script("learned.loss_cost"), script("record")
    monkeypatch.setattr(module, "SHAPES", SHAPES)
    monkeypatch.setattr(module, "keep_freed_memory", lambda free: None)  # it would last
    monkeypatch.setattr(module, "DOCUMENT", tmp_path / "page.md")
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results.csv")
    (tmp_path / "page.md").write_text("<!-- loss: begin -->\n<!-- loss: end -->\n")
    return module


@pytest.mark.slow
@pytest.mark.full
def test_every_loss_is_measured_and_drawn(loss_cost, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["loss_cost.py", "--rounds", "2"])
    loss_cost.main()
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(SHAPES) * len(loss_cost.DTYPES) * len(loss_cost.contestants())
    page = (tmp_path / "page.md").read_text()
    assert "| 80 rows, 70 words, 8 channels |" in page and " ms, " in page


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_computes_something_else_has_no_figures(loss_cost, dtype):
    arguments = loss_cost.inputs(SHAPES[0], dtype)
    expected = loss_cost.call_of(loss_cost.PLAIN, *arguments)()
    for name in loss_cost.contestants()[:2]:
        loss_cost.check(name, loss_cost.call_of(name, *arguments)(), expected, loss_cost.TOLERANCE[dtype])
    with pytest.raises(SystemExit, match="ours differs from plain PyTorch by"):
        loss_cost.check("ours", [expected[0], *(1.1 * one for one in expected[1:])], expected, 2e-2)

"""What `longmix report` writes: Markdown, CSV, JSON, plots and the page."""

import base64
import csv
import json
import math
import sys
from html.parser import HTMLParser

import pytest

from longmix.data_prep.made_files import RECORD
from longmix.trainer import cli
from longmix.trainer.objectives.labelled_positions import perplexity
from longmix.trainer.report import plots, tables
from longmix.trainer.report.page import page


def test_seeds_that_agree_have_no_interval_in_the_table(tmp_path, write_run, report_of):
    for seed in (0, 1):
        write_run(tmp_path / f"seed-{seed}", seed, 0.5)
    assert "| 50.00 |" in tables.markdown(report_of(tmp_path), {}, None)


def test_columns_without_anything_are_left_out_and_numbers_stand_to_the_right(tmp_path, write_run, report_of):
    write_run(tmp_path / "run", provenance__device=None, optim={"max_steps": 40})
    header, rule, row = tables.markdown(report_of(tmp_path), {}, None).splitlines()[6:9]
    names = ["model", "accuracy (%)", "steps", "tokens seen", "seeds", "parameters", "tokens/s", "hours", "commit"]
    assert header == f"| {' | '.join(names)} |"
    assert rule == f"| --- | {'---: | ' * 7}--- |" and row.endswith(" | 0123456789ab |")
    (tmp_path / "other").mkdir()
    write_run(tmp_path / "other" / "paper", provenance__data__sequence_length=1999)
    header, rule, row = tables.markdown(report_of(tmp_path / "other"), {}, None).splitlines()[6:9]
    assert "| papers |" in header and "[1]" in row and rule.count("---:") == header.count("|") - 4


def test_figures_sort_by_what_is_shown(tmp_path, write_run, report_of):
    write_run(tmp_path / "run", 0, 0.125)
    text = page(report_of(tmp_path), {}, None)
    assert '<td data-key="12.5" class="number">12.50</td>' in text


class Page(HTMLParser):
    """Headings and rows of the table, and whatever could be fetched."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.sources, self.is_cell = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        self.is_cell = tag in ("td", "button")
        if self.is_cell:
            self.rows[-1].append("")
        self.sources += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data):
        if self.is_cell:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag):
        self.is_cell = False


@pytest.fixture
def sweeps(tmp_path, write_run):
    """Two mixers at two lengths with two seeds each; one of them has an odd name."""
    for length, lowest in ((64, 0.436), (1999, 0.372)):
        for model in ("wavspa", "<b>|"):
            for seed in (0, 1):
                changes = {"model__model_type": model, "provenance__data__sequence_length": length}
                folder = tmp_path / "runs" / f"{model[:2]}-{length}" / f"seed-{seed}"
                write_run(folder, seed, lowest + seed / 100, **changes)
    return tmp_path / "runs"


def test_the_files_agree_and_the_page_fetches_nothing(sweeps, tmp_path, capsys):
    output = tmp_path / "report"
    assert cli.main(["report", str(sweeps), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == (output / "report.md").read_text().strip()
    rows = list(csv.DictReader((output / "report.csv").read_text().splitlines()))
    values = json.loads((output / "report.json").read_text())
    assert [float(row["mean"]) for row in rows] == [row["mean"] for row in values["rows"]]
    assert [round(row["mean"], 4) for row in values["rows"]] == [0.441, 0.441, 0.377, 0.377]
    assert [row["length"] for row in values["rows"]] == [64, 64, 1999, 1999]
    # The papers' figure is of the task at its full length.
    assert [[entry["value"] for entry in row["cited"]] for row in values["rows"]] == [[], [], [], [0.554]]
    shown = Page((output / "report.html").read_text())
    assert shown.rows[0][:4] == ["task", "model", "metric", "mean"] and len(shown.rows) == 5
    assert sorted(row[3] for row in shown.rows[1:]) == ["37.70", "37.70", "44.10", "44.10"]
    assert {row[1] for row in shown.rows[1:]} == {"<b>|", "wavspa"}
    svgs = sorted(output.glob("*.svg"))
    assert [path.name.split("-")[0] for path in svgs] == ["learning", "learning", "length", "speed", "speed"]
    assert all(f"({path.name})" in printed for path in svgs)
    assert len(shown.sources) == 5
    inlined = {base64.b64decode(source.removeprefix("data:image/svg+xml;base64,")) for source in shown.sources}
    assert inlined == {path.read_bytes() for path in svgs}
    # The same runs give the same files.
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    assert cli.main(["report", str(sweeps), "--output", str(output)]) == 0
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_without_matplotlib_there_are_tables_and_one_line_that_says_how_to_get_plots(sweeps, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    output = tmp_path / "report"
    assert cli.main(["report", str(sweeps), "--output", str(output)]) == 0
    written = {path.name for path in output.iterdir()} - {RECORD}
    assert written == {f"report.{end}" for end in ("csv", "html", "json", "md")}
    for name in ("report.md", "report.html"):
        assert plots.HOW_TO_GET_PLOTS.split(":")[0] in (output / name).read_text()


def test_curves_show_the_mean_and_the_range_of_the_seeds(sweeps, monkeypatch, report_of):
    from matplotlib.axes import Axes

    drawn, shaded = [], []
    plot, fill = Axes.plot, Axes.fill_between
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: (drawn.append(a), plot(self, *a, **k))[1])
    monkeypatch.setattr(Axes, "fill_between", lambda self, *a, **k: (shaded.append(a), fill(self, *a, **k))[1])
    first = sweeps / "wa-64" / "seed-1" / "metrics.jsonl"
    first.write_text(first.read_text().replace('"accuracy": 0.4', '"accuracy": 0.6'))
    plots.draw(report_of(sweeps / "wa-64"))
    steps, means = drawn[0]
    assert (steps, means) == ([0, 20, 40], pytest.approx([10, 50, 30]))
    assert shaded[0][1:] == (pytest.approx([10, 40, 30]), pytest.approx([10, 60, 30]))


def test_the_places_of_a_chain_are_drawn_and_no_columns_of_the_table(tmp_path, capsys, write_run):
    for seed in (0, 1):
        folder = write_run(tmp_path / "runs" / f"seed-{seed}", seed)
        path = folder / "metrics.jsonl"
        path.write_text(path.read_text().replace('"items"', f'"accuracy_at_9": 0.{seed}, "accuracy_at_10": 1, "items"'))
    assert cli.main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "report")]) == 0
    printed = capsys.readouterr().out
    assert "accuracy at" not in printed and "![Error against place, listops, N = 64](places-" in printed
    assert "accuracy at" not in (tmp_path / "report" / "report.html").read_text()
    rows = csv.DictReader((tmp_path / "report" / "report.csv").read_text().splitlines())
    assert {row["metric"]: float(row["mean"]) for row in rows if "_at_" in row["metric"]} == {
        "accuracy_at_9": 0.05,
        "accuracy_at_10": 1.0,
    }


def test_a_figure_that_is_not_finite_is_no_number(tmp_path, write_run, report_of):
    write_run(tmp_path / "run", test=None)
    report = report_of(tmp_path)
    assert math.isnan(report.rows[0].figures["accuracy"].mean)
    assert json.loads(tables.as_json(report))["rows"][0]["mean"] is None
    assert "| not finite |" in tables.markdown(report, {}, None)


def test_one_seed_that_is_not_finite_leaves_no_interval(tmp_path, write_run, report_of):
    for seed, value in enumerate((0.5, None, 0.6)):
        write_run(tmp_path / f"seed-{seed}", seed, test=value)
    (row,) = report_of(tmp_path).rows
    figure = row.figures["accuracy"]
    assert figure.spread is None and figure.interval is None and row.against_chance is None
    assert cli.main(["report", str(tmp_path), "--output", str(tmp_path / "report")]) == 0
    assert "| not finite |" in (tmp_path / "report" / "report.md").read_text()


def _write_loss(write_run, folder, losses, **changes):
    """A run of language modelling with these losses at the steps 0, 20 and 40, noted as training notes them."""
    changes |= {"objective": {"name": "clm"}, "data__test": None, "checkpoint__best": None}
    write_run(folder, **changes)
    lines = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "eval":
            loss = losses[record["step"] // 20]
            record = {"kind": "eval", "step": record["step"], "loss": loss, "perplexity": perplexity(loss)}
        lines.append(json.dumps(record) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))


def test_a_run_that_diverges_does_not_hide_the_others(tmp_path, monkeypatch, write_run, report_of):
    """Its perplexity, the largest that is noted, is no number; its curve leaves the plot, and the legend says so."""
    from matplotlib.figure import Figure

    for seed, last in enumerate((3.0, 14248.0)):
        _write_loss(write_run, tmp_path / "fast" / f"seed-{seed}", (6.0, 9.0, last), seed=seed, optim__lr=50)
    _write_loss(write_run, tmp_path / "slow" / "seed-0", (6.0, 4.0, 3.0))
    report = report_of(tmp_path)
    fast, slow = (row.figures["perplexity"] for row in report.rows)
    assert math.isnan(fast.mean) and fast.interval is None and slow.mean == pytest.approx(math.exp(3))
    values = json.loads(tables.as_json(report))["rows"][0]["values"]
    assert values == [pytest.approx(math.exp(3)), None]
    text = tables.markdown(report, {}, None)
    assert "| not finite |" in text and "e+30" not in text
    drawn, savefig = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), savefig(self, *a, **k))[1])
    plots.draw(report)
    for figure, top, scale in zip(drawn[:2], (6.0, math.exp(6)), ("linear", "log"), strict=True):
        axes, (legend,) = figure.axes[0], figure.legends
        assert axes.get_yscale() == scale and (scale == "linear" or axes.get_ylim()[0] > 0)
        assert axes.get_ylim()[1] == pytest.approx(1.1 * top) and -0.1 * top < axes.get_ylim()[0]
        assert axes.get_ylim()[0] < (3 if scale == "linear" else math.exp(3))
        assert max(axes.lines[0].get_ydata()) < 3 * top and min(axes.lines[1].get_ydata()) > 2
        texts = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
        assert texts == ["wavspa (optim.lr 50), leaves the plot", "wavspa (optim.lr 0.001)"]
    # Without it the axis is as matplotlib chooses it.
    drawn.clear()
    plots.draw(report_of(tmp_path / "slow"))
    assert drawn[0].axes[0].get_ylim() == pytest.approx((2.85, 6.15))


@pytest.mark.parametrize(("rows", "name"), [(28, "wavspa"), (3, "$_long name_" * 20), (24, "W" * 200)])
@pytest.mark.filterwarnings("error")
def test_legends_are_whole_and_leave_room_for_the_axes(tmp_path, monkeypatch, write_run, report_of, rows, name):
    from matplotlib.figure import Figure

    for rate in range(rows):
        write_run(tmp_path / str(rate), optim__lr=rate, model__model_type=name)
    checked, savefig = [], Figure.savefig

    def save(self, *args, **options):
        savefig(self, *args, **options)
        (legend,), (axes,) = self.legends, self.axes
        bounds = legend.get_window_extent()
        assert bounds.y0 > 0 and bounds.x1 <= self.bbox.width and len(legend.get_texts()) == rows
        assert axes.get_window_extent().width > 2 * self.dpi and axes.get_window_extent().x1 < bounds.x0
        texts = [text.get_text() for text in legend.get_texts()]
        assert all("\\\n" not in text and len(text.split("\n")) <= 3 for text in texts)
        # The model of the first row, cut in its middle, and what tells the rows apart.
        assert texts[-1].replace("\n", " ").rpartition("(optim.lr ")[2].startswith(f"{rows - 1})")
        checked.append(self)

    monkeypatch.setattr(Figure, "savefig", save)
    plots.draw(report_of(tmp_path))
    assert len(checked) == 2


def test_an_output_that_cannot_be_written(tmp_path, capsys, write_run):
    write_run(tmp_path / "run")
    (tmp_path / "report").write_text("")
    assert cli.main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "report")]) == 2
    assert "--output" in capsys.readouterr().err


def test_every_file_of_a_report_shows_hostile_names_and_obeys_none(tmp_path, capsys, write_run):
    name = "=1+1|`<script>alert(1)</script>`$\\frac{\x1b[31m\u202e"
    for seed in (0, 1):
        write_run(
            tmp_path / "runs" / "@<b>\x1b" / f"seed-{seed}",
            seed,
            0.5,
            model__model_type=name,
            provenance__device="=cmd|' /C calc'!A0",
            provenance__data__task={"name": f"{name}@ROWS@" * 40},
        )
    left = write_run(tmp_path / "runs" / "left\n<i>`|", 0, is_whole=False)
    (left / "failure.json").write_text(json.dumps({"reason": "\x1b]0;title\x07 @EXPLANATION@ <img src=x>"}))
    output = tmp_path / "report"
    assert cli.main(["report", str(tmp_path / "runs"), "--output", str(output)]) == 0
    for part in capsys.readouterr():
        assert all(line.isprintable() for line in part.split("\n"))
    for path in output.iterdir():
        if path.suffix in (".md", ".html", ".csv"):
            written = path.read_text()
            assert all(line.isprintable() for line in written.split("\n")), path
            assert "<script>alert" not in written.replace('"', "") or path.suffix == ".csv"
            assert not any(tag in written for tag in ("<img src=x", "<i>")) or path.suffix == ".csv"
    (row,) = [row for row in csv.DictReader((output / "report.csv").open()) if row["metric"] == "accuracy"]
    assert row["model"].startswith("'=") and row["device"].startswith("'=") and row["folders"].startswith("'") is False
    html = (output / "report.html").read_text()
    assert html.count("<tr>") == 2 and html.count("Figures are the mean over seeds") == 1

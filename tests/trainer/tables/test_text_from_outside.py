"""Names and reasons from outside in what is written for people and programs: shown, and never obeyed."""

import ast
import csv
import io
import logging
import re
import warnings

import numpy as np
import pytest
import yaml

from longmix.data_prep import errors
from longmix.trainer.finetune import results
from longmix.trainer.finetune.submission import write_submission
from longmix.trainer.finetune.tasks import TASKS, custom_task
from longmix.trainer.tables import text, writing

HOSTILE = (
    "<script>alert(1)</script>",
    "\x1b[31mred\x1b[0m\x07",
    "two\nlines\r\tand\u2028a third",
    "\u202eright to left, \u200bnothing\ufeff",
    "a|b`c`\\",
    "[a link](http://a.b) ![](//a.b) www.a.b *x* _y_ ~~z~~ $q$ &lt;",
)
FORMULAS = ("=1+1", "+cmd", "-2+3", "@SUM(A1)", " =1", "'quoted", "\uff1d1", "=HYPERLINK(a)")


@pytest.mark.parametrize("given", HOSTILE)
def test_a_terminal_and_a_browser_obey_nothing(given):
    for made in (text.escaped(given), text.code(given), text.html_text(given)):
        assert made.isprintable() and "<" not in made
    assert all(line.isprintable() for line in writing.aligned(["a"], [[given]]))
    assert writing.markdown(["a"], [[given]]).count("\n") == 2


def test_markdown_shows_what_it_is_given():
    shown = text.escaped("[a](http://b) ![c](d) `e` *f* _g_ i|j www.k.l <m> n~~o~~ $p$")
    bare = re.sub(r"\\.|&\w+;", "", shown)
    assert not set("[]`*_|<>~$") & set(bare) and "://" not in bare and "www." not in bare
    back = re.sub(r"\\(.)", r"\1", shown).replace("&lt;", "<").replace("&gt;", ">")
    assert back == "[a](http://b) ![c](d) `e` *f* _g_ i|j www.k.l <m> n~~o~~ $p$"
    assert text.code("runs/a b") == "`runs/a b`" and "`" not in text.code("a` b").replace("\\`", "")


def test_a_table_has_as_many_cells_as_columns():
    table = writing.markdown(["a", "b"], [["x|y", text.Markdown("`u|v`")], ["\\|", "z"]])
    for line in table.splitlines():
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3, line


def test_no_text_of_a_csv_file_is_a_formula_and_our_reader_has_it_back():
    records = [{"text": given, "number": -0.5 * place, "list": [-1.5, 2.0]} for place, given in enumerate(FORMULAS)]
    records.append({"text": "plain", "number": float("-inf"), "list": []})
    written = writing.as_csv(["text", "number", "list"], records)
    plain = list(csv.DictReader(io.StringIO(written)))
    assert not any(row["text"].lstrip().startswith(("=", "+", "-", "@", "\uff1d")) for row in plain)
    assert [float(row["number"]) for row in plain] == [record["number"] for record in records]
    read = writing.from_csv(written)
    assert [row["text"] for row in read] == [*FORMULAS, "plain"]
    assert [[float(part) for part in row["list"].split()] for row in read] == [record["list"] for record in records]
    for number in ("-3", "+1e-5", "-.5", "-0.25"):
        assert text.csv_cell(number) == number


def test_a_cell_of_data_keeps_letters_and_spaces_of_all_scripts_and_no_control_character():
    kept = "10\u00a0km \u6771\u4eac\u3000\u592a\u90ce \u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f4bb co\u00adop"
    assert text.csv_content(kept) == kept
    assert text.csv_content("a\nb\tc\x1b[31m\u2028\x85\ud800") == r"a\nb\tc\x1b[31m\u2028\x85\ud800"
    assert text.csv_content("\u200b\u3000=1+1") == "'\u200b\u3000=1+1"


def test_yaml_and_python_read_a_quoted_text_as_one():
    for given in (*HOSTILE, 'a", "b', "x]\ny: 1", "true", "1"):
        assert yaml.safe_load(f"tags: [longmix, {text.yaml_word(given)}]") == {"tags": ["longmix", given]}
        assert ast.literal_eval(text.quoted(given)) == given
    assert text.yaml_word("modern-bert_2") == "modern-bert_2"


def test_results_of_fine_tuning_show_hostile_notes_and_obey_none(tmp_path):
    gold = np.array([0, 1] * 20)
    task = results.summarize(TASKS["rte"], [0], {"dev": gold}, {"dev": gold[None]}, {}, list(HOSTILE))
    table = results.Results("runs/<b>\x1b[1m", "hash", [task], {"qqp": HOSTILE[0]})
    for written in (results.console(table), results.markdown(table)):
        assert all(line.isprintable() for line in written.split("\n"))
    assert "<script" not in results.markdown(table) and "<b>" not in results.markdown(table)
    task = custom_task(("text",), "label", ("=1+1", "\x1b"))
    write_submission(task, ["@1", "2"], np.array([0, 1]), tmp_path / "custom.tsv")
    assert (tmp_path / "custom.tsv").read_text() == "index\tprediction\n'@1\t'=1+1\n2\t\\x1b\n"


def test_what_libraries_log_and_warn_of_is_printable(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    factory = logging.getLogRecordFactory()
    try:
        errors.show_printable_logs()
        record = logging.getLogger("some.library").makeRecord(
            "n", 30, "f", 1, "%s said\n%s", ("\x1b[2J", "\u202e"), None
        )
        assert record.getMessage() == "\\x1b[2J said\n\\u202e"
        assert "\x1b" not in warnings.formatwarning("\x1b[2J", UserWarning, "f", 1, "")
    finally:
        logging.setLogRecordFactory(factory)

"""./quickstart: its arguments and plan, and the whole path on a small text."""

import gzip
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from longmix.data_prep.errors import UserError
from longmix.data_prep.text import sources
from longmix.trainer.finetune.results import SplitResult, TaskResult
from longmix.trainer.many_runs.read import read_run
from longmix.trainer.quickstart import masks, stages, table
from longmix.trainer.quickstart.arguments import FORMATS, parse
from longmix.trainer.quickstart.command import main
from longmix.trainer.quickstart.plan import Plan, Recipe
from longmix.trainer.quickstart.text import take_text
from longmix.trainer.settings.run_file import read_settings
from longmix.trainer.tables.figures import Figure

ROOT = Path(__file__).resolve().parents[3]
SENTENCE = "the river runs to the sea while small boats carry wood down to the town"
WORDS = SENTENCE.split(" ")


@pytest.fixture
def text(tmp_path):
    """A small text with words enough for a vocabulary: this project's own."""
    path = tmp_path / "articles.txt"
    names = ("LICENSE", "README.md", "CONTRIBUTING.md")
    path.write_text("\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in names), encoding="utf-8")
    return path


@pytest.fixture
def glue(tmp_path):
    """GLUE with RTE only: a pair is entailed if both sentences are equal."""
    folder = tmp_path / "glue" / "RTE"
    folder.mkdir(parents=True)
    for name, rows in (("train", 40), ("dev", 20)):
        lines = ["index\tsentence1\tsentence2\tlabel"]
        for n in range(rows):
            first, label = " ".join(WORDS[n % 9 : n % 9 + 5]), ("entailment", "not_entailment")[n % 2]
            lines.append(f"{n}\t{first}\t{first if n % 2 == 0 else 'wood and stones'}\t{label}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder.parent


def settings(**changes):
    return {"text": None, "glue": None, "minutes": 5.0, "megabytes": 64.0, **changes}


def test_what_looks_like_a_hub_id_is_one_unless_a_path_has_that_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "text").touch()
    assert parse(["--text", "wikimedia/wikipedia@20231101.en:train:text"]).text.startswith("hub:wikimedia/")
    assert parse(["--text", "mine/text"]).text == "mine/text"
    assert parse(["--glue", "hub:nyu-mll/glue"]).glue == "hub:nyu-mll/glue"
    assert FORMATS == sources.FORMATS
    wrong = (
        ["--column", "body"],
        ["--text", "mine/text", "--format", "gz"],
        ["--text", "missing.txt"],
        ["--glue", "mine/text"],
        ["--minutes", "0"],
        ["--megabytes", "nan"],
        ["--txt"],
    )
    for arguments in wrong:
        with pytest.raises(SystemExit) as ended:
            parse(arguments)
        assert ended.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_plan_of_the_first_call_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = Plan.open("run", settings(), devices=0)
    plan.speed = 1234.5
    plan.save()
    # Another device does not change what was begun.
    assert Plan.open("run", settings(), devices=8) == plan
    with pytest.raises(UserError, match=r"--minutes was 5\.0, now 6\.0"):
        Plan.open("run", settings(minutes=6.0), devices=0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UserError, match="already holds other files"):
        Plan.open("other", settings(), devices=0)
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(UserError, match="begun in"):
        Plan.open("../run", settings(), devices=0)


def test_only_the_beginning_of_a_large_text_is_taken(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("first line\nsecond line\n", encoding="utf-8")
    (folder / "b.jsonl").write_text('{"text": "a record"}\n{"text": "another"}\n', encoding="utf-8")
    whole = take_text(str(folder), 1000, tmp_path / "unused")
    assert (whole.sources, whole.note) == ([str(folder)], "")
    assert not (tmp_path / "unused").exists()
    part = take_text(str(folder), 30, tmp_path / "part")
    assert [path.name for path in part.sources] == ["part.txt", "part.jsonl"]
    assert part.sources[0].read_text(encoding="utf-8") == "first line\nsecond line\n\n"
    assert part.sources[1].read_text(encoding="utf-8") == '{"text": "a record"}\n'
    assert "first" in part.note
    # What was taken is taken again, whatever has become of the source.
    shutil.rmtree(folder)
    assert take_text(str(folder), 30, tmp_path / "part") == part


def test_of_a_compressed_text_as_much_is_taken_as_of_an_unpacked_one(tmp_path):
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(b"one line of many\n" * 100))
    part = take_text(str(tmp_path / "text.txt.gz"), 170, tmp_path / "part")
    assert part.bytes == 170 and "first" in part.note
    whole = take_text(str(tmp_path / "text.txt.gz"), 10_000, tmp_path / "whole")
    assert (whole.bytes, whole.note) == (1700, "")


@pytest.mark.parametrize("megabytes", [1.0, 1e-5])
def test_the_column_and_the_kind_of_a_text_may_be_named(megabytes, tmp_path, monkeypatch):
    """A copy of the beginning is of the quickstart's own kind: it is read without being told."""
    (tmp_path / "mails").write_text('{"body": "one of them"}\n{"body": "and another"}\n', encoding="utf-8")
    given = settings(text=str(tmp_path / "mails"), column="body", format="json-lines", megabytes=megabytes)
    words = []
    monkeypatch.setattr(stages, "longmix", lambda *arguments: words.extend(map(str, arguments)))
    stages.prepare_text(Plan.open(str(tmp_path / "run"), given, devices=0))
    read = words[words.index("--source") + 1]
    (source,) = sources.find_sources([read], *(["body"] if "--column" in words else []))
    assert next(iter(source.parts[0].units())) == "one of them"
    assert ("--column" in words) == ("--format" in words) == (megabytes == 1.0)


def test_a_folder_without_tasks_is_the_users_mistake(tmp_path, glue):
    assert stages.find_task(str(glue)) == ("rte", 40)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="none of GLUE's tasks"):
        stages.find_task(str(tmp_path / "empty"))


@pytest.mark.parametrize(("low", "said"), [(-0.1, "CONTAINS"), (0.2, "above it")])
def test_the_table_says_whether_the_task_was_learned(low, said):
    figure = Figure([0.3], mean=0.3, spread=None, interval=(low, 0.5), baseline=0.0)
    task = TaskResult("cola", [0], [SplitResult("dev", 50, {"matthews": figure, "score": figure})])
    rows = table.task_rows("a task", task)
    assert rows[1] == ("Matthews", f"30.0, 95 % interval {100 * low:.1f} to 50.0 (50 examples of dev)")
    assert said in rows[2][1]
    assert len(rows) == 3


def test_the_budget_is_of_tokens_and_the_time_limits_it(tmp_path, monkeypatch):
    """However fast the machine was when it was measured, the run is the same; what is too slow is told."""
    monkeypatch.chdir(tmp_path)
    plan = Plan.open("run", settings(), 0)
    manifest = SimpleNamespace(tokens=9_000, samples=90)
    monkeypatch.setattr(stages.Manifest, "load", lambda folder: manifest)
    found = []
    for plan.speed in (8_000.0, 50_000.0, 1_000.0):
        found.append((stages.run_values(plan)["optim"]["max_steps"], stages.time_limit(plan)))
    # 8 samples of 100 tokens a step; 225 seconds.
    assert found[:2] == [(1875, None)] * 2
    assert found[2][0] == 281
    assert found[2][1].startswith(
        "what 225 seconds hold at the 1,000 tokens/s measured beforehand in place of 1,500,000 tokens: "
    )
    # One that an earlier version has begun takes what the time holds.
    plan.recipe = replace(plan.recipe, tokens=None)
    assert stages.time_limit(plan).startswith("what 225 seconds hold at the 1,000 tokens/s measured beforehand: ")


class Words:
    """A tokenizer whose pieces are words, of which it knows some."""

    mask_token = "[MASK]"

    def __init__(self, *known):
        self.known = known

    def tokenize(self, word):
        return [word] if word in self.known else list(word)

    def __call__(self, text, **options):
        return {"input_ids": text.split()}

    def decode(self, words, **options):
        return " ".join(words)


def test_hidden_is_a_frequent_word_of_a_held_out_sentence():
    training = iter(["The sea and the river , the sea and the hills and the", "unknown unknown unknown unknown"])
    frequent = masks.frequent_words(training, Words("the", "and", "sea", ",", "The"))
    assert frequent == ["the", "and", "sea"]
    sentences = [f"A {word} goes down the long way into a town of that name." for word in ("boat", "cart", "dog", "ox")]
    found = masks.masked_sentences(iter([f"Cut off. {' '.join(sentences)} E.", sentences[0]]), frequent)
    assert [" ".join(one.words) for one in found] == sentences and {one.place for one in found} == {4}
    assert found[0].with_word("[MASK]") == "A boat goes down [MASK] long way into a town of that name."
    # Where no sentence has one, as in a language without spaces, there is something to guess all the same.
    assert masks.masked_sentences(iter(["一二三"]), frequent) == [masks.Masked(["一二三"], 0)]


def test_the_share_that_is_guessed_right_is_of_all_sentences(tmp_path):
    found = [masks.Masked(f"n{number} of {word} b".split(), 2) for number, word in enumerate(["the"] * 20 + ["a"] * 20)]
    guesses = [("the", 0.875)] * 30 + [("a", 0.5)] * 10
    answers = [
        {"filled": one.with_word(word), "pieces": [word], "probabilities": [probability]}
        for one, (word, probability) in zip(found, guesses, strict=True)
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    lines = masks.table(found, path, Words())
    assert lines[-1] == "Guessed right: 75.0 % of 40; always 'the': 50.0 %."
    shown = [line.split(maxsplit=4) for line in lines if "[MASK]" in line]
    assert len(shown) == 8
    assert shown[0] == ["the", "the", "88", "%", "n0 of [MASK] b"]
    assert shown[5] == ["a", "the", "88", "%", "n25 of [MASK] b"]


@pytest.mark.slow
@pytest.mark.full
def test_the_whole_path_and_a_second_call(text, glue, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages, "MEASURED_STEPS", 3)
    arguments = ["--text", text.name, "--glue", "glue", "--output", "run", "--minutes", "0.01"]
    assert main(arguments) == 0
    output, errors = capfd.readouterr()
    assert "Traceback" not in errors
    run = tmp_path / "run"
    steps = yaml.safe_load((run / "pretrain.yaml").read_text())["optim"]["max_steps"]
    assert json.loads((run / "quickstart.json").read_text())["speed"] > 0
    assert read_run(run / "pretrain").evaluations[-1]["step"] == steps
    closing = output[output.index("[6/6] Result") :]
    assert re.search(r"LIMITED: what 0 seconds hold at the [\d,]+ tokens/s .* place of 1,500,000 tokens", closing)
    for expected in (r"corpus +articles.txt", r"\d+ documents", rf"{steps:,} steps", r"tokens/s", r"task +GLUE's rte"):
        assert re.search(expected, closing), (expected, closing)
    assert re.search(r"masked accuracy +\d+\.\d % before, \d+\.\d % after, with 15 % masked", closing)
    assert re.search(r"Guessed right: \d+\.\d % of \d+; always '[^']+': \d+\.\d %", output)
    assert "GLUE average" not in output
    assert re.search(r"counting reaches \d+\.\d{3} by single pieces, \d+\.\d{3} by pairs of neighbours", closing)
    metrics = (run / "pretrain" / "metrics.jsonl").read_bytes()
    results = (run / "finetune" / "results.json").read_bytes()

    assert main(arguments) == 0
    again = capfd.readouterr().out
    assert "nothing to do" in again
    assert again[again.index("[6/6] Result") :] == closing
    assert (run / "pretrain" / "metrics.jsonl").read_bytes() == metrics
    assert (run / "finetune" / "results.json").read_bytes() == results

    text.write_text("something else entirely", encoding="utf-8")
    assert main(arguments) == 2
    assert "have changed since" in capfd.readouterr().err


def front(folder, *arguments, **environment):
    """A copy of ./quickstart in `folder`, with nothing installed: (exit code, what it wrote)."""
    for name in ("quickstart", ".ci/venv.sh", "trainer/quickstart/arguments.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    process = subprocess.run(
        [str(folder / "quickstart"), *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return process.returncode, process.stdout + process.stderr


def test_the_front_names_what_is_missing_before_it_installs_anything(tmp_path):
    assert front(tmp_path, "--help")[0] == 0
    code, output = front(tmp_path, "--text", "missing.txt")
    assert (code, len(output.splitlines())) == (2, 1)
    # Debian's python3 without python3-venv: new enough, but nothing of ensurepip.
    bare = tmp_path / "bare-python"
    bare.write_text("#!/bin/sh\ncase $2 in *ensurepip*) exit 1;; esac\nexit 0\n")
    bare.chmod(0o755)
    code, output = front(tmp_path, PYTHON=str(bare))
    assert code == 2
    assert output.strip().endswith("apt install python3-venv")
    code, output = front(tmp_path, PYTHON="false")
    assert code == 2
    assert "no Python >= 3.11 found" in output
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("devices", [0, 1, 8])
def test_its_recipes_are_those_of_a_small_budget(devices):
    """But for the rate of the larger model that GPUs train."""
    recipe = Recipe.of(devices)
    shipped = read_settings([str(ROOT / "configs" / "recipes" / "small_budget.yaml")], []).values
    assert recipe.mask_probability == shipped["objective"]["mask_probability"]
    optim = {name: shipped["optim"][name] for name in ("name", "update_rms", "momentum", "schedule", "warmup_share")}
    assert recipe.optim == optim
    # Eight times as many rows in a step, at twice the rate.
    assert recipe.lr == {0: shipped["optim"]["lr"], 1: 1e-3, 8: 2e-3}[devices]

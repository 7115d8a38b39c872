"""From run files to one map: YAML, merging, `extends`, changes on the command line, and limits of all of them."""

from pathlib import Path

import pytest

from longmix.trainer.models.field_check import field_mistakes
from longmix.trainer.settings import reading, run_file


def test_numbers_in_scientific_notation_are_numbers(write, small):
    path = write("b.yaml", "optim: {lr: 1e-3, eps: 1E-8, weight_decay: 5e0}\n")
    optim = reading.load([small, path], ["optim.grad_clip=2e-1"], field_mistakes).optim
    assert (optim.lr, optim.eps, optim.weight_decay, optim.grad_clip) == (1e-3, 1e-8, 5.0, 0.2)


def test_a_key_that_stands_twice_is_refused_with_its_line(write, mistakes_of):
    path = write("a.yaml", "run: {dir: a}\noptim:\n  lr: 1e-3\n  lr: 2e-3\n")
    assert mistakes_of(path) == f"{path}, line 4: not valid YAML: the key 'lr' stands twice"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"a.b": {c: 1}\n', "a.b is not a key of a run file"),
        ('run: {"x.y": {c: 1}}\n', "run.x.y is not a key of a run file"),
        ("1: {a: 2}\n", "1 is not a key of a run file"),
        ("on: {a: 2}\n", "True is not a key of a run file"),
        ('"a\\nb\\e[31m": 1\n', r"a\nb\x1b[31m is not a key of a run file"),
        ("null: {a: 2}\n", "None is not a key of a run file"),
        ("model: {1: {a: 2}}\n", "model.1 is no field of TransformerConfig"),
        ("? [a, b]\n: 3\n", "line 1: not valid YAML: a list or a map cannot be a key"),
        ("{a: b}: 3\n", "line 1: not valid YAML: a list or a map cannot be a key"),
        ("run: {seed: 2024-13-45}\n", "run.seed is '2024-13-45', but takes a whole number"),
        ("run: {seed: 0x_}\n", "a value cannot be read"),
        ("run: {seed: !!int 1}\n", "line 1: not valid YAML: the tag !!int has no place in a run file"),
        ("model:\n  x: !!set {a, b}\n", "line 2: not valid YAML: the tag !!set has no place in a run file"),
        ("model: {x: !!binary aGk=}\n", "the tag !!binary has no place in a run file"),
        ("model: {x: !mine y}\n", "the tag !mine has no place in a run file"),
        ("model: &x {hidden_size: 16, y: *x}\n", "line 1: not valid YAML: found unconstructable recursive node"),
        ("[" * 3000 + "]" * 3000, "nested too deeply"),
        ("\0", "not valid YAML: unacceptable character"),
    ],
)
def test_odd_yaml_is_a_mistake_and_no_traceback(write, small, mistakes_of, text, expected):
    path = write("odd.yaml", text)
    told = mistakes_of([small, path])
    assert path in told and expected in told


def test_tags_and_multiplying_aliases_are_refused_and_nothing_is_executed(write, small, mistakes_of, tmp_path):
    for tag in ("apply:builtins.open", "object/new:builtins.open", "object/apply:builtins.open"):
        path = write("bomb.yaml", f"model:\n  x: !!python/{tag} ['{tmp_path}/executed', w]\n")
        assert f"line 2: not valid YAML: the tag !!python/{tag} has no place" in mistakes_of([small, path])
    assert f"the tag !!python/{tag} has no place" in mistakes_of(
        small, f"run.dir=!!python/{tag} ['{tmp_path}/executed', w]"
    )
    assert not (tmp_path / "executed").exists()
    levels = ["a0: &a0 {x: 1, y: 2}", *(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 60))]
    path = write("aliases.yaml", "\n".join(levels))
    assert "with its aliases followed it holds more than 100000 values" in mistakes_of([small, path])


def test_a_date_is_text_and_merge_keys_bring_in_what_does_not_stand_there(write, small):
    path = write("b.yaml", "run: {dir: 2024-12-25}\noptim: {<<: &x {lr: 0.5, eps: 0.1}, lr: 0.2}\nmodel: {}\n")
    merged = reading.load([small, path], [], field_mistakes)
    assert (merged.run.dir, merged.optim.lr, merged.optim.eps) == ("2024-12-25", 0.2, 0.1)


def test_what_an_empty_run_file_lacks_names_it(write, mistakes_of):
    path = write("empty.yaml", "")
    assert f"{path}: run.dir is missing" in mistakes_of(path)


def test_merging_replaces_lists_merges_maps_and_later_wins(write, small):
    first = write("first.yaml", "optim: {lr: 0.1, betas: [0.5, 0.6]}\ndata: {train: [{path: a}, {path: b}]}\n")
    second = write("second.yaml", "optim: {lr: 0.2}\ndata: {train: [{path: c}]}\n")
    merged = reading.load([small, first, second], ["optim.eps=0.5"], field_mistakes)
    assert (merged.optim.lr, merged.optim.betas, merged.optim.eps) == (0.2, [0.5, 0.6], 0.5)
    assert [source.path for source in merged.data.sources()] == ["c"]
    assert reading.load([small, second, first], [], field_mistakes).optim.lr == 0.1


def test_extends_is_relative_to_the_file_and_the_file_wins(write, tmp_path, monkeypatch):
    write("base/one.yaml", "optim: {lr: 0.1, eps: 0.1, weight_decay: 0.1}\nmodel: {model_type: transformer}\n")
    write("base/two.yaml", "extends: one.yaml\noptim: {eps: 0.2, weight_decay: 0.2}\n")
    write("other.yaml", "data: {train: d}\noptim: {grad_clip: 0.3}\n")
    path = write(
        "sub/top.yaml", "extends: [../base/two.yaml, ../other.yaml]\nrun: {dir: r}\noptim: {weight_decay: 0.4}\n"
    )
    monkeypatch.chdir("/")
    optim = reading.load([path], [], field_mistakes).optim
    assert (optim.lr, optim.eps, optim.weight_decay, optim.grad_clip) == (0.1, 0.2, 0.4, 0.3)


def test_extends_in_a_circle_or_to_nowhere(write, mistakes_of):
    first = write("a.yaml", "extends: b.yaml\n")
    write("b.yaml", "extends: a.yaml\n")
    assert "`extends` runs in a circle" in mistakes_of(first)
    missing = write("c.yaml", "extends: nowhere.yaml\n")
    text = mistakes_of(missing)
    assert "nowhere.yaml does not exist" in text and f"extended by {missing}" in text


def test_a_run_file_of_the_repository_is_found_from_elsewhere(tmp_path, monkeypatch, mistakes_of):
    """Pages name run files as they stand in a clone: from another folder the mistake says where they are."""
    monkeypatch.chdir(tmp_path)
    root = Path(__file__).resolve().parents[3]
    name = "configs/recipes/small_budget.yaml"
    assert mistakes_of(name) == f"run file {name} does not exist in this folder: it is {root / name}"
    told = mistakes_of("configs/nothing.yaml")
    assert told.endswith("the folder configs is part of longmix's repository, so name the file in a clone of it")
    assert mistakes_of("other/nothing.yaml") == "run file other/nothing.yaml does not exist"


def test_extends_without_end_is_refused_and_each_file_is_read_once(write, small, mistakes_of, tmp_path, monkeypatch):
    """Twelve files that name the next ten times: 10^11 files, if nobody counts."""
    for number in range(12):
        write(f"{number}.yaml", f"extends: [{', '.join([f'{number + 1}.yaml'] * 10)}]\noptim: {{lr: 0.{number + 1}}}\n")
    write("12.yaml", "optim: {lr: 0.5}\n")
    read, opened = run_file.parse_yaml, []
    monkeypatch.setattr(run_file, "parse_yaml", lambda text, path: [opened.append(path), read(text, path)][1])
    first = str(tmp_path / "0.yaml")
    text = mistakes_of([small, first])
    assert text.startswith(f"{first}: with all that `extends` names") and "more than 100 files" in text
    assert len(opened) == 14 == len(set(opened))
    # A file that is reached by two ways is merged in both places, as before.
    assert reading.load([small, str(tmp_path / "11.yaml")], [], field_mistakes).optim.lr == 0.12
    monkeypatch.undo()
    chain = [write(f"c{number}.yaml", f"extends: c{number + 1}.yaml\n") for number in range(101)]
    assert "more than 100 files" in mistakes_of([small, chain[0]])


def test_files_that_are_too_large_or_too_deep_are_refused(write, small, mistakes_of, tmp_path, monkeypatch):
    large = tmp_path / "large.yaml"
    with open(large, "wb") as file:
        file.truncate(2**30)
    assert "large.yaml: too large: all run files of a command may hold 4 MiB together" in mistakes_of(
        [small, str(large)]
    )
    monkeypatch.setattr(run_file, "MOST_BYTES", 3000)
    half = [write(f"{name}.yaml", f"optim: {{lr: 0.1}} #{'x' * 2000}\n") for name in "ab"]
    assert "b.yaml: too large" in mistakes_of([small, *half])
    monkeypatch.undo()
    deep = write("deep.yaml", f"model: {'{x: ' * 60}1{'}' * 60}\n")
    assert "line 1: not valid YAML: lists or maps are nested too deeply (more than 50 levels)" in mistakes_of(deep)
    assert "has more than 50 parts" in mistakes_of(small, f"{'model.' * 20_000}x=1")
    assert "nested too deeply" in mistakes_of(small, f"model.x={'[' * 5000}")
    merged = [f"a0: &a0 {{{', '.join(f'k{n}: 1' for n in range(10))}}}"]
    merged += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    assert "more than 100000 values" in mistakes_of([small, write("merged.yaml", "\n".join(merged))])


def test_a_run_file_that_the_system_refuses(write, small, mistakes_of, monkeypatch):
    path = write("refused.yaml", "")

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert mistakes_of([path]) == f"run file {path} cannot be read: Permission denied"


def test_mistakes_name_the_extended_file_that_holds_them(write, small, mistakes_of):
    write("base.yaml", "optim: {lrr: 1}\n")
    top = write("top.yaml", "extends: base.yaml\nlog: {every_step: 5}\n")
    text = mistakes_of([small, top])
    assert f"{top}: log.every_step is not a key of a run file; did you mean log.every_steps?" in text
    assert "base.yaml: optim.lrr" in text


@pytest.mark.parametrize("override", ["optim..lr=1", "=1", "nothing"])
def test_what_is_neither_a_file_nor_a_change(small, mistakes_of, override):
    assert "is neither a file nor a change: write dotted.key=value" in mistakes_of(small, override)


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n"])
def test_a_run_file_that_is_no_map(write, mistakes_of, text):
    assert "a run file is a map of sections" in mistakes_of(write("a.yaml", text))

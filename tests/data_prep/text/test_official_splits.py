"""longmix prepare text --validation, --test: the texts given there whole, and nothing of them in the training text."""

import json
import random
import re
import shutil
import string
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.text import blocks, prepare
from longmix.data_prep.text.prepare import prepare_text
from longmix.data_prep.text.state import TextSettings
from longmix.data_prep.tokenizer import load_tokenizer

STEMS = ["tide", "stone", "amber", "field", "river", "moss", "salt", "crown", "hollow", "ember", "wren", "loam"]
WORDS = [first + second for first in STEMS for second in ("", "s", *STEMS)]


def article(title, seed, extra=""):
    """As WikiText has it: a title between blank lines, and a tokenised number."""
    draw = random.Random(seed)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(5, 30))) for _ in range(2)]
    return f" \n = {title} = \n \n {lines[0]} 0 @.@ 7 {extra}\n \n = = Part = = \n \n {lines[1]} . \n"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Paths: `train` (40 articles and five that leak), `validation` (6, one also in test), `test` (4)."""
    held_out = [article("Wren @-@ song", 100, "ж"), article("Loam", 101), article("C + +", 102)]
    shared = article("Shared", 104)
    plain = re.sub(r" @([.,-])@ ", r"\1", held_out[0]).replace(" .", ".").upper()
    leaks = [
        held_out[1],  # the same article
        plain.replace("WREN-SONG", "A Bird"),  # its text in other tokens, under another title
        article("Wren-Song", 200, "ж"),  # another text under its title
        article("Both", 300),
        shared,
    ]
    folder = tmp_path_factory.mktemp("texts")
    kept = [article(WORDS[number], number, f"{string.ascii_letters} + - < >") for number in range(40)]
    contents = {
        "train": [*kept[:20], *leaks, *kept[20:]],
        "validation": [*held_out, article("Only <unk> here", 103), shared, article("Last", 105)],
        "test": [article("Both", 301), article("Test", 302), shared, article("End", 303)],
    }
    paths = {}
    for name, articles in contents.items():
        paths[name] = folder / f"{name}.txt"
        paths[name].write_text("".join(articles))
    return paths


def settings(texts, *held_out, **options):
    given = {name: (str(texts[name]),) for name in held_out}
    return TextSettings(source=(str(texts["train"]),), vocab_size=110, sequence_length=32, **given, **options)


@pytest.fixture(scope="module")
def prepared(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "out"
    prepare_text(settings(texts, "validation", "test"), folder, workers=1)
    return folder


def documents_of(folder):
    """The documents of a split, decoded to words, in their order."""
    tokenizer = load_tokenizer(folder.parent / "tokenizer")
    ids = []
    for shard in Manifest.load(folder).shards:
        for row in pq.read_table(folder / shard["file"]).column("input_ids").to_pylist():
            ids += row[1:]
    found = [[]]
    for token in ids:
        if token == tokenizer.sep_token_id:
            found.append([])
        else:
            found[-1].append(token)
    assert not found.pop()
    return [tokenizer.decode(document).split() for document in found]


def articles_of(path):
    parts = re.split(r"(?m)^ = (?=[^=])", path.read_text())
    return [f"= {part}".split() for part in parts[1:]]


def test_official_splits_are_whole_and_nothing_of_them_is_trained_on(texts, prepared):
    for split in ("validation", "test"):
        whole = articles_of(texts[split])
        assert documents_of(prepared / split) == [[word.replace("ж", "<unk>") for word in words] for words in whole]
        manifest = Manifest.load(prepared / split)
        assert manifest.words == len(texts[split].read_text().split())
        assert manifest.split == split and f"{split}: the text given as --{split}, whole" in manifest.split_rule
    everything = articles_of(texts["train"])
    assert documents_of(prepared / "train") == everything[:20] + everything[25:]
    report = Manifest.load(prepared / "train").report
    assert report["held_out"] == {
        "left_out": {"same_text": 1, "same_title": 4},
        "validation_in_test": 1,
        "overlapping": {"words": 13, "some": 0, "most": 0},
    }
    assert {split: figures["documents"] for split, figures in report["splits"].items()} == {
        "train": 40,
        "validation": 6,
        "test": 4,
    }


def test_the_tokenizer_sees_training_text_alone(texts, prepared, tmp_path):
    source = tmp_path / "kept.txt"
    everything = re.split(r"(?m)(?=^ \n = [^=])", texts["train"].read_text())
    articles = [one for one in everything if one]
    source.write_text("".join(articles[:20] + articles[25:]))
    paths = {**texts, "train": source}
    prepare_text(settings(paths, "validation"), tmp_path / "out", workers=1)
    model = "tokenizer/tokenizer.model"
    assert (tmp_path / "out" / model).read_bytes() == (prepared / model).read_bytes()
    assert "ж" not in load_tokenizer(prepared / "tokenizer").get_vocab()


def test_interrupted_it_goes_on_to_the_same_bytes(texts, prepared, contents, tmp_path, monkeypatch):
    pack, packed = blocks.pack_block, []

    def failing(path, digest):
        if Path(path).name.startswith("test-"):
            raise KeyboardInterrupt
        packed.append(Path(path).name)
        return pack(path, digest)

    monkeypatch.setattr(blocks, "pack_block", failing)
    with pytest.raises(KeyboardInterrupt):
        prepare_text(settings(texts, "validation", "test"), tmp_path / "out", workers=1)
    assert packed == ["train-000000", "validation-000000"]
    monkeypatch.setattr(blocks, "pack_block", pack)
    again = prepare_text(settings(texts, "validation", "test"), tmp_path / "out", workers=1)
    assert not again.was_there and contents(tmp_path / "out") == contents(prepared)
    there = prepare_text(settings(texts, "validation", "test"), tmp_path / "out", workers=1)
    assert there.was_there and there.test == again.test


def test_a_test_text_alone_leaves_validation_to_be_cut_off(texts, tmp_path):
    made = prepare_text(settings(texts, "test"), tmp_path / "out", workers=1)
    counts = {split: figures["documents"] for split, figures in made.train.report["splits"].items()}
    assert counts["test"] == 4 and counts["validation"] > 0 and counts["train"] + counts["validation"] == 43
    assert made.train.report["held_out"]["left_out"] == {"same_text": 0, "same_title": 2}
    assert "BLAKE2b" in made.train.split_rule and "test: the text given" in made.train.split_rule
    assert "stands in the test split are left out of --source" in made.train.split_rule


def test_an_output_tells_what_it_was_made_with(texts, prepared, tmp_path):
    prepare_text(settings(texts), tmp_path / "cut", workers=1)
    plain = json.loads((tmp_path / "cut" / "prepare.json").read_text())
    # As before there were these options: what was begun then goes on.
    assert not {"validation", "test"} & set(plain["settings"]) and len(plain["sources"]) == 1
    assert "held_out" not in Manifest.load(tmp_path / "cut" / "train").report
    with pytest.raises(UserError, match=r"--validation was None, now \['.*validation\.txt'\]"):
        prepare_text(settings(texts, "validation"), tmp_path / "cut", workers=1)
    with pytest.raises(UserError, match=r"--test was \['.*test\.txt'\], now None"):
        prepare_text(settings(texts, "validation"), prepared, workers=1)
    copies = dict(texts)
    copies["validation"] = tmp_path / "validation.txt"
    copies["validation"].write_text(texts["validation"].read_text())
    prepare_text(settings(copies, "validation"), tmp_path / "out", workers=1)
    copies["validation"].write_text(article("Other", 7))
    with pytest.raises(UserError, match="files of the sources have changed"):
        prepare_text(settings(copies, "validation"), tmp_path / "out", workers=1)


def test_the_command_tells_what_was_left_out(texts, tmp_path, capsys, run_prepare):
    options = [f"--{name.replace('train', 'source')}={path}" for name, path in texts.items()]
    assert run_prepare("text", *options, "--output", tmp_path / "out", "--vocab-size", 110, "--workers", 1) == 0
    out = capsys.readouterr().out
    assert "held-out text: 5 documents (1 by their text, 4 by their title)" in out
    assert "validation holds 1 documents that also stand in test" in out and "in a row" not in out
    assert "written to" in out and "train/, validation/, test/, tokenizer/" in out


def interrupted(*arguments):
    raise KeyboardInterrupt


def noted(patch):
    """A list, to which the name of every block is added that is packed."""
    pack, packed = blocks.pack_block, []
    patch.setattr(blocks, "pack_block", lambda path, digest: packed.append(Path(path).name) or pack(path, digest))
    return packed


def test_documents_that_share_passages_with_held_out_text_are_counted_and_kept(
    texts, contents, tmp_path, capsys, run_prepare
):
    test, train = tmp_path / "other.txt", tmp_path / "train.txt"
    draw = random.Random(900)
    passages = [" ".join(draw.choices(WORDS, k=60)) for _ in range(3)]
    test.write_text("".join(f" \n = Held {number} = \n \n {text}\n" for number, text in enumerate(passages)))
    mostly = f" \n = A copy = \n \n {passages[0].upper()} and more\n"
    partly = f" \n = A quote = \n \n {' '.join(draw.choices(WORDS, k=80))} {passages[1]}\n"
    train.write_text("".join(article(WORDS[number], number) for number in range(40)) + mostly + partly)
    given = [f"--source={train}", f"--test={test}", f"--validation={texts['validation']}"]
    options = [*given, "--output", tmp_path / "out", "--vocab-size", 60]
    assert run_prepare("text", *options, "--workers", 1) == 0
    told = "of those trained on, 2 share 13 words in a row with held-out text, 1 of them most of their words"
    assert told in capsys.readouterr().out
    for split in ("train", "validation", "test"):
        report = Manifest.load(tmp_path / "out" / split).report["held_out"]
        assert report["overlapping"] == {"words": 13, "some": 2, "most": 1}
    # Without its manifests it goes on from its blocks: those of an earlier longmix lack the counts.
    again = tmp_path / "again"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "_write_shards", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_prepare("text", *given, "--output", again, "--vocab-size", 60, "--workers", 1)
    for earlier in (False, True):
        figures = again / ".blocks" / "train-000000.json"
        values = json.loads(figures.read_text())
        assert (values["overlapping_some"], values["overlapping_most"]) == (2, 1)
        if earlier:
            figures.write_text(json.dumps({name: values[name] for name in values if "overlapping" not in name}))
        copy = tmp_path / f"copy-{earlier}"
        shutil.copytree(again, copy)
        with pytest.MonkeyPatch.context() as patch:
            packed = noted(patch)
            run_prepare("text", *given, "--output", copy, "--vocab-size", 60, "--workers", 1)
        assert packed == (["train-000000"] if earlier else [])
        assert contents(copy) == contents(tmp_path / "out")
    capsys.readouterr()
    # As an earlier longmix made it.
    for split in ("train", "validation", "test"):
        path = tmp_path / "out" / split / "manifest.json"
        values = json.loads(path.read_text())
        del values["report"]["held_out"]["overlapping"]
        path.write_text(json.dumps(values))
    assert run_prepare("text", *options, "--workers", 1) == 0 and "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "train", "--validation", "nowhere"], "--validation nowhere does not exist"),
        (["--source", "train", "--validation", "empty"], r"--validation .*empty\.txt holds no text"),
        (["--source", "train", "--test", "latin"], "byte 0xe9 at offset 3 "),
        (["--source", "train", "--validation", "train"], "--validation .* and --source .* both hold .*: name it once"),
        (["--source", "train", "--test", "test", "--validation", "test"], "--test .* and --validation .* both hold"),
        (["--source", "train", "--test", "test", "--test", "test"], "--test .* is given twice"),
        (["--source", "hub:a/b", "--test", "hub:a/b"], "--test hub:a/b and --source hub:a/b both hold hub:a/b, split"),
        (["--source", "train", "--test", "hub:a:b:c:d"], "--test hub:a:b:c:d is not of the form"),
        (["--source", "copy", "--validation", "test"], "every document of the sources also stands in"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(texts, tmp_path, options, message, run_prepare):
    paths = {**texts, **{name: tmp_path / f"{name}.txt" for name in ("empty", "latin", "copy")}}
    paths["empty"].write_text("\n \n")
    paths["latin"].write_bytes(b"caf\xe9 au lait")
    paths["copy"].write_text(texts["test"].read_text())
    with pytest.raises(UserError, match=message) as caught:
        run_prepare("text", *(paths.get(option, option) for option in options), "--output", tmp_path / "out")
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()

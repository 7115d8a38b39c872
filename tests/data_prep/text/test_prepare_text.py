"""longmix prepare text: what lands in the folder, whatever the workers and the mistakes."""

import gzip
import json
import os
import random
import shutil
import subprocess
import sys

import pytest
import tokenizers
import transformers

from longmix.data_prep.errors import MachineFault, UserError
from longmix.data_prep.files import sha256_of_folder
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.text import blocks, encoding, manifests
from longmix.data_prep.text import prepare as text
from longmix.data_prep.text.prepare import prepare_text
from longmix.data_prep.tokenizer import encode, load_tokenizer


def test_prepared_folder_holds_every_document_once(corpus, contents, tmp_path, rows_of, settings, documents_of):
    output = tmp_path / "out"
    prepare_text(settings(corpus), output, workers=1)
    assert sorted(contents(output)) == [
        "prepare.json",
        "tokenizer",
        "tokenizer/tokenizer.model",
        "tokenizer/tokenizer_config.json",
        "train",
        "train/manifest.json",
        "train/shard-00000.parquet",
        "validation",
        "validation/manifest.json",
        "validation/shard-00000.parquet",
    ]
    tokenizer = load_tokenizer(output / "tokenizer")
    special = {"cls": tokenizer.cls_token_id, "sep": tokenizer.sep_token_id}
    found, words = [], 0
    for split in ("train", "validation"):
        manifest = Manifest.load(output / split)
        rows = rows_of(output / split)
        assert manifest.split == split
        assert manifest.samples == len(rows)
        assert manifest.tokens == sum(len(row["input_ids"]) for row in rows)
        words += manifest.words
        assert (manifest.vocab_size, manifest.pad_token_id, manifest.mask_token_id) == (100, 0, 4)
        assert manifest.special_token_ids == [0, 1, 2, 3, 4]
        assert (manifest.sequence_length, manifest.packing) == (32, "documents")
        assert manifest.tokenizer == {"path": "../tokenizer", "sha256": sha256_of_folder(output / "tokenizer")}
        figures = manifest.report["splits"][split]
        documents = documents_of(rows, special)
        assert figures["documents"] == len(documents)
        assert figures["padding"] == pytest.approx(1 - manifest.tokens / (32 * len(rows)))
        assert figures["tokens_kept"] == 1.0
        assert figures["bytes_per_token"] == pytest.approx(figures["bytes"] / sum(map(len, documents)))
        found += documents
    assert words == len(corpus.read_text().split())
    expected = encode(tokenizer, corpus.read_text().split("\n\n"))
    assert sorted(found) == sorted(expected)


def test_split_is_a_function_of_the_document(corpus, tmp_path, settings):
    first = prepare_text(settings(corpus), tmp_path / "one", workers=1)
    shuffled = tmp_path / "shuffled.txt"
    documents = corpus.read_text().split("\n\n")
    random.Random(5).shuffle(documents)
    shuffled.write_text("\n\n".join(documents))
    second = prepare_text(settings(shuffled), tmp_path / "two", workers=1)
    for split in ("train", "validation"):
        one, two = getattr(first, split), getattr(second, split)
        assert one.split_rule == two.split_rule
        assert one.report["splits"][split]["documents"] == two.report["splits"][split]["documents"]
    share = first.validation.report["splits"]["validation"]
    assert share["bytes"] >= 0.05 * corpus.stat().st_size
    assert share["documents"] < 0.2 * 600
    # The tokenizer sees the same documents, in the order of their digests.
    assert (tmp_path / "one/tokenizer/tokenizer.model").read_bytes() == (
        tmp_path / "two/tokenizer/tokenizer.model"
    ).read_bytes()


def test_output_is_the_same_to_the_byte_with_any_number_of_workers(corpus, contents, tmp_path, monkeypatch, settings):
    monkeypatch.setattr(blocks, "BLOCK_DOCUMENTS", 50)
    for workers in (1, 3):
        prepare_text(settings(corpus), tmp_path / str(workers), workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_shards_hold_whole_blocks(corpus, tmp_path, monkeypatch, rows_of, settings):
    monkeypatch.setattr(blocks, "BLOCK_DOCUMENTS", 50)
    prepare_text(settings(corpus), tmp_path / "one", workers=1)
    monkeypatch.setattr(manifests, "SAMPLES_PER_SHARD", 200)
    cut = prepare_text(settings(corpus), tmp_path / "many", workers=1)
    assert len(cut.train.shards) > 2
    assert rows_of(tmp_path / "one/train") == rows_of(tmp_path / "many/train")
    # Each block of 50 documents was packed alone: it ends with a short row.
    short = sum(len(row["input_ids"]) < 32 for row in rows_of(tmp_path / "many/train"))
    documents = cut.train.report["splits"]["train"]["documents"]
    assert -(-documents // 50) - 1 <= short <= -(-documents // 50) * 2


def test_one_per_row(corpus, tmp_path, rows_of, settings):
    manifest = prepare_text(settings(corpus, packing="one-per-row"), tmp_path / "out", workers=1).train
    rows = rows_of(tmp_path / "out/train")
    assert manifest.packing == "one-per-row"
    assert all(row["document_starts"] == [0] and row["input_ids"].count(3) <= 1 for row in rows)
    assert manifest.report["splits"]["train"]["padding"] > 0.1


def test_several_sources_and_an_existing_tokenizer(corpus, contents, make_documents, tmp_path, settings):
    prepare_text(settings(corpus), tmp_path / "one", workers=1)
    folder = tmp_path / "more"
    folder.mkdir()
    lines = [json.dumps({"body": document}) for document in make_documents(50, seed=1)]
    (folder / "a.jsonl").write_text("\n".join([*lines, json.dumps({"body": " "})]))
    (folder / "b.txt").write_text("\n\n".join(make_documents(30, seed=2)))
    again = settings(corpus, folder, column="body", tokenizer=str(tmp_path / "one" / "tokenizer"), vocab_size=None)
    manifest = prepare_text(again, tmp_path / "two", workers=1).train
    assert manifest.vocab_size == 100
    assert contents(tmp_path / "one/tokenizer") == contents(tmp_path / "two/tokenizer")
    counts = [(item["files"], item["documents"], item["blank"]) for item in manifest.report["sources"]]
    assert counts == [(1, 600, 0), (2, 80, 1)]
    assert manifest.report["sources"][1]["rules"] == ["record", "blank-line"]


def test_of_a_tokenizer_that_frames_no_text_is_told(tmp_path, settings):
    vocabulary = {name: index for index, name in enumerate(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "river", "sea"])}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="sea"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    (tmp_path / "text.txt").write_text("river sea\n\nsea river river")
    told = []

    def prepare(name):
        transformers.PreTrainedTokenizerFast(tokenizer_object=core, **special).save_pretrained(tmp_path / name)
        given = settings(tmp_path / "text.txt", tokenizer=str(tmp_path / name), vocab_size=None)
        prepare_text(given, tmp_path / f"of-{name}", workers=1, notify=told.append)

    prepare("bare")
    (note,) = [line for line in told if "leaves out" in line]
    assert note.startswith("samples begin with [CLS] and documents end with [SEP]") and str(tmp_path / "bare") in note
    told.clear()
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    prepare("framing")
    assert told and not any("leaves out" in line for line in told)


def test_two_documents_are_enough(tmp_path, settings):
    (tmp_path / "tiny.txt").write_text("ba co de fin gul\n\nho ji ka lo mer")
    prepared = prepare_text(settings(tmp_path / "tiny.txt", vocab_size=20), tmp_path / "out", workers=1)
    assert (prepared.train.samples, prepared.validation.samples) == (1, 1)


def test_the_same_command_again_does_nothing(corpus, tmp_path, settings):
    first = prepare_text(settings(corpus), tmp_path / "out", workers=1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    second = prepare_text(settings(corpus), tmp_path / "out", workers=2)
    assert (first.was_there, second.was_there) == (False, True)
    assert (first.train, first.validation) == (second.train, second.validation)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}


def test_finished_folder_notices_other_contents_of_the_same_files(make_documents, tmp_path, settings):
    source, own, again = tmp_path / "corpus.txt", tmp_path / "own", tmp_path / "again"
    source.write_text("\n\n".join(make_documents(60)))
    prepare_text(settings(source), own, workers=1)
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(own / "tokenizer", tokenizer)
    (tokenizer / "model.safetensors").write_bytes(b"of a model that has this tokenizer")
    options = {"tokenizer": str(tokenizer), "vocab_size": None}
    prepare_text(settings(source, **options), again, workers=1)

    os.utime(source, (0, 0))
    (tokenizer / "model.safetensors").write_bytes(b"trained on")
    assert prepare_text(settings(source), own, workers=1).was_there
    assert prepare_text(settings(source, **options), again, workers=1).was_there

    configuration = tokenizer / "tokenizer_config.json"
    configuration.write_text(configuration.read_text() + " ")
    with pytest.raises(UserError, match=r"the tokenizer in .* has changed"):
        prepare_text(settings(source, **options), again, workers=1)
    text = source.read_text()
    source.write_text(("a" if text[0] != "a" else "b") + text[1:])
    with pytest.raises(UserError, match="files of the sources have changed"):
        prepare_text(settings(source), own, workers=1)


def test_command_prints_a_report(corpus, tmp_path, capsys, run_prepare):
    arguments = ["--source", corpus, "--output", tmp_path / "out", "--vocab-size", 100, "--workers", 1]
    assert run_prepare("text", *arguments) == 0
    out = capsys.readouterr().out
    assert f"{corpus}: 600 documents" in out and "told apart by blank-line" in out
    for label in ("padding that the packing will cause", "bytes per token", "of these kept"):
        assert label in out
    assert run_prepare("text", *arguments) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_what_a_source_was_taken_for_is_told_before_the_long_work(make_documents, tmp_path, capsys, run_prepare):
    (tmp_path / "wiki_00").write_text(
        "".join(json.dumps({"url": "wiki.example", "text": text}) + "\n" for text in make_documents(60))
    )
    arguments = ["--source", tmp_path / "wiki_00", "--workers", 1]
    assert run_prepare("text", *arguments, "--vocab-size", 60, "--output", tmp_path / "out") == 0
    told = capsys.readouterr()
    first = " ".join(make_documents(60)[0].split())[:20]
    expected = f"JSON lines (told by content), 60 documents, the first begins '{first}"
    assert expected in told.err.split("training a tokenizer")[0] and "--format" in told.err
    assert f"read as JSON lines (told by content), the first begins '{first}" in told.out
    arguments += ["--format", "text", "--documents", "record"]
    assert run_prepare("text", *arguments, "--vocab-size", 60, "--output", tmp_path / "text") == 0
    assert 'read as plain text, the first begins \'{"url"' in capsys.readouterr().out


def test_bars_promise_an_end_only_where_sizes_tell_it(make_documents, tmp_path, monkeypatch, settings):
    content = "\n\n".join(make_documents(60)).encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content))
    bar, totals = text.bar, []
    monkeypatch.setattr(text, "bar", lambda name, total, show: totals.append((name, total)) or bar(name, total, show))
    for name in ("a.txt", "b.txt.gz"):
        prepare_text(settings(tmp_path / name, vocab_size=60), tmp_path / f"{name}.out", workers=1)
    encoding = ("encoding", len(content) - 2 * 59)
    assert totals == [("reading", len(content)), encoding, ("reading", None), encoding]


def test_empty_files_are_counted_in_a_note(make_documents, tmp_path, settings):
    (tmp_path / "a.txt").write_text("\n\n".join(make_documents(60)))
    for name in ("b.parquet", "c.txt"):
        (tmp_path / name).touch()
    told = []
    prepare_text(settings(tmp_path, vocab_size=60), tmp_path.with_name("out"), workers=1, notify=told.append)
    assert told[1].startswith(f"--source {tmp_path}: ") and told[1].endswith("; 2 of 3 files are empty")


def test_the_vocabulary_follows_from_the_text(tmp_path, capsys, corpus, settings):
    notes = []
    prepared = prepare_text(settings(corpus, vocab_size=None), tmp_path / "out", workers=1, notify=notes.append)
    assert prepared.train.vocab_size <= 300
    with pytest.raises(UserError, match=r"too small for --vocab-size 32000: .*--vocab-size [0-9]+, or leave it out$"):
        prepare_text(settings(corpus, vocab_size=32000), tmp_path / "other", workers=1, notify=notes.append)
    warned = next(index for index, note in enumerate(notes) if "--vocab-size 32000 is more than" in note)
    assert "training a tokenizer of 32000" in notes[warned + 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "EMPTY"], "holds no text"),
        (["--source", "BLANK"], "holds no text"),
        (["--source", "GOOD", "--source", "EMPTY"], "holds no text"),
        (["--source", "LATIN"], "byte 0xe9 at offset 3 "),
        (["--source", "LINES"], "no column 'text'; it has 'body'"),
        (["--source", "GOOD", "--source", "GOOD"], "given twice"),
        (["--source", "GOOD", "--vocab-size", "32000"], "--vocab-size 32000: it can fill at most"),
        # Refused before the sources are read.
        (["--source", "LATIN", "--vocab-size", "3"], "--vocab-size is 3: allowed are 9 to 1000000"),
        (["--source", "LATIN", "--vocab-size", "99999999999"], "--vocab-size is 99999999999: allowed"),
        (["--source", "GOOD", "--documents", "file"], "two different ones"),
        (["--source", "GOOD", "--documents", "heading:^Chapter"], "no line of any source matches"),
        (["--source", "GOOD", "--documents", "chapters"], "allowed are blank-line"),
        (["--source", "GOOD", "--sequence-length", "4"], "allowed are 8"),
        (["--source", "GOOD", "--workers", "0"], "--workers is 0"),
        (["--source", "GOOD", "--workers", "99999999999"], "--workers is 99999999999: allowed are 1 to 4096"),
        (["--source", "GOOD", "--tokenizer", "GOOD"], "tokenizer folder .* does not exist"),
        (["--source", "GOOD", "--tokenizer", "GOOD", "--uncased"], "leave --vocab-size and --uncased out"),
        (["--source", "NOWHERE"], "does not exist"),
        # Only noticed once it was encoded.
        (["--source", "GOOD", "--validation", "INVISIBLE", "--vocab-size", "100"], "the validation split is empty"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(tmp_path, corpus, options, message, run_prepare):
    files = {
        "EMPTY": b"",
        "BLANK": b"\n \n\t\n",
        "LATIN": b"caf\xe9 au lait",
        "INVISIBLE": b"\xe2\x80\x8b\n",
        "LINES": b'{"body": "text"}\n',
    }
    paths = {"GOOD": corpus, "NOWHERE": tmp_path / "nowhere"}
    for name, content in files.items():
        paths[name] = tmp_path / (name + (".jsonl" if name == "LINES" else ".txt"))
        paths[name].write_bytes(content)
    output = tmp_path / "out"
    with pytest.raises(UserError, match=message) as caught:
        run_prepare("text", *(paths.get(option, option) for option in options), "--output", output)
    assert "\n" not in str(caught.value)
    assert not output.exists()
    # The corrected command can use the same folder at once.
    assert run_prepare("text", "--source", corpus, "--vocab-size", 100, "--workers", 1, "--output", output) == 0


def test_folders_that_hold_something_else_are_left_alone(corpus, contents, tmp_path, settings):
    output = tmp_path / "out"
    output.mkdir()
    (output / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="already holds other files"):
        prepare_text(settings(corpus), output, workers=1)
    assert contents(output) == {"thesis.tex": b"precious"}
    other = tmp_path / "other"
    prepare_text(settings(corpus), other, workers=1)
    before = contents(other)
    with pytest.raises(UserError, match=r"already holds another data set .*--vocab-size was 100, now 90"):
        prepare_text(settings(corpus, vocab_size=90), other, workers=1)
    (other / "prepare.json").unlink()
    with pytest.raises(UserError, match="already holds another data set"):
        prepare_text(settings(corpus), other, workers=1)
    del before["prepare.json"]
    assert contents(other) == before
    with pytest.raises(UserError, match="cannot be used"):
        prepare_text(settings(corpus), corpus / "out", workers=1)


def test_two_runs_at_once_do_not_mix(corpus, tmp_path, settings):
    from longmix.data_prep.files import locked

    with locked(tmp_path / "out"), pytest.raises(UserError, match="at work"):
        prepare_text(settings(corpus), tmp_path / "out", workers=1)
    prepare_text(settings(corpus), tmp_path / "out", workers=1)


def test_a_worker_that_is_killed_is_reported(tmp_path, corpus, monkeypatch, settings):
    pool = encoding.ProcessPoolExecutor

    def with_a_death(*arguments):
        executor = pool(*arguments)
        executor.submit(os._exit, 1)
        return executor

    monkeypatch.setattr(encoding, "ProcessPoolExecutor", with_a_death)
    with pytest.raises(MachineFault, match="worker process was killed"):
        prepare_text(settings(corpus), tmp_path / "out", workers=2)


def test_preparing_text_does_not_import_torch(corpus, tmp_path):
    # Workers are started anew for every run: a second of imports each would be most of a small job.
    code = (
        "import sys\nfrom longmix.data_prep.text.state import TextSettings\n"
        "from longmix.data_prep.text.prepare import prepare_text\n"
        f"prepare_text(TextSettings(source=({str(corpus)!r},), vocab_size=100), {str(tmp_path / 'out')!r}, workers=1)\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"

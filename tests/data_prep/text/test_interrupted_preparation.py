"""longmix prepare text, interrupted: the same command goes on, and what is not its own stays."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.text import blocks
from longmix.data_prep.text import prepare as text
from longmix.data_prep.text.parts import TextFile
from longmix.data_prep.text.prepare import prepare_text
from longmix.data_prep.tokenizer import encode, load_tokenizer

PREPARE = """
import sys
from longmix.data_prep.text import blocks, encoding, manifests
from longmix.data_prep.text.state import TextSettings
from longmix.data_prep.text.prepare import prepare_text
if __name__ == "__main__":
    blocks.BLOCK_DOCUMENTS = 20
    options = TextSettings(source=(sys.argv[1],), vocab_size=100, sequence_length=32)
    print(prepare_text(options, sys.argv[2], workers=2).was_there)
"""


@pytest.mark.full
@pytest.mark.slow
def test_killed_half_way_and_started_again_gives_the_same(contents, make_documents, tmp_path):
    source, script = tmp_path / "corpus.txt", tmp_path / "prepare.py"
    source.write_text("\n\n".join(make_documents(1500, longest=400)))
    script.write_text(PREPARE)
    command = [sys.executable, str(script), str(source)]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    output = tmp_path / "killed"
    process = subprocess.Popen([*command, str(output)], start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list((output / ".blocks").glob("train-*.json"))) < 20:
        assert process.poll() is None and time.monotonic() < deadline, "it ended before it could be killed"
        time.sleep(0.002)
    process.kill()
    process.wait()
    with pytest.raises(UserError, match="no data set, or preparing it was interrupted"):
        Manifest.load(output)
    for split in ("train", "validation"):
        with pytest.raises(UserError):
            Manifest.load(output / split)
    workers_deadline = time.monotonic() + 20
    while _session_lives(process.pid):
        assert time.monotonic() < workers_deadline, "workers outlive their killed parent"
        time.sleep(0.05)
    subprocess.run([*command, str(output)], check=True, capture_output=True)
    assert contents(output) == contents(tmp_path / "whole")


def _session_lives(session):
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


def test_interrupted_run_goes_on_after_its_last_finished_block(corpus, contents, tmp_path, monkeypatch, settings):
    monkeypatch.setattr(blocks, "BLOCK_DOCUMENTS", 50)
    prepare_text(settings(corpus), tmp_path / "whole", workers=1)
    pack, packed = blocks.pack_block, []

    def failing(path, digest):
        if len(packed) == 5:
            raise KeyboardInterrupt
        packed.append(Path(path).name)
        return pack(path, digest)

    monkeypatch.setattr(blocks, "pack_block", failing)
    with pytest.raises(KeyboardInterrupt):
        prepare_text(settings(corpus), tmp_path / "out", workers=1)
    first = list(packed)

    def counting(path, digest):
        packed.append(Path(path).name)
        return pack(path, digest)

    monkeypatch.setattr(blocks, "pack_block", counting)
    prepare_text(settings(corpus), tmp_path / "out", workers=1)
    assert len(first) == 5
    assert len(packed) == len(set(packed)), "a finished block was done again"
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_unfinished_folder_refuses_other_settings_and_changed_sources(make_documents, tmp_path, monkeypatch, settings):
    source = tmp_path / "corpus.txt"
    source.write_text("\n\n".join(make_documents(100)))

    def interrupted(path, digest):
        raise KeyboardInterrupt

    monkeypatch.setattr(blocks, "pack_block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_text(settings(source), tmp_path / "out", workers=1)
    monkeypatch.undo()
    with pytest.raises(UserError, match="--sequence-length was 32, now 64"):
        prepare_text(settings(source, sequence_length=64), tmp_path / "out", workers=1)
    source.write_text(source.read_text() + " more")
    with pytest.raises(UserError, match="files of the sources have changed"):
        prepare_text(settings(source), tmp_path / "out", workers=1)


def test_changed_blocks_are_done_again(make_documents, tmp_path, monkeypatch, rows_of, settings, documents_of):
    # Other text behind the same fingerprint, as of a hub data set: the digest of the block notices.
    monkeypatch.setattr(TextFile, "fingerprint", lambda self: [])
    source = tmp_path / "corpus.txt"
    documents = make_documents(100)
    source.write_text("\n\n".join(documents))
    finish = text.write_manifests
    monkeypatch.setattr(text, "write_manifests", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare_text(settings(source), tmp_path / "out", workers=1)
    monkeypatch.setattr(text, "write_manifests", finish)
    changed = [document[::-1] for document in documents]
    source.write_text("\n\n".join(changed))
    prepare_text(settings(source), tmp_path / "out", workers=1)
    tokenizer = load_tokenizer(tmp_path / "out/tokenizer")
    rows = rows_of(tmp_path / "out/train") + rows_of(tmp_path / "out/validation")
    assert sorted(documents_of(rows, {"cls": 2, "sep": 3})) == sorted(encode(tokenizer, changed))


def test_no_block_lists_the_folder_of_all_and_leftovers_go_before_the_first(
    corpus, contents, tmp_path, monkeypatch, settings
):
    """A hundred thousand blocks would list ten thousand million names."""
    monkeypatch.setattr(blocks, "BLOCK_DOCUMENTS", 20)
    prepare_text(settings(corpus), tmp_path / "whole", workers=1)
    pack, listdir, packed, listed = blocks.pack_block, os.listdir, [], []

    def failing(path, digest):
        if len(packed) == 5:
            raise KeyboardInterrupt
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "listdir", lambda path=".": listed.append(path) or listdir(path))
            packed.append(pack(path, digest))
        return packed[-1]

    monkeypatch.setattr(blocks, "pack_block", failing)
    with pytest.raises(KeyboardInterrupt):
        prepare_text(settings(corpus), tmp_path / "out", workers=1)
    folder = tmp_path / "out" / ".blocks"
    for number, name in enumerate(("json.7", "json.7-1", "parquet.7", "parquet.7-12")):
        (folder / f".train-{number:06d}.{name}.tmp").write_text("half")
    (folder / ".held-out.windows.7-1.tmp").write_text("half")
    left = []
    monkeypatch.setattr(blocks, "pack_block", lambda path, digest: left.extend(folder.glob(".*")) or pack(path, digest))
    prepare_text(settings(corpus), tmp_path / "out", workers=1)
    assert len(packed) == 5 and not listed and not left
    assert contents(tmp_path / "out") == contents(tmp_path / "whole") and not folder.exists()


@pytest.fixture
def unfinished(tmp_path, corpus, monkeypatch, settings):
    """A preparation that was ended before its shards; the command goes on with it."""
    with monkeypatch.context() as patch:
        patch.setattr(text, "write_manifests", lambda *arguments: sys.exit("ended"))
        with pytest.raises(SystemExit):
            prepare_text(settings(corpus), tmp_path / "out", workers=1)
    return tmp_path / "out"


def test_what_somebody_keeps_in_an_unfinished_preparation_stays(unfinished, corpus, settings):
    mine = ["train/notes.txt", "tokenizer/notes.md", ".blocks/notes", ".mine.tmp", "validation/shard-1.txt"]
    for name in mine:
        (unfinished / name).parent.mkdir(exist_ok=True)
        (unfinished / name).write_text("mine")
    (unfinished / "train" / "shard-00000.parquet").write_text("half")
    prepare_text(settings(corpus), unfinished, workers=1)
    assert [(unfinished / name).read_text() for name in mine] == ["mine"] * 5
    assert [path.name for path in (unfinished / ".blocks").iterdir()] == ["notes"]
    assert Manifest.load(unfinished / "train").samples > 0


@pytest.mark.parametrize("name", ["train", "tokenizer", ".blocks"])
def test_a_file_or_a_link_in_the_place_of_its_folders_is_refused(unfinished, corpus, tmp_path, name, settings):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "shard-00000.parquet").write_text("mine")
    if (unfinished / name).exists():
        (unfinished / name).rename(tmp_path / "aside")
    for make in ((unfinished / name).touch, lambda: (unfinished / name).symlink_to(tmp_path / "elsewhere")):
        make()
        with pytest.raises(UserError, match=rf"out/{name} is a link or a file, where longmix prepare makes a folder"):
            prepare_text(settings(corpus), unfinished, workers=1)
        (unfinished / name).unlink()
    assert (tmp_path / "elsewhere" / "shard-00000.parquet").read_text() == "mine"

"""longmix prepare text --share I/N: the bytes of one host, for any number of shares; how they wait, and what fails."""

import functools
import gzip
import json
import os
import random
import re
import shutil
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import Unfinished, UserError
from longmix.data_prep.text import blocks, manifests, shares
from longmix.data_prep.text.documents import parse_rule
from longmix.data_prep.text.first_look import Tally, take_first_look
from longmix.data_prep.text.prepare import prepare_text
from longmix.data_prep.text.reading import Document, Reader
from longmix.data_prep.text.share_counts import Counted, add_up, write_sample
from longmix.data_prep.text.shares import Share
from longmix.data_prep.text.sharing import prepare_share
from longmix.data_prep.text.sources import find_sources
from longmix.data_prep.text.state import TextSettings
from longmix.trainer.processes.ending import exit_code


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, make_documents):
    """Files of several kinds, and held-out texts, documents and passages of which stand in them."""
    make_documents = functools.partial(make_documents, words=200)
    folder = tmp_path_factory.mktemp("corpus")
    held_out, texts = make_documents(40, seed=9, longest=80), folder / "texts"
    texts.mkdir()
    (folder / "held-out.txt").write_text("\n\n".join(held_out[:30]))
    (folder / "last.txt").write_text("\n\n".join(held_out[30:]))
    (texts / "a.txt").write_text("\n\n".join([*make_documents(150, 0), held_out[2], held_out[35] + " gulho"]))
    lines = [json.dumps({"text": text}) for text in [*make_documents(60, 1), "", held_out[33]]]
    (texts / "b.jsonl").write_text("\n".join(lines))
    (texts / "c.csv").write_text("text,id\n" + "\n".join(f'"{text}",1' for text in make_documents(40, 2)))
    pq.write_table(pa.table({"text": [*make_documents(90, 3), *make_documents(9, 1), " "]}), texts / "d.parquet")
    (texts / "e.txt").write_text("\n\n")
    (folder / "more.txt").write_text("\n\n".join(make_documents(70, 4)))
    return folder


@pytest.fixture
def small(monkeypatch):
    """Many blocks and shards; shares that wait for nobody, so that one process can take turns at them."""
    small_again(monkeypatch)


def small_again(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_DOCUMENTS", 20)
    monkeypatch.setattr(manifests, "SAMPLES_PER_SHARD", 30)
    monkeypatch.setattr(shares, "QUIET_SECONDS", 0.0)


def settings_of(corpus, **options):
    sources = (str(corpus / "texts"), str(corpus / "more.txt"))
    return TextSettings(**{"source": sources, "vocab_size": 60, "sequence_length": 32, **options})


def held_out(corpus):
    return {"validation": (str(corpus / "held-out.txt"),), "test": (str(corpus / "last.txt"),)}


def take_turns(settings, output, count, seed=0):
    """All shares, one after the other in random order, until each is done; what share 0 returned."""
    generator, prepared = random.Random(seed), None
    left = [Share(index, count) for index in range(count)]
    while left:
        share = generator.choice(left)
        try:
            result = prepare_share(settings, output, share, workers=1)
        except Unfinished:
            continue
        left.remove(share)
        prepared = result or prepared
    return prepared


def test_shares_make_what_one_host_makes_to_the_byte(corpus, contents, tmp_path, small):
    prepared = prepare_text(settings_of(corpus), tmp_path / "whole", workers=1)
    assert take_turns(settings_of(corpus), tmp_path / "out", 3) == prepared
    assert len(prepared.train.shards) > 6
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not (tmp_path / "out" / ".shares").exists()


def test_compressed_texts_make_what_the_unpacked_ones_make_to_the_byte(corpus, contents, tmp_path, small, monkeypatch):
    """Held-out texts as well, on one host and in shares; prepare.json alone knows the files."""
    plain, compressed = tmp_path / "plain", tmp_path / "compressed"
    for folder in (plain, compressed):
        shutil.copytree(corpus, folder)
    forms = {"a.txt": (".gz", gzip.compress), "b.jsonl": (".zst", zstd), "c.csv": (".gz", gzip.compress)}
    for name, (ending, compress) in forms.items():
        path = compressed / "texts" / name
        path.with_name(name + ending).write_bytes(compress(path.read_bytes()))
        path.unlink()
    for name in ("held-out.txt", "last.txt"):
        (compressed / name).write_bytes(zstd((compressed / name).read_bytes()))
    settings = TextSettings(
        source=("texts",), validation=("held-out.txt",), test=("last.txt",), vocab_size=60, sequence_length=32
    )
    made = []
    for folder in (plain, compressed):
        monkeypatch.chdir(folder)
        prepare_text(settings, "out", workers=1)
        made.append({name: content for name, content in contents(folder / "out").items() if name != "prepare.json"})
    assert made[0] == made[1] and sum("shard" in name for name in made[0]) > 6
    take_turns(settings, tmp_path / "compressed" / "shares", 3)
    assert contents(compressed / "shares") == contents(compressed / "out")
    assert prepare_text(settings, "out", workers=1).was_there


def zstd(content):
    return pa.Codec("zstd").compress(content, asbytes=True)


@pytest.mark.full
@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"validation": "held-out.txt", "test": "last.txt"},
        {"test": "last.txt", "packing": "one-per-row"},
        {"documents": "heading:^gulho", "vocab_size": None},
        {"source": "more.txt"},
    ],
    ids=["split by document", "held-out texts", "test alone", "headings", "one file"],
)
def test_any_number_of_shares_makes_the_same(corpus, contents, tmp_path, small, options, count):
    """Also more shares than files and blocks, of which some have nothing to do."""
    named = {
        name: (str(corpus / value),) if name in ("source", "validation", "test") else value
        for name, value in options.items()
    }
    settings = settings_of(corpus, **named)
    prepared = prepare_text(settings, tmp_path / "whole", workers=1)
    assert take_turns(settings, tmp_path / "out", count, seed=count) == prepared
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    if settings.test:
        assert sum(prepared.train.report["held_out"]["left_out"].values()) > 0
        assert prepared.train.report["held_out"]["overlapping"]["some"] > 0


@pytest.mark.full
def test_an_existing_tokenizer_is_taken(corpus, contents, tmp_path, small):
    prepare_text(settings_of(corpus), tmp_path / "first", workers=1)
    settings = settings_of(corpus, tokenizer=str(tmp_path / "first" / "tokenizer"), vocab_size=None)
    prepare_text(settings, tmp_path / "whole", workers=1)
    take_turns(settings, tmp_path / "out", 2)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_looks_at_parts_add_up(tmp_path):
    """Threshold and sample, also where documents repeat and fill the tallies of the parts."""
    generator = random.Random(1)
    texts = [f"document {generator.randrange(3000)} " + "x" * generator.randrange(2000) for _ in range(6000)]
    texts += texts[:2000]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    reader = Reader(find_sources([str(tmp_path / "corpus.txt")]), parse_rule(None))
    documents: list[Document] = list(reader)
    look = take_first_look(reader.sources, reader.rule, True, lambda size: None, sample_characters=50_000)
    tallies = [Tally(True, 50_000) for _ in range(4)]
    kept = [[] for _ in tallies]
    for document in documents:
        part = generator.randrange(4)
        tallies[part].add(document)
        if tallies[part].may_be_validation(document.digest):
            kept[part].append(document.digest)
    counted, paths = [], []
    for index, tally in enumerate(tallies):
        lowest = [[-negative, size] for negative, size in tally.lowest]
        counted.append(Counted([], tally.highest, tally.bytes, lowest, []))
        paths.append(tmp_path / str(index))
        write_sample(paths[-1], tally.sample)
    whole = Tally(True, 50_000)
    for document in documents:
        whole.add(document)
    total = add_up(counted, paths, True, sample_characters=50_000)
    assert (total.highest, total.bytes) == (whole.highest, whole.bytes)
    assert sorted(total.lowest) == sorted(whole.lowest) and sorted(total.sample) == sorted(whole.sample)
    pairs = zip(kept, tallies, strict=True)
    found = [digest for part, tally in pairs for digest in part if tally.may_be_validation(digest)]
    expected = sum(document.digest < look.threshold for document in documents)
    assert 0 < expected == sum(digest < look.threshold for digest in found)
    assert len(found) < len(documents) / 2


# -----------------------------------------------------------------------------
# Waiting, and mistakes.


def test_a_share_waits_for_others_and_ends_with_75_if_nothing_is_heard_of_them(corpus, tmp_path, small, capsys):
    output = tmp_path / "out"
    assert exit_code(lambda: prepare_share(settings_of(corpus), output, Share(1, 3), workers=1)) == 75
    error = capsys.readouterr().err
    assert "--share 1/3 waits for share 0/3 to have made the plan" in error and error.count("\n") == 1
    with pytest.raises(Unfinished, match="--share 0/3 waits for share 2/3 to have counted"):
        prepare_share(settings_of(corpus), output, Share(0, 3), workers=1)


def test_a_share_that_shows_signs_of_life_is_waited_for(corpus, tmp_path, small, monkeypatch):
    """By this share's own clock: the times of a file only have to change."""
    alive, told, now = tmp_path / "out" / ".shares" / "00000" / "alive", [], [0.0]

    def sleep(seconds):
        now[0] += 400
        assert now[0] < 10_000, "it waits without end"
        if now[0] <= 1200:
            os.utime(alive, (10_000 - now[0],) * 2)

    monkeypatch.setattr(shares, "QUIET_SECONDS", 600.0)
    monkeypatch.setattr(shares, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    alive.parent.mkdir(parents=True)
    alive.touch()
    with pytest.raises(Unfinished, match="share 1/2 waits for share 0/2 to have made the plan"):
        prepare_share(settings_of(corpus), tmp_path / "out", Share(1, 2), workers=1, notify=told.append)
    assert now == [2000], "600 seconds after the last sign, which was at 1200"
    assert told.count("waiting for share 0/2 to have made the plan") == 1


@pytest.mark.full
def test_a_failure_is_told_to_all_shares_and_forgotten_when_they_start_again(
    corpus, contents, tmp_path, small, monkeypatch
):
    folder = tmp_path / "texts"
    shutil.copytree(corpus / "texts", folder)
    damaged, settings = folder / "b.jsonl", settings_of(corpus, source=(str(folder),))
    prepare_text(settings, tmp_path / "whole", workers=1)
    whole = damaged.read_bytes()
    damaged.write_bytes(b"[" + whole[1:])
    output = tmp_path / "out"
    broken = next(index for index in range(2) if _fails(settings, output, Share(index, 2)))
    other = Share(1 - broken, 2)
    # Of what failed before it began a share says nothing: all are started again.
    with pytest.raises(Unfinished):
        prepare_share(settings, output, other, workers=1)
    monkeypatch.setattr(shares, "QUIET_SECONDS", 3600.0)
    now = iter([0.0] * 20 + [7200.0] * 20)
    fails_meanwhile = SimpleNamespace(
        monotonic=lambda: next(now), sleep=lambda seconds: _fails(settings, output, Share(broken, 2))
    )
    monkeypatch.setattr(shares, "time", fails_meanwhile)
    with pytest.raises(UserError, match=rf"share {broken}/2 has failed \(.*b.jsonl, line 1: not JSON.*start all"):
        prepare_share(settings, output, other, workers=1)
    noted = json.loads((output / ".shares" / f"{other.index:05d}" / "failed.json").read_text())
    assert noted["share"] == f"{broken}/2", "who waits for this one hears of the first"
    monkeypatch.undo()
    damaged.write_bytes(whole)
    small_again(monkeypatch)
    take_turns(settings, output, 2)
    assert contents(output) == contents(tmp_path / "whole")


def _fails(settings, output, share):
    try:
        prepare_share(settings, output, share, workers=1)
    except Unfinished:
        return False
    except UserError:
        return True


def test_shares_must_agree(corpus, tmp_path, small):
    folder, output = tmp_path / "texts", tmp_path / "out"
    shutil.copytree(corpus / "texts", folder)
    settings = settings_of(corpus, source=(str(folder),))
    with pytest.raises(Unfinished):
        prepare_share(settings, output, Share(0, 3), workers=1)

    def refused(count=3, **options):
        with pytest.raises(UserError) as caught:
            prepare_share(settings_of(corpus, source=(str(folder),), **options), output, Share(1, count), workers=1)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert f"{output} was begun with 3 shares: give --share I/3, or move" in refused(count=4)
    assert "--vocab-size is 70, of another share 60" in refused(vocab_size=70)
    (folder / "a.txt").write_text((folder / "a.txt").read_text() + " more")
    assert re.search(r"a\.txt.* has \d+ bytes, another share found \d+: give all shares the same", refused())
    (folder / "f.txt").write_text("new")
    (folder / "a.txt").write_bytes((corpus / "texts" / "a.txt").read_bytes())
    assert "the sources have 6 files, another share found 5" in refused()
    (folder / "f.txt").unlink()
    with pytest.raises(UserError, match="is being prepared in shares: give --share I/N"):
        prepare_text(settings, output, workers=1)


def test_of_two_that_begin_at_once_one_is_first(corpus, tmp_path, small, monkeypatch):
    with pytest.raises(Unfinished):
        prepare_share(settings_of(corpus), tmp_path / "out", Share(0, 2), workers=1)
    # As if it had looked a moment before.
    monkeypatch.setattr(shares.os.path, "lexists", lambda path: False)
    with pytest.raises(UserError, match="was begun with 2 shares"):
        prepare_share(settings_of(corpus), tmp_path / "out", Share(1, 3), workers=1)
    assert [path.name for path in (tmp_path / "out" / ".shares").iterdir() if path.is_file()] == ["order.json"]


def test_a_file_that_changes_between_the_stages_is_noticed(corpus, tmp_path, small):
    """Of the same size: its contents tell."""
    folder, output = tmp_path / "texts", tmp_path / "out"
    shutil.copytree(corpus, folder)
    settings = settings_of(folder, **held_out(folder))
    for share in (Share(1, 2), Share(0, 2)):
        with pytest.raises(Unfinished):
            prepare_share(settings, output, share, workers=1)
    for path in (folder / "more.txt", folder / "last.txt"):
        text = path.read_text()
        path.write_text(("x" if text[0] != "x" else "y") + text[1:])
        with pytest.raises(UserError, match=rf"{path.name} has changed since it was counted: move its folder away"):
            prepare_share(settings, output, Share(1, 2), workers=1)
        path.write_text(text)


def test_held_out_text_that_changes_while_shares_count_is_noticed(corpus, tmp_path, small):
    folder, output = tmp_path / "texts", tmp_path / "out"
    shutil.copytree(corpus, folder)
    settings = settings_of(folder, **held_out(folder))
    with pytest.raises(Unfinished):
        prepare_share(settings, output, Share(1, 2), workers=1)
    text = (folder / "last.txt").read_text()
    (folder / "last.txt").write_text("y" + text[1:])
    with pytest.raises(UserError, match="--validation or --test has changed while the shares counted"):
        prepare_share(settings, output, Share(0, 2), workers=1)


def test_what_cannot_be_shared_is_refused(corpus, contents, tmp_path, small):
    for text in ("3/3", "1", "0/0", "-1/2", "0/5000", "1/2/3"):
        with pytest.raises(UserError, match=r"--share is .* but takes I/N with I from 0 to N - 1, N at most 4096"):
            Share.parse(text)
    with pytest.raises(UserError, match="--share needs files: --source hub:some/where is streamed"):
        prepare_share(settings_of(corpus, source=("hub:some/where",)), tmp_path / "hub", Share(0, 2), workers=1)
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("mine")
    with pytest.raises(UserError, match="already holds other files"):
        prepare_share(settings_of(corpus), full, Share(0, 2), workers=1)
    assert contents(full) == {"notes": b"mine"}
    with pytest.raises(UserError, match="the sources hold one document"):
        (tmp_path / "one.txt").write_text("bafin code")
        take_turns(settings_of(corpus, source=(str(tmp_path / "one.txt"),)), tmp_path / "one", 2)


@pytest.mark.full
def test_a_finished_or_begun_preparation_is_not_done_again(corpus, contents, tmp_path, small, monkeypatch):
    prepare_text(settings_of(corpus), tmp_path / "out", workers=1)
    before = contents(tmp_path / "out")
    assert prepare_share(settings_of(corpus), tmp_path / "out", Share(1, 2), workers=1) is None
    assert prepare_share(settings_of(corpus), tmp_path / "out", Share(0, 2), workers=1).was_there
    assert contents(tmp_path / "out") == before
    with pytest.raises(UserError, match="--vocab-size was 60, now 70"):
        prepare_share(settings_of(corpus, vocab_size=70), tmp_path / "out", Share(0, 2), workers=1)

    def interrupted(path, digest):
        raise KeyboardInterrupt

    monkeypatch.setattr(blocks, "pack_block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_text(settings_of(corpus), tmp_path / "begun", workers=1)
    with pytest.raises(UserError, match="was begun without --share"):
        prepare_share(settings_of(corpus), tmp_path / "begun", Share(0, 2), workers=1)


def test_two_processes_cannot_do_the_same_share(corpus, tmp_path, small):
    from longmix.data_prep.files import locked

    with locked(tmp_path / "out" / ".shares" / "00001"), pytest.raises(UserError, match=r"at work in .*00001"):
        prepare_share(settings_of(corpus), tmp_path / "out", Share(1, 2), workers=1)


def test_a_finished_block_is_not_packed_again(corpus, tmp_path, small, monkeypatch):
    for share in (Share(1, 2), Share(0, 2)):
        with pytest.raises(Unfinished):
            prepare_share(settings_of(corpus), tmp_path / "out", share, workers=1)
    pack, packed = blocks.pack_block, []

    def failing(path, digest):
        if len(packed) == 3:
            raise KeyboardInterrupt
        packed.append(path)
        return pack(path, digest)

    monkeypatch.setattr(blocks, "pack_block", failing)
    with pytest.raises(KeyboardInterrupt):
        prepare_share(settings_of(corpus), tmp_path / "out", Share(1, 2), workers=1)
    first = list(packed)
    packed[:0] = [None] * 3  # it fails no more
    monkeypatch.setattr(blocks, "pack_block", lambda path, digest: packed.append(path) or pack(path, digest))
    prepare_share(settings_of(corpus), tmp_path / "out", Share(1, 2), workers=1)
    done = [path for path in packed if path is not None]
    assert len(first) == 3 and len(done) == len(set(done)) > 4


def test_what_killed_shares_left_goes_with_the_rest(corpus, contents, tmp_path, small):
    """Their locks, too: of a share that was killed when its part was done, and of share 0 behind the manifests."""
    with pytest.raises(Unfinished):
        prepare_share(settings_of(corpus), tmp_path / "out", Share(1, 2), workers=1)
    (tmp_path / "out" / ".shares" / "00001" / ".lock").touch()
    (tmp_path / "out" / "train").mkdir()
    (tmp_path / "out" / "train" / ".shard-00000.parquet.4711.tmp").write_text("half a shard")
    take_turns(settings_of(corpus), tmp_path / "out", 2)
    assert not [name for name in contents(tmp_path / "out") if name.endswith(".tmp")]
    assert not (tmp_path / "out" / ".shares").exists()
    (tmp_path / "out" / ".shares" / "00000").mkdir(parents=True)
    (tmp_path / "out" / ".shares" / "00000" / ".lock").touch()
    take_turns(settings_of(corpus), tmp_path / "out", 2)
    assert not (tmp_path / "out" / ".shares").exists()

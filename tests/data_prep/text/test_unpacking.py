"""Compressed text: the same units as of the unpacked file, in pieces; what is damaged is told with the file's name."""

import bz2
import gzip
import json
import lzma
import os
import tracemalloc

import pyarrow as pa
import pytest

from longmix.data_prep.errors import MachineFault, UserError
from longmix.data_prep.text import parts, unpacking
from longmix.data_prep.text.sources import find_sources


def zstd(content):
    return pa.Codec("zstd").compress(content, asbytes=True)


COMPRESS = {".gz": gzip.compress, ".zst": zstd, ".bz2": bz2.compress, ".xz": lzma.compress}
TEXT = "Größe\r\nzwei\n\n" + "a longer line " * 40_000 + "\nlast"
KINDS = {
    "a.txt": TEXT,
    "a.jsonl": "\n".join(json.dumps({"text": f"record {number}\nof two lines"}) for number in range(5000)),
    "a.csv": 'id,text\n1,"quoted, ""twice"""\n2,last\n',
    "a.tsv": "id\ttext\n1\tone\n",
    "a": "\n".join(json.dumps({"text": f"record {number}"}) for number in range(9)),
    "b": TEXT,
}


def part_of(path, **options):
    ((part,),) = [source.parts for source in find_sources([str(path)], **options)]
    return part


@pytest.mark.parametrize("ending", COMPRESS)
def test_every_kind_is_read_as_its_unpacked_file(tmp_path, ending):
    for name, text in KINDS.items():
        plain, compressed = tmp_path / name, tmp_path / (name + ending)
        plain.write_bytes(text.encode())
        compressed.write_bytes(COMPRESS[ending](text.encode()))
        expected, found = part_of(plain), part_of(compressed)
        assert list(found.units()) == list(expected.units())
        for name in ("kind", "is_records", "by_content"):
            assert getattr(found, name) == getattr(expected, name)
        assert found.compressed and not expected.compressed and found.fingerprint() != expected.fingerprint()


def test_the_first_bytes_tell_and_not_the_name(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b'{"text": "a"}\n'))
    (tmp_path / "b.txt.gz").write_bytes(zstd(b"b\n"))
    (tmp_path / "c.txt.zst").write_bytes(b"c\n")
    (source,) = find_sources([str(tmp_path)])
    assert [list(part.units()) for part in source.parts] == [["a"], ["b"], ["c"]]
    assert [part.compressed for part in source.parts] == [True, True, False]
    assert list(part_of(tmp_path / "a.jsonl", file_format="text").units()) == ['{"text": "a"}']


def test_what_is_compressed_twice_is_told_so(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(zstd(b"a\n")))
    with pytest.raises(UserError, match=r"a\.txt\.gz is compressed twice: unpack it once$"):
        list(part_of(tmp_path / "a.txt.gz").units())


def test_files_of_several_streams_are_read_to_their_end(tmp_path):
    """As `cat` and tools that compress in parallel make them; pzstd begins each with a frame to be skipped."""
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00size"
    for ending, compress in COMPRESS.items():
        before = skipped if ending == ".zst" else b""
        content = b"".join(before + compress(b"one\n" * count) for count in (3, 0, 50_000))
        (tmp_path / f"a.txt{ending}").write_bytes(content)
        assert list(part_of(tmp_path / f"a.txt{ending}").units()) == ["one"] * 50_003


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_that_is_cut_short_or_damaged_is_named(tmp_path, ending):
    path = tmp_path / f"a.txt{ending}"
    lines = b"".join(b"%d %s\n" % (number, os.urandom(40).hex().encode()) for number in range(20_000))
    whole = COMPRESS[ending](lines)
    for content in (whole[: len(whole) // 2], whole[:-4], whole[: len(whole) // 2] + bytes(600)):
        path.write_bytes(content)
        message = r"a\.txt\.\w+, compressed with \w+, is damaged or cut short \(.+\): get it anew"
        with pytest.raises(UserError, match=message):
            list(part_of(path).units())
    path.write_bytes(whole[:20])
    with pytest.raises(UserError, match="is damaged or cut short"):
        find_sources([str(path)])  # at once


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_that_ends_within_its_first_bytes_is_no_text(tmp_path, ending):
    """Before they are whole they tell nothing but beside the name; a short text that is called so is one."""
    path = tmp_path / f"a.txt{ending}"
    for content in (COMPRESS[ending](b"one\n"), COMPRESS[ending](b"")):
        for length in range(1, min(12, len(content))):
            path.write_bytes(content[:length])
            message = rf"a\.txt\{ending}, compressed with \w+, is (damaged or )?cut short \(.+\): get it anew"
            with pytest.raises(UserError, match=message):
                find_sources([str(path)])
    (tmp_path / "B.txt").write_bytes(b"B")
    path.write_bytes(b"one")
    assert [list(part_of(file).units()) for file in (path, tmp_path / "B.txt")] == [["one"], ["B"]]
    path.write_bytes(b"")
    assert part_of(path).is_empty()


@pytest.mark.parametrize("ending", COMPRESS)
def test_what_is_behind_the_first_stream_is_not_left_out(tmp_path, ending):
    path, whole = tmp_path / f"a.txt{ending}", COMPRESS[ending](b"one\n" * 50_000)
    for content in (whole + b"?" + whole[1:], whole + b"text\n" * 9, whole + whole[:-3]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.txt\.\w+, compressed with \w+, is damaged or cut short \(.+\)"):
            list(part_of(path).units())


def test_xz_may_be_padded(tmp_path):
    stream = lzma.compress(b"one\n")
    (tmp_path / "a.txt.xz").write_bytes(stream + bytes(512) + stream + bytes(1 << 20))
    assert list(part_of(tmp_path / "a.txt.xz").units()) == ["one", "one"]


def test_damage_is_told_before_what_it_makes_of_the_text(tmp_path):
    path = tmp_path / "a.txt.gz"
    content = bytearray(gzip.compress(b"one\n" * 5000 + "größer\n".encode() + b"one\n" * 500_000, 0))
    content[content.index(b"\xc3")] ^= 0x80  # a letter is no UTF-8 now, and the checksum, far behind it, wrong
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"compressed with gzip, is damaged or cut short \(CRC check failed"):
        list(part_of(path).units())


def test_a_compressed_file_of_no_byte_is_passed_over_as_an_empty_one(tmp_path):
    for name in ("a.csv", "b.jsonl", "c.txt", "d.tsv"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b""))
    (source,) = find_sources([str(tmp_path)])
    assert [(list(part.units()), part.is_empty()) for part in source.parts] == [([], True)] * 4


def test_faults_of_the_machine_are_not_taken_for_damage(tmp_path, monkeypatch):
    class Failing:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def peek(self, size):
            return self.file.peek(size)

        def __getattr__(self, name):
            return getattr(self.file, name)

        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    opened = unpacking.open_input
    monkeypatch.setattr(unpacking, "open_input", lambda path: Failing(opened(path)))
    for ending, compress in COMPRESS.items():
        (tmp_path / f"a.txt{ending}").write_bytes(compress(b"text" * 100))
        with pytest.raises(MachineFault, match=rf"a\.txt\{ending} cannot be read: Input/output error"):
            find_sources([str(tmp_path / f"a.txt{ending}")])


def test_what_unpacks_to_a_line_without_end_is_refused_in_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "LONGEST_LINE", 1 << 20)
    for ending in (".gz", ".zst"):
        path = tmp_path / f"a.txt{ending}"
        path.write_bytes(COMPRESS[ending](b"fine\n" + b"x" * (1 << 26)))
        tracemalloc.start()
        with pytest.raises(UserError, match=r"a\.txt\.\w+, line 2 is longer than 1,048,576 bytes"):
            list(part_of(path).units())
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
        tracemalloc.stop()


def test_mistakes_in_compressed_text_are_told_by_line(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": 5}\n'))
    with pytest.raises(UserError, match=r"a\.jsonl\.gz, line 2: 'text' holds int"):
        list(part_of(tmp_path / "a.jsonl.gz").units())
    (tmp_path / "a.txt.zst").write_bytes(zstd(b"fine\n" + b"x" * 5000 + b"\xff\n"))
    with pytest.raises(UserError, match=r"a\.txt\.zst: byte 0xff at offset 5005 \(line 2\) is not UTF-8"):
        list(part_of(tmp_path / "a.txt.zst").units())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("z.parquet.gz", b"PAR1 PAR1", "is Parquet compressed with gzip: unpack it first"),
        ("z.gz", b"PAR1\n", "is Parquet compressed with gzip: unpack it first"),
        ("z.txt.gz", b"PK\x03\x04", "is a ZIP archive: unpack it first"),
        ("z.txt.gz", b"caf\xe9 au lait", r"z\.txt\.gz: byte 0xe9 at offset 3 \(line 1\) is not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_told_at_once(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match=message):
        find_sources([str(tmp_path)])

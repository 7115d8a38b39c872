"""How sound input becomes broken or hostile: bytes, trees of JSON and YAML, what stands in a file's place.

Every function takes the random numbers that decide, and returns what it did in words beside what it made.
"""

import copy
import io
import json
import os
import pickle
import random
import shutil
import socket
import struct
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    0.5,
    -0.0,
    1e-320,
    1e308,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
)
NUMBERS += (float("nan"), float("inf"), float("-inf"), 10**30, 10**400)
TEXTS = (
    *(
        "",
        " ",
        "null",
        "auto",
        "1e3",
        "=1+1",
        "-",
        "~",
        "*a",
        "&a",
        "{0}",
        "%s%n",
        "a\tb",
        "a\nb",
        "a\rb",
        "\0",
        "\ufeff",
    ),
    *("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\u202ereversed", "\u2028", "\ud800", "<script>alert(1)</script>"),
    *("'\"><img src=x onerror=alert(1)>", "=cmd|'/C calc'!A0", "@SUM(1)", "+1", "| a | b |", "](javascript:alert(1))"),
    *(
        "x\nlongmix: error: forged",
        "name" * 80,
        "../canaries",
        "../canaries/precious.txt",
        "org/repo",
        "nobody/nothing",
    ),
    *("hub:nobody/nothing", "file:///dev/zero", "memory://x", "/dev/zero", "/dev/stdin", "C:\\x", "a::b", "."),
)
# What a pickle, a YAML tag or a module from outside would leave behind, had it been executed.
EXECUTED = "EXECUTED"


class Bomb:
    """Pickled: makes the file EXECUTED among the canaries once it is unpickled."""

    def __init__(self, canaries: Path):
        self.path = str(canaries / EXECUTED)

    def __reduce__(self):
        return open, (self.path, "w")


def code(canaries: Path) -> str:
    """A module that does the same when it is imported."""
    return f"open({str(canaries / EXECUTED)!r}, 'w')\n"


# -----------------------------------------------------------------------------
# Bytes.


def bytes_changed(draw: random.Random, content: bytes, canaries: Path) -> tuple[bytes, str]:
    """Other bytes in the place of a file's content."""
    where = int(draw.random() * len(content))
    kind = draw.choice(
        ("flip", "flip", "flips", "cut", "cut", "empty", "insert", "zeros", "twice", "longer", "pickle", "zip", "text")
    )
    if kind == "flip" and content:
        bit = 1 << draw.randrange(8)
        return content[:where] + bytes([content[where] ^ bit]) + content[
            where + 1 :
        ], f"bit {bit} of byte {where} flipped"
    if kind == "flips":
        changed = bytearray(content)
        for _ in range(20 if content else 0):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed), "20 bytes changed"
    if kind == "cut":
        return content[:where], f"cut to {where} bytes"
    if kind == "insert":
        piece = draw.choice(
            (b"\0", b"\xff\xfe", b"\x1b[2J", b'"', b"{", b"\n", b"\r", "\u2028".encode(), b"\xed\xa0\x80", b"\t" * 9)
        )
        return content[:where] + piece + content[where:], f"{piece!r} inserted at {where}"
    if kind == "zeros":
        return content[:where] + bytes(min(64, len(content) - where)) + content[where + 64 :], f"zeros from {where}"
    if kind == "twice":
        return content * 2, "twice"
    if kind == "longer":
        return content + draw.randbytes(50), "longer by 50 bytes"
    if kind == "pickle":
        return pickle.dumps(Bomb(canaries)), "a pickle that opens a file"
    if kind == "zip":
        return _zipped(canaries), "torch's archive around such a pickle"
    if kind == "text":
        return draw.choice(TEXTS).encode(errors="surrogatepass"), "a short text"
    return b"", "empty"


def _zipped(canaries: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(canaries)))
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


# -----------------------------------------------------------------------------
# Trees: what JSON and YAML hold.


def places_in(tree: Any, prefix: tuple = ()) -> Iterator[tuple]:
    """Every place in nested maps and lists; of long lists the first and the last."""
    yield prefix
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places_in(value, (*prefix, key))
    elif isinstance(tree, list):
        for index in sorted({0, len(tree) - 1} if tree else ()):
            yield from places_in(tree[index], (*prefix, index))


def nested(depth: int, with_maps: bool) -> Any:
    tree: Any = 1
    for _ in range(depth):
        tree = {"a": tree} if with_maps else [tree]
    return tree


def value_drawn(draw: random.Random, old: Any = None) -> Any:
    """Any value: of another type, an extreme number, a text that somebody would obey."""
    # Of the same type half of the time: another one is refused before much is done with it.
    if isinstance(old, (int, float)) and not isinstance(old, bool) and abs(old) < 1e300 and draw.random() < 0.5:
        return draw.choice((*NUMBERS, old + 1, old - 1, -old, old * 2, old / 2))
    if isinstance(old, str) and draw.random() < 0.5:
        return draw.choice(
            (*TEXTS, old + "x", old[:-1], old.upper(), f" {old}", f"{old}\x1b[0m", f"<b>{old}</b>", f"{old}\n")
        )
    kind = draw.randrange(10)
    if kind < 3:
        return draw.choice(NUMBERS)
    if kind < 6:
        return draw.choice(TEXTS)
    if kind == 6:
        return draw.choice((str(old), [old], {"a": old}))
    if kind == 7:
        return nested(draw.choice((3, 40, 300)), draw.random() < 0.5)
    return copy.deepcopy(draw.choice((None, True, False, [], {}, [None], [old], {"a": old}, [1, "a", None], {"": 0})))


def tree_changed(draw: random.Random, tree: Any, places: list[tuple] | None = None) -> tuple[Any, str]:
    """A copy of `tree` with one to three places changed (some of `places`, or any)."""
    told = []
    tree = copy.deepcopy(tree)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        place = draw.choice(places or list(places_in(tree)))
        tree, what = _changed_at(draw, tree, place)
        told.append(what)
    return tree, "; ".join(told)


def _changed_at(draw: random.Random, tree: Any, place: tuple) -> tuple[Any, str]:
    name = ".".join(map(str, place)) or "the whole"
    if not place:
        value = value_drawn(draw, tree)
        return value, f"the whole is {_short(value)}"
    inner = tree
    try:
        for key in place[:-1]:
            inner = inner[key]
        old = inner[place[-1]]
    except (LookupError, TypeError):
        return tree, f"{name} has gone"
    kind = draw.randrange(8)
    if kind == 0:
        del inner[place[-1]]
        return tree, f"{name} left out"
    if kind == 1 and isinstance(inner, dict):
        key = draw.choice(TEXTS)
        inner[key] = inner.pop(place[-1])
        return tree, f"{name} is called {_short(key)}"
    if kind == 2 and isinstance(inner, dict):
        key = draw.choice(("unknown", "__class__", "type", *TEXTS))
        inner[key] = value_drawn(draw)
        return tree, f"{_short(key)} beside {name}"
    inner[place[-1]] = value_drawn(draw, old)
    return tree, f"{name} is {_short(inner[place[-1]])}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__}"
    return ascii(text if len(text) < 60 else f"{text[:50]}...({len(text)})")[1:-1]


def json_text(draw: random.Random, tree: Any) -> tuple[bytes, str]:
    """`tree` as JSON, at times as JSON that few readers expect."""
    try:
        text = json.dumps(tree, indent=draw.choice((None, 2)), ensure_ascii=draw.random() < 0.5)
    except (ValueError, RecursionError, TypeError):
        text = "{"
    kind = draw.randrange(14)
    if kind == 0:
        return text.encode("utf-16"), "UTF-16"
    if kind == 1:
        return b"\xef\xbb\xbf" + text.encode(errors="surrogatepass"), "with a byte order mark"
    if kind == 2:
        depth = draw.choice((500, 5_000, 200_000))
        return (b'{"a":' if draw.random() < 0.5 else b"[") * depth, f"nested {depth} deep"
    if kind == 3 and text.startswith("{"):
        return (text[:-1] + f',"{next(iter(tree), "a")}": 1e400}}').encode(
            errors="surrogatepass"
        ), "the first key twice"
    if kind == 4:
        return text.replace("1", "1" * 5000, 1).encode(errors="surrogatepass"), "a number of 5,000 digits"
    return text.encode(errors="surrogatepass"), "as JSON"


def json_file_changed(draw: random.Random, path: Path, places: list[tuple] | None = None) -> str:
    """Change a JSON file in place."""
    tree, what = tree_changed(draw, json.loads(path.read_bytes()), places)
    content, how = json_text(draw, tree)
    path.write_bytes(content)
    return f"{path.name}: {what}, {how}"


# -----------------------------------------------------------------------------
# Files: their content, and what is no file at all.


def file_changed(draw: random.Random, path: Path, canaries: Path) -> str:
    """Change a file: its bytes, its JSON where it is JSON, or what stands in its place."""
    kind = draw.random()
    if kind < 0.15:
        return something_else(draw, path, canaries)
    if path.suffix in (".json", ".jsonl") and kind < 0.75:
        if path.suffix == ".json":
            return json_file_changed(draw, path)
        return lines_changed(draw, path)
    content, what = bytes_changed(draw, path.read_bytes(), canaries)
    path.write_bytes(content)
    return f"{path.name}: {what}"


def lines_changed(draw: random.Random, path: Path) -> str:
    """Change one line of a file of JSON lines."""
    lines = path.read_bytes().split(b"\n")
    number = draw.randrange(max(1, len(lines) - 1))
    try:
        tree, what = tree_changed(draw, json.loads(lines[number]))
    except ValueError:
        tree, what = None, "null"
    lines[number], how = json_text(draw, tree)
    path.write_bytes(b"\n".join(lines))
    return f"{path.name}, line {number + 1}: {what}, {how}"


def something_else(draw: random.Random, path: Path, canaries: Path) -> str:
    """Put what is no ordinary file in the place of the file, or folder, `path`."""
    kinds = [
        "missing",
        "folder",
        "pipe",
        "link to a canary",
        "dangling link",
        "circle",
        "device",
        "socket",
        "sparse",
        "full",
    ]
    kind = draw.choice(kinds)
    remove(path)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a canary":
        path.symlink_to(draw.choice((canaries / "precious.txt", canaries / "folder", canaries / "config.json")))
    elif kind == "dangling link":
        path.symlink_to(canaries / "not-there")
    elif kind == "circle":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "full":
        path.symlink_to("/dev/full")
    elif kind == "socket":
        # Its address must be short.
        before = os.getcwd()
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
        os.chdir(before)
    elif kind == "sparse":
        with open(path, "wb") as file:
            file.truncate(2**36)
    return f"{path.name}: {kind}"


def remove(path: Path) -> None:
    """Remove whatever stands there, if anything does; folders of any depth, for which Python's own way is too deep."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except (OSError, RecursionError):
        subprocess.run(["rm", "-rf", "--", path], check=True)


# -----------------------------------------------------------------------------
# Weights: safetensors, whose header may lie about the bytes behind it.


def safetensors_changed(draw: random.Random, path: Path) -> str:
    """Let the header of a safetensors file say something else."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    name = draw.choice(names)
    kind = draw.choice(
        ("length", "offsets", "shape", "type", "name", "tree", "missing", "metadata", "nan", "huge", "swap")
    )
    if kind == "length":
        value = draw.choice((0, 1, 2**31, 2**63, 2**64 - 1, length + 1, length - 1))
        path.write_bytes(struct.pack("<Q", value) + content[8:])
        return f"{path.name}: a header of {value} bytes"
    if kind == "offsets":
        header[name]["data_offsets"] = draw.choice(
            ([0, 0], [-1, 4], [0, 2**63], [8, 0], [0, len(data) + 4], ["0", "4"], [0])
        )
    elif kind == "shape":
        header[name]["shape"] = draw.choice(([2**31, 2**31], [-1], [0], [2**63], [], [1.5], ["a"], [[1]], [1] * 100))
    elif kind == "type":
        header[name]["dtype"] = draw.choice(("F64", "F16", "BOOL", "I64", "U8", "F8_E4M3", "x", None, 3))
    elif kind == "name":
        header[draw.choice(TEXTS)] = header.pop(name)
    elif kind == "tree":
        header, _ = tree_changed(draw, header)
    elif kind == "missing":
        del header[name]
    elif kind == "metadata":
        header["__metadata__"] = draw.choice(
            ({"format": "tf"}, {"format": 3}, [], {"format": "pt", "x": "\x1b[2J"}, {})
        )
    elif kind == "nan":
        data = bytes.fromhex("0000c07f") * (len(data) // 4)
    elif kind == "huge":
        header[name] = {"dtype": "F32", "shape": [2**16, 2**16], "data_offsets": [0, 2**34]}
    elif kind == "swap":
        other = draw.choice(names)
        header[name], header[other] = header[other], header[name]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return f"{path.name}: {kind} of {name!a}"

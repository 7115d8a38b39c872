"""A hub data set over HTTP, from a server that speaks as much of the hub's protocol as streaming needs."""

import http.server
import io
import json
import os
import re
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.manifest import Manifest

COMMIT = "a" * 40
WORDS = ["river", "stone", "walks", "under", "evening", "light", "mountain", "over", "naive", "forty", "see", "note"]


def make_parquet(rows, ballast):
    """A file of two row groups, with a column of noise that nobody asks for."""
    texts = [
        " ".join(WORDS[(index * step) % len(WORDS)] for step in range(1, 30)) + f" {index}" for index in range(rows)
    ]
    noise = [os.urandom(ballast // rows) for _ in range(rows)]
    stream = io.BytesIO()
    pq.write_table(pa.table({"body": texts, "noise": noise}), stream, row_group_size=rows // 2, compression="none")
    return stream.getvalue()


@pytest.fixture(scope="module")
def endpoint():
    files = {
        "README.md": b"---\nlicense: mit\n---\n",
        "data/train-00000-of-00001.parquet": make_parquet(400, 40_000_000),
        "data/test-00000-of-00001.parquet": make_parquet(40, 4_000_000),
    }
    served = dict.fromkeys(files, 0)

    class Hub(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def answer(self, code, body=b"", length=None, **headers):
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def answer_json(self, value):
            self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

        def do_GET(self):
            path = self.path.split("?")[0]
            if re.fullmatch(r"/api/datasets/owner/set(/revision/[^/]+)?", path):
                siblings = [{"rfilename": name} for name in files]
                self.answer_json({"_id": "1", "id": "owner/set", "sha": COMMIT, "private": False, "tags": [],
                                  "gated": False, "disabled": False, "downloads": 0, "likes": 0,
                                  "siblings": siblings})  # fmt: skip
            elif match := re.fullmatch(r"/api/datasets/owner/set/tree/[^/]+/?(.*)", path):
                self.answer_json(self.tree(match[1] + "/" if match[1] else ""))
            elif match := re.fullmatch(r"/datasets/owner/set/resolve/[^/]+/(.*)", path):
                self.resolve(match[1])
            else:
                self.answer(404, b"{}", X_Error_Code="RepoNotFound")

        do_HEAD = do_GET

        def tree(self, prefix):
            below = [name.removeprefix(prefix) for name in files if name.startswith(prefix)]
            folders = sorted({name.split("/")[0] for name in below if "/" in name})
            entries = [{"type": "directory", "path": prefix + name, "oid": "c" * 40} for name in folders]
            plain = [prefix + name for name in below if "/" not in name]
            return entries + [{"type": "file", "path": n, "size": len(files[n]), "oid": "b" * 40} for n in plain]

        def resolve(self, name):
            if name not in files:
                self.answer(404, b"{}", X_Error_Code="EntryNotFound")
                return
            data, code, headers = files[name], 200, {"X_Repo_Commit": COMMIT, "ETag": '"x"', "Accept_Ranges": "bytes"}
            if asked := self.headers.get("Range"):
                start, end = asked.removeprefix("bytes=").split("-")
                end = min(int(end or len(data) - 1), len(data) - 1)
                headers["Content_Range"] = f"bytes {start}-{end}/{len(data)}"
                data, code = data[int(start) : end + 1], 206
            if self.command == "GET":
                served[name] += len(data)
            self.answer(code, data, length=len(data), **headers)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", files, served
    server.shutdown()
    server.server_close()


SCRIPT = """
import sys
from longmix.data_prep.errors import UserError
from longmix.data_prep.text.state import TextSettings
from longmix.data_prep.text.prepare import prepare_text
if __name__ == "__main__":
    for source in sys.argv[2:]:
        try:
            settings = TextSettings(source=(source,), vocab_size=40, sequence_length=64)
            prepare_text(settings, sys.argv[1], workers=1)
        except UserError as error:
            print(f"mistake: {error}")
"""


def prepare(endpoint, folder, *sources):
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment.update(HF_ENDPOINT=endpoint, HF_HOME=str(folder / "home"), HF_HUB_OFFLINE="0")
    command = [sys.executable, "-c", SCRIPT, str(folder / "out"), *sources]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.full
def test_streamed_and_never_downloaded_whole(endpoint, tmp_path):
    address, files, served = endpoint
    assert prepare(address, tmp_path, "hub:owner/set:train:body") == []
    report = Manifest.load(tmp_path / "out" / "train").report
    assert report["sources"][0]["documents"] == 400
    assert report["sources"][0]["rules"] == ["record"]
    train, test = "data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"
    # Read twice (a first look, then for good), and still less than the file once: its other column stays there.
    assert 0 < served[train] < 0.75 * len(files[train])
    assert served[test] == 0
    on_disk = sum(path.stat().st_size for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert on_disk < 100_000


@pytest.mark.slow
def test_mistakes_are_named(endpoint, tmp_path):
    expected = {
        "hub:owner/nothing": "doesn't exist on the Hub",
        "hub:owner/set:dev:body": "Available splits: ['train', 'test']",
        "hub:owner/set": "there is no column 'text'; it has 'body', 'noise'",
        "hub:owner/set@other": "BuilderConfig 'other' not found",
    }
    lines = prepare(endpoint[0], tmp_path, *expected)
    assert len(lines) == len(expected)
    for line, message in zip(lines, expected.values(), strict=True):
        assert line.startswith("mistake: hub:owner/") and message in line
    assert not (tmp_path / "out").exists()

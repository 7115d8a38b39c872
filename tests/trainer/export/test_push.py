"""`longmix push`: a model in a repository of a hub, which stands here for the real one and speaks its protocol."""

import base64
import dataclasses
import json
import re
import shutil
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from longmix.data_prep.files import MARKER, write_json
from longmix.trainer.cli import main
from longmix.trainer.export.self_contained import HEADING
from longmix.trainer.models import hub as reachable
from longmix.trainer.models.folder import INPUTS, Inputs

STORED = Path(__file__).parents[2] / "stored" / "7efe5d5"
RUN = STORED / "runs" / "deepspeed"
CHECKPOINT = RUN / "checkpoints" / "step-00000002"
TOKEN = "hf_secret"


class Hub(BaseHTTPRequestHandler):
    """What `HfApi` asks for to make repositories and branches and to commit files, small ones and those of LFS."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer({})

    def do_GET(self):
        found = re.fullmatch(r"/api/models/(.+?)(/revision/.+)?", self.path)
        name = found and found[1]
        if name not in self.server.repositories:
            return self.answer({"error": "Repository not found"}, 404)
        return self.answer({"id": name, "private": self.server.repositories[name]["private"], "siblings": []})

    def do_PUT(self):
        data = self.rfile.read(int(self.headers["content-length"]))
        self.server.large[self.path.rpartition("/")[2]] = data
        self.answer({})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid username or password."}, 401)
        if self.server.failure:
            return self.answer({"error": "out of order"}, self.server.failure)
        path, repositories = self.path, self.server.repositories
        if path == "/api/repos/create":
            values = json.loads(body)
            name = f"{values['organization'] or 'me'}/{values['name']}"
            code = 409 if name in repositories else 200
            made = {"private": values.get("visibility") == "private", "branches": {"main": {}}}
            repositories.setdefault(name, made)
            return self.answer({"url": f"{self.server.address}/{name}"}, code)
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            objects = [
                {**entry, "actions": {"upload": {"href": f"{self.server.address}/lfs/{entry['oid']}"}}}
                for entry in json.loads(body)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": objects})
        name, verb, branch = re.fullmatch(r"/api/models/(.+)/(branch|preupload|commit)/([^/?]+)", path).groups()
        branches = repositories[name]["branches"]
        if verb == "branch":
            code = 409 if branch in branches else 200
            branches.setdefault(branch, {})
            return self.answer({}, code)
        if verb == "preupload":
            files = [
                {
                    "path": entry["path"],
                    "uploadMode": "lfs" if entry["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for entry in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                branches[branch][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                branches[branch][value["path"]] = self.server.large[value["oid"]]
        self.server.commits.append((name, branch))
        return self.answer({"commitUrl": f"{self.server.address}/{name}/commit/0", "commitOid": "0" * 40})

    def answer(self, values, code=200):
        data = json.dumps(values).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine: `repositories` {name: {"private", "branches": {branch: {path: bytes}}}}, `commits`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    server.repositories, server.large, server.commits, server.failure = {}, {}, [], None
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)  # what HF_ENDPOINT says at the start
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    reachable.why_unreachable.cache_clear()
    yield server
    reachable.why_unreachable.cache_clear()
    server.shutdown()
    server.server_close()


@pytest.fixture
def push(capsys):
    """push(model, repository, ...) -> (exit code, what it said)."""

    def run(*arguments):
        code = main(["push", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.fixture
def model(tmp_path, capsys):
    """A model folder that longmix made, with its marker."""
    assert main(["export", str(CHECKPOINT), "--output", str(tmp_path / "model")]) == 0
    capsys.readouterr()
    return tmp_path / "model"


@pytest.mark.parametrize("source", [RUN, CHECKPOINT, CHECKPOINT / "model"], ids=["run", "checkpoint", "model"])
def test_a_model_is_uploaded_as_it_is_in_one_commit(hub, push, source, contents):
    before = contents(STORED)
    code, said = push(source, "me/encoder")
    assert code == 0 and f"to {hub.address}/me/encoder" in said and TOKEN not in said
    assert "%|" not in said  # bars are for terminals: a log gets lines
    assert hub.commits == [("me/encoder", "main")]
    there = hub.repositories["me/encoder"]["branches"]["main"]
    here = {path.name: path.read_bytes() for path in (CHECKPOINT / "model").iterdir()}
    assert there == {**here, "README.md": here["README.md"].replace(b"\n# deepspeed\n", b"\n# me/encoder\n")}
    assert {"config.json", "model.safetensors", "README.md", "tokenizer_config.json"} <= set(there)
    assert contents(STORED) == before


def test_a_self_contained_export_takes_its_code_and_a_card_that_names_the_repository(hub, push, tmp_path):
    with zipfile.ZipFile(STORED / "self-contained.zip") as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "self-contained"
    assert push(folder, "encoder")[0] == 0
    there = hub.repositories["me/encoder"]["branches"]["main"]
    assert [name for name in there if name.endswith(".py")]
    assert set(there) == {path.name for path in folder.iterdir()} - {MARKER}
    assert "auto_map" in json.loads(there["config.json"])
    section = there["README.md"].decode().partition(HEADING)[2]
    assert 'from_pretrained("me/encoder", trust_remote_code=True)' in section and '"self-contained"' not in section
    card = there["README.md"].decode()
    assert card.replace('"me/encoder"', '"self-contained"').splitlines() == [
        "# me/encoder" if line.startswith("# ") else line for line in (folder / "README.md").read_text().splitlines()
    ]


def test_branches_and_private_repositories(hub, push, model):
    assert push(model, "me/encoder", "--revision", "step-2", "--private")[0] == 0
    assert push(model, "me/encoder", "--revision", "step-2")[0] == 0
    repository = hub.repositories["me/encoder"]
    assert repository["private"] and repository["branches"]["main"] == {} and repository["branches"]["step-2"]
    hub.repositories["me/open"] = {"private": False, "branches": {"main": {}}}
    code, said = push(model, "me/open", "--private")
    assert code == 2 and "me/open is there and public" in said
    assert hub.repositories["me/open"]["branches"]["main"] == {}


def test_only_files_of_a_model_are_uploaded(hub, push, model):
    (model / ".env").write_text("SECRET=1")
    (model / "notes.py").write_text("print(1)")
    (model / "optimizer.pt").write_bytes(b"pickle")
    code, said = push(model, "me/encoder")
    assert code == 0 and "not uploaded, for they are none of a model's files: .env, notes.py, optimizer.pt" in said
    assert not {".env", "notes.py", "optimizer.pt", MARKER} & set(hub.repositories["me/encoder"]["branches"]["main"])


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def without_tokenizer(folder):
    (folder / "tokenizer_config.json").unlink()


def unfinished(folder):
    (folder / MARKER).write_text(json.dumps({"kind": "unfinished folder", "files": []}))


def linked(folder):
    (folder / "token").symlink_to("/etc/hostname")


def without_configuration(folder):
    (folder / "config.json").unlink()


DAMAGES = {
    cut_short: "model.safetensors is damaged or was cut short",
    without_tokenizer: "lacks tokenizer_config.json, which longmix wrote there",
    unfinished: "holds a unfinished folder",
    linked: "holds token, which is a link",
    without_configuration: "is no model folder",
    shutil.rmtree: "is no model folder",
}


def test_what_a_model_was_trained_to_read_is_uploaded(hub, push, model):
    """Without it `longmix predict` of a copy from the hub would have to be told its columns and its length."""
    write_json(model / INPUTS, dataclasses.asdict(Inputs(text_columns=["premise", "hypothesis"], max_length=64)))
    code, said = push(model, "me/encoder")
    assert code == 0 and "not uploaded" not in said
    there = hub.repositories["me/encoder"]["branches"]["main"]
    assert there[INPUTS] == (model / INPUTS).read_bytes()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_not_whole_is_refused_before_the_hub_is_asked(hub, push, model, damage):
    damage(model)
    code, said = push(model, "me/encoder")
    assert (code, said.count("\n")) == (2, 1) and DAMAGES[damage] in said
    assert hub.repositories == {}


def test_mistakes_and_faults_are_told_in_one_line(hub, push, model, monkeypatch):
    def told(code, text, name="me/encoder"):
        found, said = push(model, name)
        assert (found, said.count("\n")) == (code, 1) and text in said and TOKEN not in said, said

    told(2, "the repository is me/a/b, but takes NAME or OWNER/NAME", "me/a/b")
    told(2, "the repository is a..b, but takes", "a..b")
    for failure, code in ((403, 2), (400, 2), (500, 1), (507, 1)):
        hub.failure = failure
        told(code, f"({failure}: ")
    hub.failure = None
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    told(2, "the hub knows no such token")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    told(2, f"there is no token for {hub.address}: hf auth login, or set HF_TOKEN")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    told(2, "HF_HUB_OFFLINE is set")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    reachable.why_unreachable.cache_clear()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    told(1, "http://127.0.0.1:1 cannot be reached")
    assert hub.commits == []


@pytest.mark.full
def test_the_endpoint_is_that_of_the_environment(hub, longmix):
    code, said = longmix("push", RUN, "me/encoder", HF_ENDPOINT=hub.address, HF_TOKEN=TOKEN, HF_HUB_OFFLINE="0").wait()
    assert code == 0 and hub.commits == [("me/encoder", "main")], said

"""Outputs where something of the user's stands already, and names that are hard to bear."""

import json
import os

from .. import mutations, results, sound
from ..attack import Attack, Workshop, plant

NAMES = (
    *(
        "a" * 256,
        "a" * 255,
        "d/" * 200 + "x",
        "d/" * 2000,
        "\udcff\udcfe",
        "\x1b[31m",
        "a\nb",
        "-x",
        " ",
        "%s",
        "\u202e",
        "a=b",
        "=",
        "'\"",
        "*",
        "~",
        "$HOME",
    ),
    *(
        ".",
        "..",
        "../canaries",
        "../canaries/folder",
        "mine",
        "mine/folder",
        "mine/empty",
        "mine/link",
        "mine/precious.txt",
        "mine/precious.txt/x",
    ),
    *(
        "/dev/null",
        "/dev/full/x",
        "/proc/x",
        "data",
        "run",
        "run/model",
        "run/checkpoints",
        "glue",
        "text.txt",
        "run.yaml",
        "\u00e9\u0301",
        "con",
        "s3://a/b",
        "hub:a/b",
    ),
)
# Outputs of the same command: it goes on there, or does it again.
GO_ON = {("train", "run"), ("export", "run/model"), ("prepare", "data")}
# What commands write below their output, by the name of a file that they open, lock, replace or remove.
WITHIN = {
    "train": (
        ".lock",
        "config.yaml",
        "metrics.jsonl",
        "model",
        "checkpoints",
        "heartbeats",
        "heartbeats/rank-0",
        "tensorboard",
        "stacks",
        "model/config.json",
        "checkpoints/latest",
    ),
    "export": (".lock", "config.json", "model.safetensors", "README.md", "tokenizer.model"),
    "report": (".lock", "report.md", "report.csv", "report.json", "report.html"),
    "prepare": (".lock", "prepare.json", "train", "validation", "tokenizer", "train/manifest.json"),
    "finetune": (".lock", "results.json", "results.md", "submission", "cola", "cola/seed-0", "cola/data", "tokenizers"),
}


def make(shop: Workshop) -> Attack:
    draw = shop.draw
    shop.take("data", "run.yaml", "run", "glue", "text.txt", "sweep")
    verb = draw.choice(list(WITHIN))
    kind = draw.random()
    if kind < 0.4:
        return _named(shop, verb, draw.choice(NAMES))
    output = shop.work / "out"
    if kind < 0.5:
        what = mutations.something_else(draw, output, shop.canaries)
        # An empty folder, or nothing, is what an output should be.
        is_free = what.endswith((": missing", ": folder", "dangling link"))
        attack = _command(shop, verb, "out", what)
        attack.writes = ("out",) if is_free and not what.endswith("dangling link") else ()
        return attack
    if kind < 0.7:
        plant(output)
        if draw.random() < 0.5:
            (output / "model").mkdir()
            (output / "model" / "weights.bin").write_text("mine\n")
            (output / "metrics.jsonl").write_text('{"mine": 1}\n')
            (output / "heartbeats").mkdir()
            (output / "heartbeats" / "precious.txt").write_text("mine\n")
        attack = _command(shop, verb, "out", "the output is somebody's folder")
        attack.writes = ("*",)
        attack.check = lambda shop, ended: None
        return attack
    # What was there stays as it is; beside it may be made whatever the command makes.
    name = draw.choice(WITHIN[verb])
    path = output / name
    path.parent.mkdir(parents=True)
    what = mutations.something_else(draw, path, shop.canaries)
    if draw.random() < 0.3:
        output.rename(shop.work / "real")
        output.symlink_to("real")
        what += ", and the output is a link"
    attack = _command(shop, verb, "out", f"{name} of the output: {what}")
    attack.writes = ("*", "out", "real")
    attack.check = lambda shop, ended: None
    return attack


def _named(shop: Workshop, verb: str, name: str) -> Attack:
    """An output of some name: nothing that was there changes."""
    attack = _command(shop, verb, name, f"the output is {name[:60]!a}")
    attack.writes = ("**", name) if (verb, name) in GO_ON else ("**",)
    attack.check = lambda shop, ended: None
    return attack


def _command(shop: Workshop, verb: str, output: str, what: str) -> Attack:
    if verb == "train":
        text = json.dumps(output) if shop.draw.random() < 0.7 else output
        return Attack(["train", "run.yaml", f"run.dir={text}"], what, results.trained(output, "run"))
    if verb == "export":
        more = ["--self-contained"] if shop.draw.random() < 0.3 else []
        return Attack(
            ["export", "run", f"--output={output}", *more],
            what,
            lambda shop, ended: results.same_weights(shop.work / output, shop.sound / "run/model"),
        )
    if verb == "report":
        return Attack(["report", "sweep", f"--output={output}"], what, results.report(output))
    if verb == "prepare":
        words = [word for word in sound.PREPARE if word not in ("--output", "data")]
        return Attack([*words, f"--output={output}"], what, results.data_sets(output, "data"))
    words = [word for word in sound.FINETUNE if word not in ("--output", "tuned")]
    return Attack(
        [*words, "--task", "cola", f"--output={output}"],
        what,
        lambda shop, ended: None if os.path.isfile(shop.work / output / "results.json") else "no results",
    )

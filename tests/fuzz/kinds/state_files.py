"""Files in which longmix keeps what it has done, found changed when the same command is given again."""

import json

from .. import mutations, results, sound
from ..attack import Attack, Workshop

SCORES = {"result.json", "dev.json", "selection.json", "test.json"}


def make(shop: Workshop) -> Attack:
    return shop.draw.choice((_finetune, _finetune, _prepare, _sweep, _run, _requeue))(shop)


def _finetune(shop: Workshop) -> Attack:
    """A finished fine-tuning; its figures are those of the files that were there."""
    shop.take("run/model", "glue", "tuned")
    draw = shop.draw
    files = [
        path
        for path in shop.files("tuned")
        if path.suffix in (".json", ".md", ".yaml", ".tsv", ".parquet", "") and path.name != "README.md"
    ]
    path = draw.choice([path for path in files if path.suffix == ".json"] if draw.random() < 0.75 else files)
    what = f"{path.relative_to(shop.work)}: {mutations.file_changed(draw, path, shop.canaries)}"
    like = None if path.name in SCORES else "tuned"
    return Attack([*sound.FINETUNE, "--task", "cola"], what, results.results(("cola",), like), ("tuned",))


def _prepare(shop: Workshop) -> Attack:
    """Prepared data: given again, the command says that it is done, or does it once more."""
    shop.take("text.txt", "data")
    path = shop.draw.choice([shop.work / "data/prepare.json", *shop.files("data")])
    what = f"{path.relative_to(shop.work)}: {mutations.file_changed(shop.draw, path, shop.canaries)}"
    check = results.data_sets("data", "data") if path.name == "prepare.json" else lambda shop, ended: None
    return Attack(sound.PREPARE, what, check, ("data",))


def _sweep(shop: Workshop) -> Attack:
    """A finished sweep."""
    shop.take("data", "sweep.yaml", "sweep")
    draw = shop.draw
    folder = shop.work / "sweep"
    kind = draw.random()
    if kind < 0.2:
        (folder / "sweep.json").write_bytes(mutations.json_text(draw, mutations.tree_changed(draw, {"seeds": 2})[0])[0])
        what = "sweep.json"
    elif kind < 0.4:
        path = folder / "seed-1" / "failure.json"
        path.write_bytes(mutations.json_text(draw, mutations.tree_changed(draw, {"exit_code": 1, "reason": "x"})[0])[0])
        what = "failure.json"
    else:
        names = ("config.yaml", "metrics.jsonl", ".lock", "model")
        path = folder / f"seed-{draw.randrange(2)}" / draw.choice(names)
        what = (
            mutations.something_else(draw, path, shop.canaries)
            if path.is_dir()
            else mutations.file_changed(draw, path, shop.canaries)
        )
    return Attack(
        ["sweep", "sweep.yaml", "--seeds", "2"],
        what,
        lambda shop, ended: _swept(shop),
        ("sweep",),
        (1, 75),
        "longmix sweep: ",
    )


def _swept(shop: Workshop) -> str | None:
    """The models are those of the undisturbed runs, whether they stayed or were made again."""
    folders = [f"sweep/seed-{seed}/model" for seed in range(2)]
    wrong = [results.same_weights(shop.work / folder, shop.sound / folder) for folder in folders]
    return next(filter(None, wrong), None)


def _run(shop: Workshop) -> Attack:
    """A run that was interrupted, or has finished, and goes on."""
    draw = shop.draw
    name = draw.choice(("half", "run"))
    shop.take("data", "run.yaml", name)
    path = (
        shop.work
        / name
        / draw.choice(
            ("config.yaml", "metrics.jsonl", "metrics.jsonl", ".lock", "STOP", "SAVE", "heartbeats", "stacks")
        )
    )
    if path.name in ("STOP", "SAVE", "heartbeats", "stacks"):
        path.parent.mkdir(exist_ok=True)
        what = mutations.something_else(draw, path, shop.canaries)
    else:
        what = mutations.file_changed(draw, path, shop.canaries)
    whole = results.trained(name, "run", None)

    def check(shop: Workshop, ended) -> str | None:
        wrong = results.records(shop.work / name / "metrics.jsonl", 2, first=1)
        # Records may be lost, but not without a word.
        return whole(shop, ended) or (None if "metrics.jsonl" in ended.stderr else wrong)

    argv = ["train", "run.yaml", f"run.dir={name}", "run.allow_changes=[run.stop_at_step]"]
    return Attack(argv, what, check, (name,), (75,) if path.name == "STOP" else ())


def _requeue(shop: Workshop) -> Attack:
    """What a job of a cluster has noted in its run folder."""
    draw = shop.draw
    shop.take("run.yaml", "half")
    values = {"job": "7", "checkpoint": 1, "endings": [[1, 1]]}
    path = shop.work / "half" / "requeue.json"
    path.write_text(json.dumps(values))
    what = mutations.file_changed(draw, path, shop.canaries)
    argv = [
        "requeue",
        "run.yaml",
        "run.dir=half",
        "--job",
        draw.choice(("7", "8", "\x1b[31m", "a" * 300)),
        "--code",
        draw.choice(("1", "75")),
    ]
    return Attack(argv, what, lambda shop, ended: None, ("half",), (1,), "longmix: not started again: ")

"""Checkpoints of interrupted runs: any file of theirs, also with a manifest that fits what was planted."""

import hashlib
import json
import shutil

from .. import mutations, results
from ..attack import Attack, Workshop
from ..mutations import remove


def make(shop: Workshop) -> Attack:
    draw = shop.draw
    run, like, change = draw.choice((("half", "run", []), ("halfz", "runz", ["deepspeed=zero1"])))
    shop.take("data", "run.yaml", run)
    folder = shop.work / run / "checkpoints"
    step = folder / "step-00000001"
    kind = draw.random()
    is_forged, writes = False, (run,)
    if kind < 0.12:
        what = _latest(shop, folder)
    elif kind < 0.2:
        what = mutations.something_else(draw, draw.choice((folder, step, step / "model")), shop.canaries)
        # A link of the user's leads where checkpoints are to be.
        writes = (run, "**")
    else:
        path = draw.choice([path for path in sorted(step.rglob("*")) if path.is_file() and path.name != "README.md"])
        is_forged = draw.random() < 0.6 and path.name != "manifest.json"
        if path.suffix == ".safetensors" and draw.random() < 0.6:
            what = mutations.safetensors_changed(draw, path)
        else:
            what = mutations.file_changed(draw, path, shop.canaries)
        if is_forged:
            _forge(step)
            what += ", and a manifest that fits"
    resumed = ["train", "run.yaml", f"run.dir={run}", *change, "run.allow_changes=[run.stop_at_step]"]
    verb = draw.choice(("resume", "resume", "resume", "export", "inspect"))
    if verb == "resume":
        check = results.trained(run, None if is_forged else like)
        faults = "not finite" if is_forged else ""
        return Attack(resumed, what, check, writes, (1,) if is_forged else (), faults)
    if verb == "export":
        # A forged one is copied whatever it holds.
        source = shop.work if is_forged else shop.sound
        step = f"{run}/checkpoints/step-00000001/model"

        def whole(shop: Workshop, ended) -> str | None:
            return results.same_weights(shop.work / "out", source / step)

        return Attack(["export", run, "--output", "out"], what, whole, ("out",))
    argv = ["inspect-order", run, "--step", "2"]
    return Attack(argv, what, results.printed("order.txt"))


def _latest(shop: Workshop, folder) -> str:
    """Another `latest` than the link that longmix makes."""
    latest = folder / "latest"
    kind = shop.draw.choice(("copied", "outside", "text", "none", "other", "itself"))
    remove(latest)
    if kind == "copied":
        # As a copy through a program that knows no links.
        shutil.copytree(folder / "step-00000001", latest)
    elif kind == "outside":
        latest.symlink_to(shop.canaries / "folder")
    elif kind == "text":
        latest.write_text("step-00000001\n")
    elif kind == "other":
        latest.symlink_to("step-99999999")
    elif kind == "itself":
        latest.symlink_to("latest")
    return f"latest: {kind}"


def _forge(step) -> None:
    """A manifest that says of every file what is there now."""
    values = json.loads((step / "manifest.json").read_text())
    for entry in values["files"]:
        path = step / entry["file"]
        # What is none, or endless, cannot be described.
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 2**28:
            content = path.read_bytes()
            entry.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    (step / "manifest.json").write_text(json.dumps(values))

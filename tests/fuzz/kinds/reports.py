"""Reports of runs whose records, configurations and figures were edited."""

import json

import yaml

from .. import mutations, results
from ..attack import Attack, Workshop


def make(shop: Workshop) -> Attack:
    draw = shop.draw
    shop.take("sweep", "data")
    run = shop.work / "sweep" / f"seed-{draw.randrange(2)}"
    kind = draw.random()
    if kind < 0.4:
        path = run / "config.yaml"
        tree = yaml.safe_load(path.read_text())
        places = [
            place
            for place in mutations.places_in(tree)
            if place and place[0] in ("provenance", "model", "data", "objective")
        ]
        tree, what = mutations.tree_changed(draw, tree, places if draw.random() < 0.8 else None)
        try:
            path.write_bytes(yaml.safe_dump(tree, allow_unicode=True).encode(errors="surrogatepass"))
        except (yaml.YAMLError, RecursionError):
            path.write_text("{")
        what = f"config.yaml: {what}"
    elif kind < 0.75:
        what = mutations.lines_changed(draw, run / "metrics.jsonl")
    elif kind < 0.85:
        what = _named(shop)
    else:
        path = draw.choice(
            (run / "metrics.jsonl", run / "config.yaml", run.parent / "sweep.json", run / "failure.json")
        )
        if not path.exists():
            path.write_text(
                json.dumps(
                    {"exit_code": 1, "reason": draw.choice([text for text in mutations.TEXTS if "\ud800" not in text])}
                )
            )
        what = mutations.file_changed(draw, path, shop.canaries) if draw.random() < 0.7 else path.name
    return Attack(["report", "sweep", "--output", "out"], what, results.report("out"), ("out",))


def _named(shop: Workshop) -> str:
    """Runs of one hostile name."""
    name = shop.draw.choice(
        ("<script>alert(1)<-script>", "=1+1", "| a |", "\x1b[31m", "a\nb", "\u202e", "`x`", "@SUM(1)", "-", "![x](y)")
    )
    for number in range(2):
        (shop.work / "sweep" / f"seed-{number}").rename(shop.work / "sweep" / f"{name}{number}")
        path = shop.work / "sweep" / f"{name}{number}" / "config.yaml"
        tree = yaml.safe_load(path.read_text())
        tree["data"]["eval"] = tree["data"]["train"] = f"data/{name}"
        tree["model"]["model_type"] = name
        path.write_text(yaml.safe_dump(tree))
    return f"everything is called {name!a}"

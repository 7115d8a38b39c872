"""Manifests of data sets that lie, or are none."""

import json

from .. import mutations
from ..attack import Attack, Workshop
from .shards import reader

# Fields that no run reads: its result is that of the undisturbed one.
WITHOUT_EFFECT = ("split_rule", "report")


def make(shop: Workshop) -> Attack:
    shop.take("data", "run.yaml", "run")
    draw = shop.draw
    path = shop.work / "data" / draw.choice(("train", "train", "validation")) / "manifest.json"
    kind = draw.random()
    if kind < 0.2:
        return reader(shop, mutations.file_changed(draw, path, shop.canaries), is_same=False)
    values = json.loads(path.read_text())
    if kind < 0.3:
        name = draw.choice(WITHOUT_EFFECT)
        if name == "report":
            values["report"] = {draw.choice(mutations.TEXTS): draw.choice((1, None, "\x1b[2J", [1.5]))}
        else:
            values[name] = draw.choice([text for text in mutations.TEXTS if text and "\ud800" not in text])
        path.write_text(json.dumps(values))
        return reader(shop, f"{path.parent.name}: {name} is {str(values[name])!a:.60}", is_same=True)
    if kind < 0.5:
        name = draw.choice(
            ("vocab_size", "sequence_length", "num_labels", "samples", "tokens", "trained_places", "pad_token_id")
        )
        values[name] = draw.choice((2**31 - 1, 2**31, 2**40, 2**63 - 1, 10**30, 0, 1, -1))
        path.write_text(json.dumps(values))
        return reader(shop, f"{path.parent.name}: {name} is {values[name]}", is_same=False)
    return reader(shop, f"{path.parent.name}: {mutations.json_file_changed(draw, path)}", is_same=False)

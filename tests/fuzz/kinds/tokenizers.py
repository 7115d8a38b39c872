"""Tokenizers from elsewhere: our own files and those of transformers, damaged, and asking for code."""

import json

from .. import mutations, results
from ..attack import Attack, Workshop

FAST = {
    "version": "1.0",
    "added_tokens": [
        {
            "id": 3,
            "content": "<pad>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
    ],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordLevel",
        "vocab": {"[CLS]": 0, "[SEP]": 1, "[MASK]": 2, "<pad>": 3, "<unk>": 4, "the": 5, "cat": 6},
        "unk_token": "<unk>",
    },
}
VALUES = {
    "auto_map": (
        {"AutoTokenizer": ["planted.Planted", "planted.Planted"]},
        {"AutoTokenizer": ["nobody/nothing--x.Y", None]},
        3,
    ),
    "tokenizer_class": ("Nothing", "BertTokenizer", "PreTrainedTokenizerFast", 3, None, "LlamaTokenizer", "\x1b[31m"),
    "model_max_length": (0, -1, 2**63, 10**400, "x", None, 1, float("nan")),
    "mask_token": (None, "x", "", 3, {"content": "[MASK]"}, {"__type": "AddedToken", "content": 3}),
    "cls_token": (None, "nothing", [], "\x1b[31m"),
    "added_tokens_decoder": ({"x": 1}, {"99999999": {"content": "a"}}, {"-1": {"content": "b"}}, 3, {"0": None}),
    "extra_special_tokens": ({"a": "b"}, 3, ["x"], {"a": {"b": 1}}),
    "additional_special_tokens": (["x"] * 50, 3, [None], [["a"]]),
    "sp_model_kwargs": ({"enable_sampling": True}, {"x": 1}, 3, {"model_file": "../canaries/precious.txt"}),
    "chat_template": ("{{ ''.__class__ }}", 3, "\x1b[2J"),
    "padding_side": ("up", 3),
    "vocab_file": ("../canaries/precious.txt", "/dev/zero", 3),
    "name_or_path": ("nobody/nothing",),
}


def make(shop: Workshop) -> Attack:
    shop.take("data", "run.yaml", "run", "glue", "text.txt")
    draw = shop.draw
    verb = draw.choice(("fill", "fill", "whole word", "finetune", "prepare", "train"))
    folder = shop.work / ("run/model" if verb in ("fill", "finetune") else "data/tokenizer")
    what = _change(shop, folder)
    if verb == "fill":
        return Attack(["evaluate", "run/model", "--fill", "the [MASK] sees", "--top", "3"], what, results.says(r"\S"))
    if verb == "finetune":
        argv = [
            "finetune",
            "--model",
            "run/model",
            "--task",
            "cola",
            "--data",
            "glue",
            "--output",
            "tuned",
            "--seeds",
            "1",
            "--epochs",
            "1",
        ]
        return Attack(argv, what, results.results(("cola",)), ("tuned",))
    if verb == "prepare":
        argv = [
            "prepare",
            "text",
            "--source",
            "text.txt",
            "--output",
            "made",
            "--tokenizer",
            "data/tokenizer",
            "--sequence-length",
            "24",
            "--workers",
            "1",
        ]
        return Attack(argv, what, results.data_sets("made"), ("made",))
    more = ["objective.whole_word=true"] if verb == "whole word" else []
    check = results.trained("fresh", None if more else "run")
    return Attack(["train", "run.yaml", "run.dir=fresh", *more], f"{what} ({verb})", check, ("fresh",))


def _change(shop: Workshop, folder) -> str:
    draw, kind = shop.draw, shop.draw.random()
    config = folder / "tokenizer_config.json"
    if kind < 0.35:
        values = json.loads(config.read_text())
        name = draw.choice(list(VALUES))
        values[name] = draw.choice(VALUES[name])
        try:
            config.write_text(json.dumps(values))
        except ValueError:
            config.write_text("{")
        (folder / "planted.py").write_text(mutations.code(shop.canaries))
        return f"{name} is {str(values[name])!a:.60}" if name != "model_max_length" else name
    if kind < 0.55:
        return mutations.file_changed(draw, draw.choice((config, folder / "tokenizer.model")), shop.canaries)
    if kind < 0.65:
        return mutations.json_file_changed(draw, config)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(FAST))
    what = (
        f"beside ours {mutations.file_changed(draw, path, shop.canaries)}"
        if draw.random() < 0.8
        else "a fast one beside ours"
    )
    if draw.random() < 0.7:
        (folder / "tokenizer.model").unlink()
        values = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "mask_token": "[MASK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
        }
        config.write_text(json.dumps({**values, "pad_token": "<pad>", "unk_token": "<unk>"}))
        what += ", and not ours"
    return what

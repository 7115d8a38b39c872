"""Model folders from elsewhere: configurations that lie, weights that are none, code that must not run."""

import json
import pickle

from .. import mutations, results
from ..attack import Attack, Workshop

NUMBERS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "num_labels",
    "pad_token_id",
)
VALUES = {
    "attn_implementation": ("nobody/nothing", "flash_attention_2", "eager", "\x1b[2J", "kernels-community/flash-attn"),
    "_attn_implementation": ("nobody/nothing",),
    "model_type": ("bert", "gpt2", "t5", "nothing", "\x1b[31m", None, 3, "s3attention"),
    "architectures": (["Nothing"], [], None, "x", [None], ["os.system"]),
    "torch_dtype": ("float16", "nothing", 3, "bfloat16"),
    "dtype": ("float16", "nothing", 3, "int8"),
    "quantization_config": ({"quant_method": "bitsandbytes"}, {"quant_method": "x"}, {}, 3),
    "auto_map": (
        {"AutoConfig": "planted.Planted", "AutoModelForMaskedLM": "planted.Planted"},
        {"AutoModel": "nobody/nothing--x.Y"},
        3,
    ),
    "_name_or_path": ("../canaries", "nobody/nothing"),
    "id2label": ({"0": "\x1b[31m", "1": "<script>alert(1)</script>"}, {"x": 1}, [], {"0": "a"}),
    "label2id": ({"a": 7}, 3),
    "transformers_version": ("99.0", None),
    "hidden_act": ("nothing", 3, "relu"),
    "use_cache": ("x",),
    "tie_word_embeddings": (False, "x"),
    "base_model_pp_plan": ({"x": 1},),
}


def make(shop: Workshop) -> Attack:
    shop.take("data", "run.yaml", "run/model", "run/config.yaml", "glue")
    draw, folder = shop.draw, shop.work / "run" / "model"
    (shop.work / "theirs").parent.mkdir(exist_ok=True)
    shop.replace("run/model", "theirs")
    folder = shop.work / "theirs"
    kind = draw.random()
    is_same = False
    if kind < 0.3:
        what = _lie(shop, folder)
    elif kind < 0.45:
        what = f"config.json: {mutations.json_file_changed(draw, folder / 'config.json')}"
    elif kind < 0.65:
        what = mutations.safetensors_changed(draw, folder / "model.safetensors")
    elif kind < 0.75:
        what = mutations.file_changed(draw, folder / "model.safetensors", shop.canaries)
    elif kind < 0.85:
        what = f"objective.json: {mutations.file_changed(draw, folder / 'objective.json', shop.canaries)}"
    else:
        what, is_same = _plant(shop, folder)
    return user(shop, what, is_same)


def user(shop: Workshop, what: str, is_same: bool) -> Attack:
    """A command that loads the model folder `theirs`."""
    verb = shop.draw.choice(("evaluate", "evaluate", "fill", "export", "from", "finetune", "alone"))
    if verb == "evaluate":
        check = results.printed("evaluated.txt") if is_same else results.figures
        return Attack(["evaluate", "theirs", "--data", "data/validation"], what, check)
    if verb == "fill":
        check = results.printed("filled.txt") if is_same else results.says(r"\S")
        return Attack(["evaluate", "theirs", "--fill", "the [MASK] sees", "--top", "3"], what, check)
    if verb in ("export", "alone"):
        # Whatever they are: export copies.
        def whole(shop: Workshop, ended) -> str | None:
            return results.same_weights(shop.work / "out", shop.work / "theirs")

        more = ["--self-contained"] if verb == "alone" else []
        return Attack(["export", "theirs", "--output", "out", *more], what, whole, ("out",))
    if verb == "from":
        argv = ["train", "run.yaml", "run.dir=fresh", "model={from: theirs}"]
        return Attack(argv, what, results.trained("fresh"), ("fresh",), (1,), "not finite")
    argv = [
        "finetune",
        "--model",
        "theirs",
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
    return Attack(argv, what, results.results(("cola",), "tuned" if is_same else None), ("tuned",))


def _lie(shop: Workshop, folder) -> str:
    draw, path = shop.draw, folder / "config.json"
    values = json.loads(path.read_text())
    if draw.random() < 0.5:
        name = draw.choice(NUMBERS)
        values[name] = draw.choice((2**31 - 1, 2**31, 2**40, 2**63, 0, -1, 1, 1.5, "8", None, True, 17))
    else:
        name = draw.choice(list(VALUES))
        values[name] = draw.choice(VALUES[name])
        (folder / "planted.py").write_text(mutations.code(shop.canaries))
    path.write_text(json.dumps(values))
    return f"config.json: {name} is {values[name]!a:.60}"


def _plant(shop: Workshop, folder) -> tuple[str, bool]:
    """Files beside, or in the place of, the weights: (what, whether the result is the undisturbed one's)."""
    draw = shop.draw
    bomb = pickle.dumps(mutations.Bomb(shop.canaries))
    kind = draw.choice(("beside", "beside", "instead", "index", "adapter", "link", "module"))
    if kind == "beside":
        name = draw.choice(
            (
                "pytorch_model.bin",
                "training_args.bin",
                "optimizer.pt",
                "tf_model.h5",
                "scheduler.pt",
                "custom_generate.py",
            )
        )
        (folder / name).write_bytes(bomb if not name.endswith(".py") else mutations.code(shop.canaries).encode())
        return f"{name} beside the weights", True
    if kind == "module":
        for name in (
            "planted.py",
            "configuration_transformer.py",
            "modeling_transformer.py",
            "__init__.py",
            "tokenizer.py",
        ):
            (folder / name).write_text(mutations.code(shop.canaries))
        return "modules beside the weights", True
    if kind == "instead":
        (folder / "model.safetensors").unlink()
        name = draw.choice(("pytorch_model.bin", "model.bin", "model.safetensors"))
        (folder / name).write_bytes(bomb)
        return f"a pickle, {name}, for the weights", False
    if kind == "adapter":
        (folder / "adapter_config.json").write_text(
            json.dumps(draw.choice(({"base_model_name_or_path": "nobody/nothing", "peft_type": "LORA"}, {}, [], 3)))
        )
        return "adapter_config.json", False
    if kind == "link":
        path = draw.choice([path for path in sorted(folder.iterdir()) if path.is_file()])
        return mutations.something_else(draw, path, shop.canaries), False
    weights = draw.choice(
        ("../canaries/precious.txt", "/dev/zero", "model.safetensors", "x.safetensors", 3, None, "../../run.yaml")
    )
    index = draw.choice(
        (
            {"weight_map": {"a": weights}, "metadata": {}},
            {"weight_map": weights},
            {},
            [],
            {"metadata": {"total_size": 10**30}, "weight_map": {}},
        )
    )
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return f"an index {str(index)!a:.80}", False

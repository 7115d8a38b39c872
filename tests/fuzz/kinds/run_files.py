"""Run files with anything in them, the files that they extend, DeepSpeed's files, and changes on the command line."""

import copy
import json
import os

import yaml

from .. import mutations, results, sound
from ..attack import Attack, Workshop

# What a run may not have too much of, though it would be valid: it would take the time that it asks for.
LONG = {"batch.samples", "optim.max_steps", "eval.samples", "batch", "optim", "eval", "data.partitions"}
SECTIONS = {
    **sound.RUN,
    "run": {
        "dir": "run",
        "seed": 0,
        "gradient_checkpointing": False,
        "max_hours": 1.0,
        "hang_minutes": 30,
        "check_every": 1000,
        "allow_changes": [],
    },
    "data": {**sound.RUN["data"], "test": None, "partitions": "auto", "cache": {"dir": None, "max_bytes": None}},
    "objective": {"name": "mlm", "mask_probability": 0.15, "whole_word": False},
    "optim": {
        **sound.RUN["optim"],
        "betas": [0.9, 0.98],
        "eps": 1e-6,
        "weight_decay": 0.01,
        "no_decay": ["bias"],
        "schedule": "linear",
        "grad_clip": 1.0,
        "skip_spikes": False,
    },
    "checkpoint": {
        "every_steps": 1,
        "keep": 3,
        "keep_every": None,
        "best": None,
        "asynchronous": False,
        "max_failures": 3,
    },
}
CHOICES = {
    "model.model_type": (
        "flt",
        "s3attention",
        "paramixer",
        "converter",
        "wavspa",
        "bert",
        "gpt2",
        "fnet",
        "t5",
        "vit",
        "llama",
    ),
    "objective.name": (
        "clm",
        "classification",
        "regression",
        "pair_classification",
        "token_classification",
        "forecasting",
    ),
    "precision": ("bf16", "fp16", "auto"),
    "deepspeed": ("zero0", "zero1", "zero2", "zero3", "zero4", "ds.json"),
    "model.from": ("data/tokenizer", "mine", "nobody/nothing", "../canaries"),
    "data.train": (
        "data",
        "data/tokenizer",
        "../canaries",
        "s3://nobody/nothing",
        "http://127.0.0.1:9/x",
        "data/validation",
    ),
    "data.test": ("data/validation", "data/train", "data/none"),
    "checkpoint.best": (
        {"metric": "loss", "mode": "min"},
        {"metric": "f1", "mode": "max"},
        {"metric": "\x1b[2J", "mode": "min"},
    ),
    "run.max_hours": (1e-9, 1e300),
    "run.hang_minutes": (1e-9, 1e300),
    "optim.lr": (1e30, 1e-300, 1e308),
    "run.compile": (False,),
}
DEEPSPEED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 1, "overlap_comm": False, "reduce_bucket_size": 5e8},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True, "weight_decay": "auto"}},
}
MORE_OF_DEEPSPEED = {
    "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    "data_types": {"grad_accum_dtype": "fp16"},
    "communication_data_type": "fp16",
    "fp16": {"enabled": True},
    "bf16": {"enabled": True},
    "unknown_key": 1,
    "scheduler": {"type": "WarmupLR", "params": {}},
    "flops_profiler": {"enabled": True, "output_file": "flops.txt"},
    "tensorboard": {"enabled": True, "output_path": "logs", "job_name": "mine"},
    "csv_monitor": {"enabled": True, "output_path": "logs", "job_name": "mine"},
    "elasticity": {"enabled": True},
    "compression_training": {},
    "sparse_attention": {"mode": "fixed"},
    "curriculum_learning": {"enabled": True},
    "autotuning": {"enabled": True},
    "aio": {"block_size": 0},
    "nebula": {"enabled": True},
    "data_efficiency": {"enabled": True},
}
TEXT = """
run: |model: |data: |extends: |dir: run|train: data/train|{|}|[|]|,|: |- |? |&a |*a|<<: |null|1e3|0x_|0b|1:60|2024-01-01
=|.nan|!!int |!!python/object/apply:os.getcwd []|!!binary |!x |>|"|'|#|%YAML 1.2|---|...|\x1b[31m|\ud7ff|\ufeff
"""
PIECES = [*TEXT.replace("\n", "|").split("|"), " ", "  ", "\n", "|\n", "\t", "\r"]


def make(shop: Workshop) -> Attack:
    shop.take("data", "run.yaml")
    draw = shop.draw
    kind = draw.random()
    changes: list[str] = []
    if kind < 0.5:
        tree, what = copy.deepcopy(SECTIONS), []
        for _ in range(draw.choice((1, 1, 2))):
            tree, told = _changed(shop, tree)
            what.append(told)
        _write(shop, tree)
        what = "; ".join(what)
    elif kind < 0.6:
        content = "".join(draw.choice(PIECES) for _ in range(draw.randrange(1, 14)))
        before = (shop.work / "run.yaml").read_text() if draw.random() < 0.6 else ""
        (shop.work / "run.yaml").write_bytes((before + content).encode(errors="surrogatepass"))
        what = f"run.yaml ends in {content[:60]!a}"
    elif kind < 0.7:
        what = mutations.file_changed(draw, shop.work / "run.yaml", shop.canaries)
    elif kind < 0.78:
        what = _extends(shop)
    elif kind < 0.9:
        what, changes = _deepspeed(shop), ["deepspeed=ds.json"]
    else:
        place = draw.choice([place for place in mutations.places_in(SECTIONS) if place])
        value = mutations.value_drawn(draw, _at(SECTIONS, place))
        text = value if isinstance(value, str) else json.dumps(value)
        changes = [f"{'.'.join(map(str, place))}={text}".replace("\0", "")]
        what = f"the change {changes[0][:80]!a}"
    return command(shop, what, changes)


def command(shop: Workshop, what: str, changes: list[str]) -> Attack:
    """A command that reads the run file; training ends at step 2, whatever it says."""
    verb = shop.draw.choice(("train", "train", "train", "check", "check", "inspect", "requeue"))
    if any(f"{name} " in what or f"{name}=" in what for name in LONG) and verb == "train":
        verb = "check"
    if verb == "train":
        # It ended at its last step, or was stopped at its second.
        check = _whole
        stop = "run.stop_at_step=2"
        return Attack(
            ["train", "run.yaml", *changes, stop],
            what,
            check,
            ("*",),
            (1, 75),
            "loss or gradients that are not finite|longmix: .*memory",
        )
    if verb == "check":
        return Attack(["train", "run.yaml", *changes, "--check"], what, results.says("this run file is valid\n$"))
    if verb == "inspect":
        return Attack(["inspect-order", "run.yaml", *changes, "--step", "1"], what, results.says("^step 1 of "))
    return Attack(
        ["requeue", "run.yaml", *changes, "--job", "7", "--code", "75"], what, lambda shop, ended: None, ("*",)
    )


def _whole(shop: Workshop, ended) -> str | None:
    """Some folder below the working folder holds the finished run."""
    runs = [path.parent for path in sorted(shop.work.rglob("metrics.jsonl")) if path.parent.name != "mine"]
    if len(runs) != 1:
        return f"{len(runs)} runs were made"
    wrong = results.records(runs[0] / "metrics.jsonl", None)
    return wrong or results.model_folder(runs[0] / "model")


def _changed(shop: Workshop, tree):
    draw = shop.draw
    if draw.random() < 0.4:
        name = draw.choice(list(CHOICES))
        value = draw.choice(CHOICES[name])
        *parents, last = name.split(".")
        inner = tree
        for key in parents:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            return tree, "no change"
        inner[last] = value
        if value == "ds.json":
            _deepspeed(shop)
        return tree, f"{name} is {value!a}"
    return mutations.tree_changed(draw, tree)


def _at(tree, place):
    for key in place:
        tree = tree[key]
    return tree


def _write(shop: Workshop, tree) -> None:
    try:
        text = yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
    except (yaml.YAMLError, RecursionError, UnicodeError, ValueError):
        text = json.dumps(tree) if not isinstance(tree, str) else tree
    (shop.work / "run.yaml").write_bytes(text.encode(errors="surrogatepass"))


def _extends(shop: Workshop) -> str:
    """Run files that build on others: many, themselves, far away, and what is none."""
    draw, work = shop.draw, shop.work
    kind = draw.choice(
        ("fan", "fan", "circle", "self", "deep", "device", "canary", "folder", "hostile", "pipe", "many")
    )
    top = (work / "run.yaml").read_text()
    if kind == "fan":
        depth, width = draw.choice(((12, 10), (6, 3), (20, 2)))
        for number in range(depth):
            lower = (
                f"extends: [{', '.join([f'e{number + 1}.yaml'] * width)}]\n"
                if number + 1 < depth
                else "log: {every_steps: 1}\n"
            )
            (work / f"e{number}.yaml").write_text(lower)
        base, kind = "e0.yaml", f"fan of {depth} x {width}"
    elif kind == "circle":
        (work / "e0.yaml").write_text("extends: run.yaml\n")
        base = "e0.yaml"
    elif kind == "self":
        base = "run.yaml"
    elif kind == "deep":
        for number in range(1500):
            (work / f"e{number}.yaml").write_text(f"extends: e{number + 1}.yaml\n" if number < 1499 else "{}\n")
        base = "e0.yaml"
    elif kind == "device":
        base = draw.choice(("/dev/zero", "/dev/null", "/dev/stdin", "/proc/self/environ"))
    elif kind == "canary":
        base = "../canaries/precious.txt"
    elif kind == "folder":
        base = draw.choice(("mine", "data", "."))
    elif kind == "pipe":
        os.mkfifo(work / "e0.yaml")
        base = "e0.yaml"
    elif kind == "many":
        (work / "e0.yaml").write_text("{}\n")
        base = "[" + ", ".join(["e0.yaml"] * 3000) + "]"
    else:
        base = json.dumps(draw.choice(mutations.TEXTS).encode(errors="replace").decode())
    (work / "run.yaml").write_text(f"extends: {base}\n{top}")
    return f"extends: {kind} {base[:60]!a}"


def _deepspeed(shop: Workshop) -> str:
    draw, path = shop.draw, shop.work / "ds.json"
    tree = copy.deepcopy(DEEPSPEED)
    kind = draw.random()
    if kind < 0.5:
        name = draw.choice(list(MORE_OF_DEEPSPEED))
        tree[name] = copy.deepcopy(MORE_OF_DEEPSPEED[name])
        path.write_text(json.dumps(tree))
        what = f"{name} in DeepSpeed's file"
        return what if draw.random() < 0.7 else f"{what}; {mutations.json_file_changed(draw, path)}"
    path.write_text(json.dumps(tree))
    if kind < 0.9:
        return f"DeepSpeed's file: {mutations.json_file_changed(draw, path)}"
    return f"DeepSpeed's file: {mutations.file_changed(draw, path, shop.canaries)}"

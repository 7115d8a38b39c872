"""The sound input that cases begin with, and what sound commands make of it: small, and made once."""

import datetime
import json
import os
import random
import sys
from pathlib import Path

import yaml

WORDS = "the a cat dog bird sees likes chases red small old quick house tree runs sleeps and or"
RUN = {
    "run": {"dir": "run"},
    "model": {
        "model_type": "transformer",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "num_attention_heads": 2,
    },
    "data": {"train": "data/train", "eval": "data/validation"},
    "batch": {"samples": 4, "micro_batch": 4},
    "optim": {"lr": 5e-3, "max_steps": 2, "warmup_steps": 1},
    "eval": {"every_steps": 2, "samples": 4},
    "checkpoint": {"every_steps": 1},
    "log": {"every_steps": 1, "tensorboard": False},
    "precision": "fp32",
    "deepspeed": None,
}
_FINETUNE = "finetune --model run/model --data glue --output tuned --seeds 1 --epochs 1"
_PREPARE = "prepare text --source text.txt --output data --vocab-size 45 --sequence-length 24 --workers 1"
FINETUNE, PREPARE = _FINETUNE.split(), _PREPARE.split()


def sentences(count: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS.split(), k=draw.randint(3, 9))) for _ in range(count)]


def make(folder: Path) -> None:
    """Make everything in `folder`, which becomes the working folder: for a process of its own.

    RuntimeError if a command does not finish.
    """
    folder.mkdir(parents=True)
    os.chdir(folder)
    os.environ["HOME"] = str(folder / "home")
    texts = sentences(200)
    Path("text.txt").write_text("\n\n".join(texts) + "\n")
    Path("corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    _run(*PREPARE)
    Path("run.yaml").write_text(yaml.safe_dump(RUN, sort_keys=False))
    _run("train", "run.yaml")
    _run("train", "run.yaml", "run.dir=half", "run.stop_at_step=1", expected=75)
    _run("train", "run.yaml", "run.dir=halfz", "deepspeed=zero1", "run.stop_at_step=1", expected=75)
    _run("train", "run.yaml", "run.dir=runz", "deepspeed=zero1")
    for seed in range(2):
        _run("train", "run.yaml", f"run.dir=sweep/seed-{seed}", f"run.seed={seed}")
    Path("sweep.yaml").write_text(yaml.safe_dump({**RUN, "run": {"dir": "sweep"}}, sort_keys=False))
    _glue(texts)
    _run(*FINETUNE, "--task", "cola")
    _run("export", "run", "--output", "exported")
    Path("evaluated.txt").write_text(_run("evaluate", "run/model", "--data", "data/validation"))
    Path("order.txt").write_text(_run("inspect-order", "run.yaml", "--step", "2"))
    Path("filled.txt").write_text(_run("evaluate", "run/model", "--fill", "the [MASK] sees", "--top", "3"))
    _sources(texts)
    # It compiles kernels into the cache.
    _run("doctor")


def _run(*argv: str, expected: int = 0) -> str:
    """The output of a command, in a process of its own. It must end with `expected`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            from longmix.trainer.cli import main

            code = main(list(argv))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != expected:
        raise RuntimeError(f"longmix {' '.join(argv)} ended with {code}")
    return Path("output.txt").read_text()


def _glue(texts: list[str]) -> None:
    """GLUE's tasks in both layouts, and one of somebody's own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("glue/CoLA", "glue/RTE", "glue/STS-B", "hub/cola", "hub/rte", "custom"):
        Path(name).mkdir(parents=True)
    labels = [int("cat" in text.split()) for text in texts]
    rows = [f"x\t{label}\t\t{text}" for label, text in zip(labels, texts, strict=True)]
    Path("glue/CoLA/train.tsv").write_text("\n".join(rows[:40]) + "\n")
    Path("glue/CoLA/dev.tsv").write_text("\n".join(rows[40:60]) + "\n")
    Path("glue/CoLA/test.tsv").write_text("index\tsentence\n0\tthe cat\n1\ta dog\n")
    Path("glue/CoLA/note.txt").write_text("These files are not GLUE's own.\n")
    names = ("entailment", "not_entailment")
    pairs = [f"{i}\t{texts[i]}\t{texts[i + 1]}\t{names[labels[i]]}" for i in range(60)]
    header = "index\tsentence1\tsentence2\tlabel"
    Path("glue/RTE/train.tsv").write_text("\n".join([header, *pairs[:40]]) + "\n")
    Path("glue/RTE/dev.tsv").write_text("\n".join([header, *pairs[40:]]) + "\n")
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    rows = [f"{i}\tg\tf\ty\to\ts\ts\t{texts[i]}\t{texts[i + 1]}\t{i % 6 * 0.9:.3f}" for i in range(60)]
    Path("glue/STS-B/train.tsv").write_text("\n".join([header, *rows[:40]]) + "\n")
    Path("glue/STS-B/dev.tsv").write_text("\n".join([header, *rows[40:]]) + "\n")
    for split, start, end in (("train", 0, 40), ("validation", 40, 60), ("test", 60, 64)):
        part = range(start, end)
        wanted = [-1 if split == "test" else labels[i] for i in part]
        table = {"sentence": texts[start:end], "label": wanted, "idx": list(part)}
        pq.write_table(pa.table(table), f"hub/cola/{split}-00000-of-00001.parquet")
        first = {"sentence1": texts[start:end], "sentence2": texts[start + 1 : end + 1]}
        pq.write_table(
            pa.table({**first, "label": wanted, "idx": list(part)}), f"hub/rte/{split}-00000-of-00001.parquet"
        )
    for split, start, end in (("train", 0, 40), ("dev", 40, 60)):
        rows = [f"{texts[i]}\t{'good' if labels[i] else 'bad'}" for i in range(start, end)]
        Path(f"custom/{split}.tsv").write_text("\n".join(["body\tstars", *rows]) + "\n")


def _sources(texts: list[str]) -> None:
    """What longmix prepare reads, of every kind."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = random.Random(1)
    Path("sources").mkdir()
    pq.write_table(pa.table({"text": texts, "id": list(range(len(texts)))}), "sources/corpus.parquet")
    days = [datetime.datetime(2020, 1, 1) + datetime.timedelta(days=day) for day in range(120)]
    Path("sources/series.csv").write_text(
        "\n".join(["date,a,b", *(f"{d},{draw.random():.3f},{i}" for i, d in enumerate(days))]) + "\n"
    )
    for split, start, end in (("train", 0, 60), ("dev", 60, 80), ("test", 80, 100)):
        labels = ["good" if "cat" in text.split() else "bad" for text in texts[start:end]]
        rows = [f"{label}\t{text}" for label, text in zip(labels, texts[start:end], strict=True)]
        for name, header in (("reviews", "label\ttext"), ("dna", "label\tsequence")):
            Path(f"sources/{name}").mkdir(exist_ok=True)
            if name == "dna":
                rows = [f"{label}\t{''.join(draw.choices('ACGT', k=30))}" for label in labels]
            Path(f"sources/{name}/{split}.tsv").write_text("\n".join([header, *rows]) + "\n")
        Path("sources/tables").mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": texts[start:end], "label": labels}), f"sources/tables/{split}.parquet")
        Path("sources/pairs").mkdir(exist_ok=True)
        pairs = [f"{i % 2}\t{texts[i]}\t{texts[i + 1]}" for i in range(start, end)]
        Path(f"sources/pairs/{split}.tsv").write_text("\n".join(["label\ttext1\ttext2", *pairs]) + "\n")
        # Numbers as they are in a file with more points than one.
        counts = np.arange(20) % 3 + 1
        total, numbers = int(counts.sum()), np.random.default_rng(start)
        points = {"coordinates": numbers.random((total, 3)), "counts": counts, "labels": numbers.random(20)}
        np.savez(f"sources/{split}.npz", **points, values=numbers.random((total, 2)))
        np.save(f"sources/{split}.npy", numbers.integers(0, 256, (20, 8, 8, 3)).astype(np.uint8))
        np.save(f"sources/{split}_labels.npy", np.arange(20) % 3)
    for name in ("Bos", "Mus"):
        genes = (f">{name}{i}\n{''.join(draw.choices('ACGT', k=30))}\n" for i in range(40))
        Path(f"sources/{name}.fa").write_text("".join(genes))

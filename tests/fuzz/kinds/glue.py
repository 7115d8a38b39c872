"""GLUE's files in both layouts, and a task of one's own."""

from .. import mutations, results
from ..attack import Attack, Workshop
from .shards import change_table

FIELDS = (
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\ufeff",
    '"',
    "0",
    "1",
    "entailment",
    "3.8",
    "nan",
    "1e999",
    "-1",
    "\0",
    "\u2028",
    " ",
    "\x1b[31m",
    "\xe9",
)


def make(shop: Workshop) -> Attack:
    draw = shop.draw
    shop.take("run/model", "glue", "hub", "custom")
    layout, task = draw.choice(
        (
            ("glue", "cola"),
            ("glue", "rte"),
            ("glue", "stsb"),
            ("hub", "cola"),
            ("hub", "rte"),
            ("hub", "cola"),
            ("custom", "custom"),
        )
    )
    folder = shop.work / {"cola": "glue/CoLA", "rte": "glue/RTE", "stsb": "glue/STS-B", "custom": "custom"}[task]
    if layout == "hub":
        folder = shop.work / "hub" / task
    path = draw.choice(sorted(folder.iterdir()))
    if path.suffix == ".parquet" and draw.random() < 0.8:
        what = f"{task}, {change_table(shop, path)}"
    elif draw.random() < 0.3:
        what = f"{task}, {mutations.file_changed(draw, path, shop.canaries)}"
    else:
        what = f"{task}, {_text(shop, path)}"
    more = ["--text-columns", "body", "--label-column", "stars"] if task == "custom" else []
    argv = [
        "finetune",
        "--model",
        "run/model",
        "--task",
        task,
        "--data",
        layout,
        "--output",
        "tuned",
        "--seeds",
        "1",
        "--epochs",
        "1",
    ]
    return Attack([*argv, *more], what, results.results((task,)), ("tuned",))


def _text(shop: Workshop, path) -> str:
    """Change one line of a table, or write what is below its header anew."""
    draw = shop.draw
    if path.suffix == ".parquet":
        return mutations.file_changed(draw, path, shop.canaries)
    lines = path.read_bytes().split(b"\n")
    number = draw.randrange(len(lines))
    if draw.random() < 0.5:
        new = draw.choice(mutations.TEXTS).encode(errors="surrogatepass")
        if draw.random() < 0.7:
            fields = lines[number].split(b"\t")
            fields[draw.randrange(len(fields))] = new
            new = b"\t".join(fields)
    else:
        new = "".join(draw.choice(FIELDS) for _ in range(draw.randrange(8))).encode(
            draw.choice(("utf-8", "utf-16", "latin-1")), errors="replace"
        )
    lines[number] = new
    if draw.random() < 0.1:
        lines = lines[:number]
    path.write_bytes(b"\n".join(lines))
    return f"{path.name}, line {number + 1}: {new[:60]!a}"

"""Whether what a command made, or printed, is right: asked of it independently of the code that made it."""

import contextlib
import csv
import json
import math
import re
import statistics
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longmix.trainer.finetune.readers import is_number

from .attack import Ended, Workshop

Check = Callable[[Workshop, Ended], str | None]


def strict_json(path: Path) -> Any:
    """What a JSON file holds. ValueError for NaN and the like, which are no JSON."""

    def refuse(name: str):
        raise ValueError(f"{path.name} holds {name}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def tensors(path: Path) -> dict[str, tuple[str, list, bytes]]:
    """{name: (type, shape, bytes)} of a safetensors file, read by hand. ValueError for one that is not whole."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            size = (
                math.prod(entry["shape"])
                * {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "F64": 8, "BOOL": 1}[entry["dtype"]]
            )
            if not 0 <= start <= end <= len(data) or end - start != size:
                raise ValueError(f"{path.name}: {name} is not whole")
            found[name] = (entry["dtype"], entry["shape"], data[start:end])
    return found


def _is_finite(value: tuple[str, list, bytes]) -> bool:
    kind, _, data = value
    return kind != "F32" or all(map(math.isfinite, struct.unpack(f"<{len(data) // 4}f", data)))


def model_folder(folder: Path) -> str | None:
    """What is wrong with a folder that should hold a model."""
    try:
        strict_json(folder / "config.json")["model_type"]
        found = tensors(folder / "model.safetensors")
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"{folder.name} holds no whole model: {error!r}"
    bad = [name for name, value in found.items() if not _is_finite(value)]
    return f"{folder.name}: {bad[0]} is not finite" if bad else None if found else f"{folder.name} holds no weights"


def same_weights(one: Path, other: Path) -> str | None:
    """What is wrong, where two model folders should hold the same weights."""
    try:
        first, second = tensors(one / "model.safetensors"), tensors(other / "model.safetensors")
    except (OSError, ValueError, LookupError) as error:
        return f"weights cannot be read: {error!r}"
    different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    return f"the weights are not those of the undisturbed command: {', '.join(different[:3])}" if different else None


def trained(run: str, like: str | None = None, steps: int | None = 2) -> Check:
    """A finished run below the working folder: a whole model, records up to the last step; with `like` the weights of
    that sound run."""

    def check(shop: Workshop, ended: Ended) -> str | None:
        folder = shop.work / run
        wrong = model_folder(folder / "model")
        if wrong is None and like is not None:
            wrong = same_weights(folder / "model", shop.sound / like / "model")
        return wrong or records(folder / "metrics.jsonl", steps)

    return check


def records(path: Path, last: int | None, first: int | None = None) -> str | None:
    """What is wrong with the records of a run: each step stands there once, in order, from `first` to `last`."""
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        seen = [record["step"] for record in found if record["kind"] == "train"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"the records cannot be read: {error!r}"
    is_wrong = seen != sorted(set(seen)) or (last is not None and seen[-1:] != [last])
    if is_wrong or (first is not None and seen[:1] != [first]):
        return f"the records hold the steps {seen}"
    return None


def printed(expected: str) -> Check:
    """The output is that of the undisturbed command, which the sound file `expected` holds."""

    def check(shop: Workshop, ended: Ended) -> str | None:
        wanted = (shop.sound / expected).read_text()
        return None if ended.stdout == wanted else f"printed {ended.stdout[:300]!r}, not {wanted[:300]!r}"

    return check


def says(pattern: str) -> Check:
    """The output holds what a regular expression describes."""
    return lambda shop, ended: None if re.search(pattern, ended.stdout) else f"printed {ended.stdout[:300]!r}"


def figures(shop: Workshop, ended: Ended) -> str | None:
    """The output of `evaluate`: names and finite numbers."""
    rows = [line.split() for line in ended.stdout.splitlines()]
    try:
        values = {name: float(value) for name, value in rows}
    except ValueError:
        return f"printed {ended.stdout[:300]!r}"
    return None if values.get("items", 0) > 0 and all(map(math.isfinite, values.values())) else f"figures: {values}"


def data_sets(output: str, like: str | None = None, names: tuple[str, ...] = ("train", "validation")) -> Check:
    """Data sets below the working folder that are what their manifests say; with `like` the same bytes as those."""
    return lambda shop, ended: _data_sets(shop, output, like, names)


def _data_sets(shop: Workshop, output: str, like: str | None, names: tuple[str, ...]) -> str | None:
    import hashlib

    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    for name in names:
        folder = shop.work / output / name
        try:
            manifest = strict_json(folder / "manifest.json")
            rows = 0
            for shard in manifest["shards"]:
                content = (folder / shard["file"]).read_bytes()
                if hashlib.sha256(content).hexdigest() != shard["sha256"] or len(content) != shard["bytes"]:
                    return f"{name}/{shard['file']} is not what the manifest says"
                table = pq.read_table(folder / shard["file"])
                rows += table.num_rows
                if set(table.column_names) != set(manifest["columns"]):
                    return f"{name}: columns {table.column_names}"
                if manifest["vocab_size"] and "input_ids" in table.column_names:
                    tokens = pc.min_max(table["input_ids"].combine_chunks().flatten()).as_py()
                    if not 0 <= tokens["min"] <= tokens["max"] < manifest["vocab_size"]:
                        return f"{name}: tokens {tokens} of {manifest['vocab_size']}"
            if not rows or rows != manifest["samples"]:
                return f"{name}: {rows} rows, the manifest says {manifest['samples']}"
        except (OSError, ValueError, LookupError, TypeError) as error:
            return f"{name} cannot be read: {error!r}"
        if like is not None:
            other = strict_json(shop.sound / like / name / "manifest.json")
            if other["shards"] != manifest["shards"]:
                return f"{name} does not hold what the undisturbed command makes"
    return None


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def report(output: str) -> Check:
    """A report: JSON without NaN, CSV whose texts are no formulas, nothing that a reader's program would obey."""

    def check(shop: Workshop, ended: Ended) -> str | None:
        folder = shop.work / output
        try:
            found = strict_json(folder / "report.json")
            texts = {name: (folder / name).read_bytes().decode() for name in ("report.md", "report.csv", "report.html")}
            rows = list(csv.reader(texts["report.csv"].splitlines()))
        except (OSError, ValueError) as error:
            return f"the report cannot be read: {error!r}"
        if not isinstance(found, dict) or not rows:
            return "the report is empty"
        if len({len(row) for row in rows}) != 1:
            return "report.csv has rows of different lengths"
        for row in found["rows"]:
            wrong = _reported(shop.work, row)
            if wrong:
                return f"report.json: {wrong}"
        for row in rows:
            for cell in row:
                if cell.startswith(FORMULA) and not is_number(cell):
                    return f"report.csv holds the formula {cell!r}"
        return obeyed(texts["report.md"], "report.md") or _html(texts["report.html"]) or _controls(texts["report.csv"])

    return check


def _reported(work: Path, row: dict) -> str | None:
    """What is wrong with a row of a report: its values stand in the records of its runs, and its mean is theirs."""
    for folder, value in zip(row["folders"], row["values"], strict=True):
        seen = []
        for line in (work / folder / "metrics.jsonl").read_bytes().splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                seen.append(record.get(row["metric"]) if isinstance(record, dict) else None)
        if value not in seen:
            return f"{row['metric']} is {value} of {folder}, whose records say {seen}"
    mean = statistics.fmean(row["values"])
    return None if math.isclose(mean, row["mean"], rel_tol=1e-12) else f"the mean of {row['values']} is {row['mean']}"


def _html(text: str) -> str | None:
    return (
        "report.html holds what somebody planted"
        if re.search(r"<script>alert|<img src=x|javascript:alert\(1\)['\"]", text)
        else _controls(text)
    )


def obeyed(text: str, name: str) -> str | None:
    """What a reader of Markdown would obey in `text`: tags, links that run code; and what a terminal would."""
    # Code and escaped signs are shown as they stand.
    plain = re.sub(r"`[^`\n]*`|\\.", "", text)
    if re.search(r"<(script|img)", plain) or "](javascript:" in plain:
        return f"{name} holds what somebody planted"
    return _controls(text)


def _controls(text: str) -> str | None:
    found = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", text)
    return f"what was written holds {found[0]!r}" if found else None


def results(tasks: tuple[str, ...], like: str | None = None) -> Check:
    """Results of fine-tuning: figures between -1 and 1, predictions for every test row; `like` an undisturbed one."""

    def check(shop: Workshop, ended: Ended) -> str | None:
        folder = shop.work / "tuned"
        try:
            found = strict_json(folder / "results.json")
            text = (folder / "results.md").read_bytes().decode()
            by_name = {task["task"]: task for task in found["tasks"]}
        except (OSError, ValueError, LookupError, TypeError) as error:
            return f"the results cannot be read: {error!r}"
        if not by_name or not set(by_name) <= set(tasks):
            return f"results of {sorted(by_name)}, asked were {tasks}"
        for task in by_name.values():
            for split in task["splits"]:
                values = [value for figure in split["figures"].values() for value in figure["values"]]
                if not values or not all(isinstance(value, (int, float)) and -1 <= value <= 1 for value in values):
                    return f"{task['task']}: figures {values[:4]}"
        wrong = _scored(shop, by_name["cola"]) if "cola" in by_name and "glue" in ended.argv else None
        if wrong is not None:
            return wrong
        if like is not None and found["tasks"] != strict_json(shop.sound / like / "results.json")["tasks"]:
            return "the results are not those of the undisturbed command"
        return obeyed(text, "results.md")

    return check


def _scored(shop: Workshop, task: dict) -> str | None:
    """What is wrong with CoLA's figure: it is Matthews' of the predictions that lie there and GLUE's labels."""
    rows = (shop.work / "glue/CoLA/dev.tsv").read_bytes().decode().rstrip("\n").split("\n")
    labels = [int(row.split("\t")[1]) for row in rows]
    answers = strict_json(shop.work / "tuned/cola/seed-0/predictions/dev.json")
    if len(answers) != len(labels):
        return f"{len(answers)} predictions for {len(labels)} examples"
    both = Counter(zip(labels, answers, strict=True))
    product = math.prod(both[1, x] + both[0, x] for x in (0, 1)) * math.prod(both[x, 1] + both[x, 0] for x in (0, 1))
    expected = (both[1, 1] * both[0, 0] - both[1, 0] * both[0, 1]) / math.sqrt(product) if product else 0.0
    (value,) = task["splits"][0]["figures"]["matthews"]["values"]
    return (
        None if math.isclose(value, expected, abs_tol=1e-9) else f"Matthews is {value}, the predictions give {expected}"
    )

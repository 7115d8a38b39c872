"""The page's tables: each row is one measurement, or says why there is none."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_kit.prediction import card_of, milliseconds, modelled, tokens_per_second
from gpu_kit.records import ABSENT, DONE, FAILED
from gpu_kit.setting import BASELINE, Setting

NOTHING = "–"
# Launches of a block that are shown, and letters of their names.
MOST_LAUNCHES, NAMED = 12, 60


@dataclass
class Section:
    """A heading, paragraphs, a table, and lines as a terminal shows them."""

    title: str
    texts: list[str] = field(default_factory=list)
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    lines: str = ""


def sections(setting: Setting, newest: dict[str, dict], prediction: dict | None) -> Iterator[Section]:
    """All sections, of the newest rows by key."""
    yield _environment(setting, newest)
    yield _proofs(newest)
    yield _doctor(newest)
    yield _multiples(setting, newest)
    yield _blocks(setting, newest, prediction)
    yield _launches(newest)
    yield _times("Softmax attention by itself", "2/attention", newest)
    yield _times("Operations", "2/operation/", newest)
    yield _training(setting, newest, prediction)
    yield _resumed(newest)
    yield _learning(newest)
    yield _left_out(newest)


def _of(newest: dict[str, dict], prefix: str) -> dict[str, dict]:
    """Key without its prefix -> row."""
    return {key.removeprefix(prefix): row for key, row in newest.items() if key.startswith(prefix)}


def _number(value: float | None, digits: int = 3) -> str:
    return NOTHING if value is None else f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def _environment(setting: Setting, newest: dict[str, dict]) -> Section:
    section = Section("What was measured with", header=["", ""])
    answer = newest.get("1/environment", {}).get("answer")
    if isinstance(answer, dict):
        section.rows = [[name, str(value)] for name, value in answer.items()]
    commits = sorted({row["commit"] for row in newest.values() if row.get("commit")})
    section.rows += [["commit", ", ".join(commits) or NOTHING]]
    if setting.quick:
        section.texts.append("Tried with --quick: small sizes, whose times say nothing.")
    if setting.engines == ("null",):
        section.texts.append("DeepSpeed is not installed: whole models are trained by Accelerate alone.")
    return section


def _proofs(newest: dict[str, dict]) -> Section:
    section = Section(
        "Kernels against the equations",
        [
            "Largest relative errors of Triton's kernels over all hard inputs, against the equations in float64 on the "
            "CPU. Same bits: of two runs."
        ],
        ["operation, precision", "cases", "result", "gradients", "same bits", "verdict"],
    )
    for name, row in _of(newest, "1/proof/").items():
        if row["status"] != DONE:
            section.rows.append([name, *[NOTHING] * 4, f"{row['status']}: {row['answer']}"])
            continue
        cases = row["answer"]["cases"].values()
        worst = [_number(max(case[index] for case in cases), 2) for index in (0, 1)] if cases else [NOTHING] * 2
        bits = sum(case[2] for case in cases)
        verdict = "; ".join(row["answer"]["wrong"]) or "right"
        section.rows.append([name, str(len(cases)), *worst, f"{bits} of {len(cases)}", verdict])
    return section


def _doctor(newest: dict[str, dict]) -> Section:
    section = Section("What longmix doctor says: versions, and whether auto takes each kernel here")
    row = newest.get("1/doctor")
    if row is None or row["status"] != DONE:
        section.texts.append("Not asked yet." if row is None else f"{row['status']}: {row['answer']}")
        return section
    section.texts += [f"Exit code {row['answer']['code']}: something is wrong."] * (row["answer"]["code"] != 0)
    section.lines = row["answer"]["text"]
    return section


def _multiples(setting: Setting, newest: dict[str, dict]) -> Section:
    """Every block beside the transformer's fastest."""
    found = _of(newest, "2/block/")
    answers = {tuple(name.split("/")): row["answer"] for name, row in found.items() if row["status"] == DONE}

    def time(answer: dict, measure: str) -> float:
        return setting.share_of_blocks(answer["blocks"]) * answer[measure]["median"]

    section = Section(
        "Blocks beside the transformer's",
        [
            "Forward and backward pass in multiples of the transformer's, the fastest of that with our kernel of "
            "rotary positions, plain PyTorch's and torch.compile's; by graphs, or as PyTorch launches both where one "
            "of them has none."
        ],
        ["block", "N", "by", "times", "measured"],
    )
    for (layer, length, way), answer in answers.items():
        base = BASELINE + "-documents" * layer.endswith("-documents")
        others = [other for (name, n, _), other in answers.items() if (name, n) == (base, length)]
        if layer != base and others:
            has_graphs = all(one.get("graph") for one in (answer, *others))
            measure = "graph" if has_graphs else "both"
            multiple = time(answer, measure) / min(time(other, measure) for other in others)
            told = "by graphs" if has_graphs else "as launched"
            section.rows.append([layer, length, way, f"{multiple:.2f}", told])
    if not section.rows:
        section.texts.append("Nothing to compare yet.")
    return section


def _blocks(setting: Setting, newest: dict[str, dict], prediction: dict | None) -> Section:
    has_model = prediction is not None and card_of(setting.card) is not None
    section = Section(
        "Blocks of the base models",
        [
            "Milliseconds of one block (mixer, feed-forward layer, residual connections), weights in half precision: "
            "forward, and forward and backward, as PyTorch launches it and, without waiting for that, by a graph; "
            "models of equal parameters: for each layer of the transformer, so that 8 of S3Attention's blocks count as "
            "12. The model's figure is computed from bytes and operations (benchmarks/gpu_cost.py), not measured"
            + (
                f" and is of {modelled(setting.card)}: forward and backward, beside compiled that of portable PyTorch."
                if has_model
                else "; there is none for this card."
            )
        ],
        ["block", "N", "by", "forward", "both", "p20 to p80", "by a graph", "memory, MB", "error", "clock", "model"],
    )
    for name, row in _of(newest, "2/block/").items():
        layer, length, way = name.split("/")
        if row["status"] != DONE:
            section.rows.append([layer, length, way, *[NOTHING] * 7, f"{row['status']}: {row['answer']}"])
            continue
        answer = row["answer"]
        factor = setting.share_of_blocks(answer["blocks"])
        documents = layer.endswith("-documents")
        model = layer.removesuffix("-documents")
        predicted = milliseconds(prediction, setting.card, model, way, int(length), documents)
        section.rows.append([layer, length, way, *_time_cells(answer, factor), _number(predicted)])
    return section


def _time_cells(answer: dict, factor: float = 1.0) -> list[str]:
    both = answer["both"]
    return [
        _number(factor * answer["forward"]["median"]),
        _number(factor * both["median"]),
        f"{_number(factor * both['p20'])} to {_number(factor * both['p80'])}",
        _number(factor * answer["graph"]["median"]) if answer.get("graph") else NOTHING,
        _number(answer["memory"]),
        f"{answer['error']:.0e}",
        answer["clocks"][-1].get("clocks.sm", NOTHING),
    ]


def _launches(newest: dict[str, dict]) -> Section:
    """Where the time of blocks by kernels goes."""
    section = Section(
        "What the blocks launch",
        [f"Of each block by our kernels the {MOST_LAUNCHES} longest, forward and backward, by PyTorch's profiler."],
        ["block", "N", "launched", "times", "microseconds"],
    )
    for name, row in _of(newest, "2/block/").items():
        layer, length, way = name.split("/")
        if row["status"] == DONE and way == "kernels":
            for launch, count, microseconds in row["answer"].get("launches", [])[:MOST_LAUNCHES]:
                section.rows.append([layer, length, launch[:NAMED], str(count), _number(microseconds)])
    return section


def _times(title: str, prefix: str, newest: dict[str, dict]) -> Section:
    section = Section(
        title,
        ["Milliseconds, as those of blocks; the cache is flushed before each call."],
        ["what", "N", "by", "forward", "both", "p20 to p80", "by a graph", "memory, MB", "error", "clock"],
    )
    for key, row in _of(newest, prefix).items():
        *name, length, way = key.strip("/").split("/")
        label = [name[0].strip("-") if name else "attention", length, way]
        if row["status"] == DONE:
            section.rows.append([*label, *_time_cells(row["answer"])])
        else:
            section.rows.append([*label, *[NOTHING] * 6, f"{row['status']}: {row['answer']}"])
    return section


def _training(setting: Setting, newest: dict[str, dict], prediction: dict | None) -> Section:
    section = Section(
        "Whole models in training",
        [
            "longmix train on rows of 512 random tokens; the engine null is Accelerate. MFU counts matrix products, "
            "convolutions and softmax attention, forward and backward. Waits: calls in which a step waits "
            "for the GPU, each step being logged. "
            "The model's figure is what its layers alone would allow, with Triton's kernels where the run had them, "
            "without embeddings, head, loss and optimizer."
        ],
        ["model, engine, precision", "tokens/s", "p20 to p80", "MFU", "memory, MB", "waits", "loss", "model", "trace"],
    )
    for prefix in ("3/speed/", "3/cards/"):
        for name, row in _of(newest, prefix).items():
            answer = row["answer"]
            if row["status"] != DONE:
                section.rows.append([name, *[NOTHING] * 7, f"{row['status']}: {answer}"])
                continue
            predicted = tokens_per_second(prediction, setting, name.split("/")[0], answer)
            label = f"{name}, {answer['cards']} cards" if "cards" in answer else name
            section.rows.append(
                [
                    label,
                    _number(answer["tokens_per_second"]),
                    f"{_number(answer['p20'])} to {_number(answer['p80'])}" if "p20" in answer else NOTHING,
                    NOTHING if answer["mfu"] is None else f"{100 * answer['mfu']:.1f} %",
                    _number(answer.get("memory")),
                    _number(answer.get("waits")),
                    " to ".join(_number(value, 4) for value in answer["loss"]),
                    _number(predicted),
                    answer.get("trace") or NOTHING,
                ]
            )
    return section


def _resumed(newest: dict[str, dict]) -> Section:
    section = Section(
        "Killed and resumed",
        ["Losses behind the resume, against those of a run that was not killed."],
        ["run", "killed at step", "resumed at", "steps compared", "equal to the bit", "largest relative difference"],
    )
    for name, row in _of(newest, "3/resume/").items():
        answer = row["answer"]
        if row["status"] != DONE:
            section.rows.append([name, *[NOTHING] * 4, f"{row['status']}: {answer}"])
            continue
        counts = [str(answer[part]) for part in ("killed_at", "resumed_at", "compared", "equal")]
        section.rows.append([name, *counts, _number(answer["largest"], 2)])
    return section


def _learning(newest: dict[str, dict]) -> Section:
    section = Section(
        "Learning on an equal budget",
        [
            "Models of equal parameters, the same tokens for each in masked language modelling, the same search of the "
            "learning rate; then fine-tuned, with its search. Scores are means over seeds of what starts from "
            "pre-trained, from random weights, and from random ones of the pre-trained scale. benchmarks/glue.py makes "
            "the whole table."
        ],
        ["model", "tokens", "rate", "held-out loss before", "after", "masked accuracy, %", "scores"],
    )
    for name, row in _of(newest, "4/learning/").items():
        answer = row["answer"]
        if row["status"] != DONE:
            section.rows.append([name, *[NOTHING] * 5, f"{row['status']}: {answer}"])
            continue
        tuned = newest.get(f"4/tasks/{name}", {"status": "not measured", "answer": "the time ran out"})
        scores = f"{tuned['status']}: {tuned['answer']}"
        if tuned["status"] == DONE:
            scores = ", ".join(
                f"{task} {' / '.join(f'{100 * score:.1f}' for score in starts.values())}"
                for task, starts in tuned["answer"]["scores"].items()
            )
        losses = [_number(value, 4) for value in answer["loss"]]
        accuracy = f"{100 * answer['masked_accuracy']:.1f}"
        section.rows.append([name, f"{answer['tokens']:,}", f"{answer['rate']:g}", *losses, accuracy, scores])
    return section


def _left_out(newest: dict[str, dict]) -> Section:
    """What was planned and has no row, and how the rest ended."""
    section = Section("What there is", header=["stage", "planned", "done", "not here", "failed", "not measured"])
    for key, row in newest.items():
        stage, _, kind = key.partition("/")
        if kind != "plan":
            continue
        status = [newest.get(one, {}).get("status") for one in row["answer"]]
        counts = [status.count(kind) for kind in (DONE, ABSENT, FAILED, None)]
        section.rows.append([stage, *map(str, (len(status), *counts))])
    section.texts.append("Not measured: the time ran out. The same command goes on there.")
    return section

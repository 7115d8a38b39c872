"""The page of a table: a pure function of its results, whatever of them is missing."""

import statistics
import textwrap
from typing import Any

import tables
from glue_table.budget import LENGTH, PILOT, PILOT_TASK
from glue_table.cases import STARTS
from glue_table.data import BIGRAM, EVALUATED_SHARE, TASKS
from glue_table.results import CONTROLS, differences, gate, is_above, of_first_seed
from glue_table.spread import crossing, score

from longmix.trainer.tables.figures import ABSENT, percent

ACCURACY, LOSS = 1, 2  # columns of a curve
CSV_COLUMNS = ("table", "row", "start", "task", "pretraining_seed", "tuning_seed", "figure", "value")


def render(results: dict[str, Any], command: str) -> str:
    """The page as Markdown."""
    budget = results["budget"]
    sections = [
        "# Equal pre-training, then fine-tuning",
        _paragraph(
            f"Every row has {budget['tokens']:,} tokens of {' and '.join(results['corpus']['files'])} "
            f"(vocabulary {results['corpus']['vocabulary']:,}, rows of 128 tokens, each of one document), the same "
            f"recipe ({budget['recipe']}) and the same search; `{command}` makes the page. `fnet` and `bert` are "
            f"transformers' own, made as large. {_samples(results)}"
        ),
        _pretraining(results),
        _curves(results),
        "## Fine-tuning",
        _paragraph(
            f"Every score is on the dev set{_reviews(results)}, by which no run of the table is chosen. "
            f"There are {budget['tuning_seeds']} seeds of fine-tuning for each of {budget['pretraining_seeds']} seeds "
            f"of pre-training, {budget['control_seeds']} for each of as many draws of a control's weights. Rates of "
            "fine-tuning are searched for each row, "
            f"task and start alike among {_list(budget['tuning_rates'])}, by one seed, on a tenth of the training "
            "data, which also chooses the checkpoint of each run; where fine-tuning diverges with that rate, or a "
            "seed ends with a Matthews correlation of 0 on that "
            "tenth, as the same answer to every example has, all seeds of that model have the next smaller one, unless "
            "it helps with none. The rate of a matrix of the layers, and of a table of embeddings, is that times its "
            "root mean square over 0.02, where that is more than 1. The "
            "controls: `random`, weights as a new model has; `random at scale`, every tensor drawn anew with "
            "the mean and the standard deviation of the pre-trained one."
        ),
        _paragraph(
            "Points are 100 x the metric. `±` is the standard error of the mean over all seeds. Spreads are standard "
            "deviations by the two-way analysis of variance (by moments; seeds of fine-tuning are the same for every "
            "seed of pre-training): by fine-tuning, of its seeds; by pre-training, what the variance of the means of "
            "its seeds has beyond what runs of one seed of each differ by, 0.0 where it has less. Neither they nor `±` "
            "hold the error of a reported set of finite size, nor that of the choice of a rate by one seed. "
            "**Bold**: with several seeds of pre-training and draws, "
            "pre-training lies above both controls by more than two standard errors; that is no test."
        ),
        _paragraph(_gate(results["tasks"].get(PILOT_TASK, {"rows": {}})["rows"].get(PILOT, {}))),
        *(_task(results, name) for name in results["tasks"]),
        _cost(results),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _samples(results: dict[str, Any]) -> str:
    """Whether rows have read the same samples: the tokens of a seed tell, for the order of samples is the seed's."""
    of_rows = {row: tuple(run["tokens"] for run in found["runs"]) for row, found in results["rows"].items()}
    alike: dict[tuple[int, ...], list[str]] = {}
    for row, tokens in of_rows.items():
        if len(tokens) == results["budget"]["pretraining_seeds"]:
            alike.setdefault(tokens, []).append(row)
    if sum(map(len, alike.values())) < max(2, sum(map(bool, of_rows.values()))):
        return ""  # not all have finished that have begun
    if len(alike) == 1:
        return "All read the same samples in the same order."
    groups = sorted(alike.items(), key=lambda one: -len(one[1]))
    told = [
        f"{'the other rows' if number == 0 else _names(rows)} {' and '.join(f'{tokens:,}' for tokens in seeds)}"
        for number, (seeds, rows) in enumerate(groups)
    ]
    return (
        "Not all have read the same samples of it, since another version of longmix draws them in another order: "
        f"{', '.join(reversed(told))} tokens."
    )


def _gate(starts: dict[str, Any]) -> str:
    """By the first seed, which decides whether the other rows run, and by all."""
    passed, told = gate(of_first_seed(starts))
    if all(len(found["scores"]) == 1 for found in starts.values()):
        return told
    nevertheless = " Other rows run nevertheless with `--past-gate`." if passed is False else ""
    return f"{told}{nevertheless} With all seeds: {gate(starts)[1]}"


def _names(rows: list[str]) -> str:
    return ", ".join(f"`{row}`" for row in rows)


def _reviews(results: dict[str, Any]) -> str:
    if "imdb" not in results["tasks"]:
        return ""
    passed_over = f"{results['budget']['passed_over']:,}"
    how = f"without the {passed_over} by which the way of fine-tuning was found"
    return f" (of IMDb: on a fixed part of its test reviews, {how})"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, tables.WIDTH, break_long_words=False, break_on_hyphens=False)


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


# -----------------------------------------------------------------------------
# Pre-training.


def _pretraining(results: dict[str, Any]) -> str:
    bigram = results["counted"][BIGRAM]
    lines = [
        [name, "", "", "", percent(figures["masked_accuracy"]), _number(figures.get("loss")), "", "", ""]
        for name, figures in results["counted"].items()
    ]
    reference = _outside(results["rows"].get("transformer", {}))
    for row, found in results["rows"].items():
        runs = found["runs"]
        lines.append(
            [
                f"`{row}`",
                ABSENT if found["measured"] is None else _millions(found["measured"]["parameters"]),
                _against(_outside(found), reference),
                ABSENT if found["rate"] is None else f"{found['rate']:g}",
                _seeds(runs, "masked_accuracy", percent),
                _seeds(runs, "loss", _number),
                ABSENT if found["measured"] is None else f"{found['measured']['tokens_per_second']:,.0f}",
                _passed(runs, ACCURACY, bigram["masked_accuracy"]),
                _passed(runs, LOSS, bigram["loss"]),
            ]
        )
    header = [
        *("", "parameters", "outside embeddings", "rate", "masked accuracy, %", "loss", "tokens/s"),
        *("M tokens to pass the bigram's accuracy", "its loss"),
    ]
    text = _paragraph(
        f"Masked accuracy and loss (nats) at a share of {EVALUATED_SHARE:g} of masked tokens on held-out documents, "
        f"the same positions for counting and for all rows; every seed's figure. All {results['corpus']['tokens']:,} "
        "tokens of the training documents are counted. The rate is the best of "
        f"{_list(results['budget']['rates'])} by the held-out loss after a whole schedule over "
        f"{percent(results['budget']['search_share'], 0)} % of the tokens, {_chosen_on(results)}. "
        f"{_precision(results)} Tokens/s are of training: of a core, "
        "or of the GPU where there is one; under different load, they do not compare. The tokens to "
        f"pass the bigram are read from the curve of a run between two evaluations{_falling(results)}."
    )
    rates = results["budget"]["rates"]
    ends = [(f"`{row}`", _end(found["rate"], rates)) for row, found in results["rows"].items()]
    return "\n\n".join(["## Pre-training", text, tables.draw(header, lines), *_told(ends)])


def _chosen_on(results: dict[str, Any]) -> str:
    is_apart = results["shown"] == "test"
    return f"on {'other held-out documents' if is_apart else 'the documents that are shown here, too'}"


def _precision(results: dict[str, Any]) -> str:
    alike: dict[str, list[str]] = {}
    for row, found in results["rows"].items():
        for precision in dict.fromkeys(run["precision"] for run in found["runs"]):
            alike.setdefault(precision, []).append(row)
    told = [f"{precision}{f' for {_names(rows)}' if len(alike) > 1 else ''}" for precision, rows in alike.items()]
    return f"Pre-training ran in {', in '.join(told)}, fine-tuning, on CPUs, in fp32." if told else ""


def _end(rate: float | None, searched: list[float]) -> str | None:
    """Which end of the searched rates this one is, beyond which a better one may lie; None: neither."""
    ends = {} if len(searched) < 2 else {min(searched): "smallest", max(searched): "largest"}
    return ends.get(rate)


def _told(ends: list[tuple[str, str | None]]) -> list[str]:
    """A paragraph of those whose rate lies at an end; none if there are none."""
    told = " ".join(
        f"Of {', '.join(name for name, found in ends if found == end)} the best rate is the {end} of those searched."
        for end in ("smallest", "largest")
        if any(found == end for _, found in ends)
    )
    return [_paragraph(told)] if told else []


def _falling(results: dict[str, Any]) -> str:
    share = results["decay_share"]
    told = "; where they are in the last {} % of the budget, the falling rate has helped"
    return "" if share is None else told.format(percent(share, 0))


def _curves(results: dict[str, Any]) -> str:
    """Masked accuracy against tokens, the mean over seeds, where the runs were evaluated: between there is nothing."""
    tokens, evaluations = results["budget"]["tokens"], results["budget"]["evaluations"]
    points = [number * tokens / evaluations for number in range(1, evaluations + 1)]
    header = ["masked accuracy, %, after M tokens", *(f"{point / 1e6:.3g}" for point in points)]
    lines = []
    for row, found in results["rows"].items():
        curves = [run["curve"] for run in found["runs"]]
        if curves:
            cells = [statistics.fmean(_nearest(curve, point) for curve in curves) for point in points]
            lines.append([f"`{row}`", *map(percent, cells)])
    return tables.draw(header, lines) if lines else ""


def _nearest(curve: list[list[float]], tokens: float) -> float:
    return min(curve, key=lambda point: abs(point[0] - tokens))[ACCURACY]


def _seeds(runs: list[dict], figure: str, write) -> str:
    return ", ".join(write(run[figure]) for run in runs) or ABSENT


def _passed(runs: list[dict], column: int, level: float) -> str:
    found = [crossing(run["curve"], column, level) for run in runs]
    return ", ".join("not" if tokens is None else f"{tokens / 1e6:.1f}" for tokens in found) or ABSENT


def _outside(found: dict) -> int | None:
    """Parameters outside embeddings."""
    return (found.get("measured") or {}).get("parameters_outside_embeddings")


def _against(mine: int | None, reference: int | None) -> str:
    if mine is None:
        return ABSENT
    return _millions(mine) + ("" if reference is None else f" ({100 * (mine / reference - 1):+.1f} %)")


def _millions(value: int) -> str:
    return f"{value / 1e6:.2f} M"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# -----------------------------------------------------------------------------
# Fine-tuning.


def _task(results: dict[str, Any], name: str) -> str:
    task = results["tasks"][name]
    header = [
        "",
        STARTS[0],
        "spread by pre-training",
        "by fine-tuning",
        *CONTROLS,
        *(f"above {one}" for one in CONTROLS),
    ]
    lines = []
    for row, starts in task["rows"].items():
        scores = {start: score(found["scores"]) for start, found in starts.items()}
        first = scores.get(STARTS[0])
        apart = differences(starts)
        mean = _score(first)
        lines.append(
            [
                f"`{row}`",
                f"**{mean}**" if is_above(starts) else mean,
                *(
                    _spread(None if first is None else one)
                    for one in (first and first.pretraining, first and first.tuning)
                ),
                *(_score(scores.get(control)) for control in CONTROLS),
                *(_difference(apart.get(control)) for control in CONTROLS),
            ]
        )
    baselines = {found["baseline"] for starts in task["rows"].values() for found in starts.values()}
    majority = f"; always answering the most frequent class gives {percent(baselines.pop())}" if baselines else ""
    title = TASKS[name].title.format(labels=results["budget"]["labels"])
    about = _paragraph(
        f"{TASKS[name].metric}, {task['examples']:,} training examples, {TASKS[name].epochs} epochs, "
        f"{task['reported']:,} examples in the reported split{majority}. A logistic regression of the TF-IDF weights "
        f"of the same {LENGTH} pieces (its penalty by cross-validation of the training examples) has "
        f"{percent(task['bag_of_words'])}."
    )
    diverged = " ".join(
        f"Of `{row}`, {start}, {_other(found)} of {len(found['rates'])} have a smaller rate than the {found['rate']:g} "
        "that was chosen, with which fine-tuning diverged or did not begin to learn."
        for row, starts in task["rows"].items()
        for start, found in starts.items()
        if _other(found)
    )
    rates = results["budget"]["tuning_rates"]
    ends = [
        (f"`{row}` ({start})", _end(found["rate"], rates))
        for row, starts in task["rows"].items()
        for start, found in starts.items()
    ]
    notes = [*([_paragraph(diverged)] if diverged else []), *_told(ends)]
    return "\n\n".join([f"### {title}", about, tables.draw(header, lines), *notes])


def _other(found: dict[str, Any]) -> int:
    """How many seeds of pre-training, or draws, have another rate than the one that was chosen."""
    return sum(rate != found["rate"] for rate in found["rates"])


def _score(found) -> str:
    if found is None:
        return ABSENT
    return percent(found.mean) + ("" if found.error is None else f" ± {percent(found.error)}")


def _spread(value: float | None) -> str:
    return ABSENT if value is None else percent(value)


def _difference(found) -> str:
    if found is None:
        return ABSENT
    return f"{100 * found.value:+.1f}" + ("" if found.error is None else f" ± {percent(found.error)}")


# -----------------------------------------------------------------------------
# What it took.


def cost_lines(stages: list[dict[str, Any]]) -> list[list[str]]:
    """Cells of the table of stages, and of all together; each has the fields of plan.Estimate."""
    lines = [
        [one["stage"], str(one["runs"]), str(one["done"]), f"{one['hours']:.2f}", f"{one['hours_done']:.2f}"]
        for one in stages
    ]
    sums = [sum(one[name] for one in stages) for name in ("runs", "done", "hours", "hours_done")]
    return [*lines, ["all", str(sums[0]), str(sums[1]), f"{sums[2]:.2f}", f"{sums[3]:.2f}"]]


COST_HEADER = ["stage", "runs", "finished", "core-hours", "of the finished"]


def _of_all_rows(stages: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each stage with the sums over the rows."""
    return [
        {name: value if name == "stage" else sum(one[name] for one in parts) for name, value in parts[0].items()}
        for parts in zip(*stages.values(), strict=True)
    ]


def _cost(results: dict[str, Any]) -> str:
    made = "; ".join(f"commit {one['commit']}, {one['machine']}, {one['threads']} threads" for one in results["made"])
    told = _paragraph(
        "Hours of a core (of the GPU where there is one); of what has not finished, an estimate. What a run did before "
        f"it was killed is not counted. {f'Measured at {made}.' if made else ''}"
    )
    return "\n\n".join(["## What it took", tables.draw(COST_HEADER, cost_lines(_of_all_rows(results["stages"]))), told])


def csv_records(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Every figure on a line of its own; the columns are CSV_COLUMNS."""
    empty = dict.fromkeys(CSV_COLUMNS, "")
    lines = [
        {**empty, "table": "counting", "row": row, "figure": figure, "value": value}
        for row, figures in results["counted"].items()
        for figure, value in figures.items()
    ]
    for row, found in results["rows"].items():
        for run in found["runs"]:
            for figure in ("masked_accuracy", "loss", "tokens"):
                about = {"table": "pretraining", "row": row, "pretraining_seed": run["seed"]}
                lines.append({**empty, **about, "figure": figure, "value": run[figure]})
            for tokens, accuracy, loss in run["curve"]:
                about = {"table": f"curve, {tokens:.0f} tokens", "row": row, "pretraining_seed": run["seed"]}
                lines += [
                    {**empty, **about, "figure": figure, "value": value}
                    for figure, value in (("masked_accuracy", accuracy), ("loss", loss))
                ]
    for task, about in results["tasks"].items():
        for row, starts in about["rows"].items():
            for start, found in starts.items():
                for first, scores in zip(found["seeds"], found["scores"], strict=True):
                    for second, value in enumerate(scores):
                        place = {"table": "fine-tuning", "row": row, "start": start, "task": task}
                        seeds = {"pretraining_seed": first, "tuning_seed": second}
                        lines.append({**empty, **place, **seeds, "figure": TASKS[task].metric, "value": value})
    return lines

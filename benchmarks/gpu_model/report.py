"""The tables of the model of GPUs: for a terminal, and in docs/kernels.md."""

import math
import textwrap
from collections.abc import Callable, Iterable

import tables
from record import RESULTS

from longmix.data_prep.files import write_text
from longmix.trainer.tables.writing import aligned

from .cards import CARDS
from .corrected import MEASURED_ON, Factors
from .layers import BASELINE, GOALS, PORTABLE

DOCUMENT = RESULTS.parents[1] / "docs" / "kernels.md"
MARKS = "gpu model"
REFERENCE = "A100"
ABSENT = "–"
MARK = "in italics what misses its goal"
COMPILING = "seconds to compile"
Table = tuple[str, list[str], list[list[str]]]
Row = dict[str, object]


def layer_tables(layers: list[Row]) -> list[Table]:
    """(Title, header, rows) of each table of the layers' rows, as gpu_cost.py makes them."""
    made = []
    for documents in (False, True):
        which = "Packed documents" if documents else "One document in each sample"
        own = [row for row in layers if row["documents"] == documents]
        if own:
            made += [_costs(which, own), _milliseconds(which, own)]
    made.append(_multiples(layers))
    made += [table for table in _corrected(layers) if table[2]]
    return [*made, _programs(layers)] if any(row["triton"] for row in layers) else made


def kernel_tables(kernels: list[Row]) -> list[Table]:
    """The table of the kernels' rows, if there are any: compiled for each target, the dtypes of a kernel together."""
    header = ["kernel", "target", "registers", "spilled bytes", "shared bytes", "fits", "tensor core uses", COMPILING]
    found: dict[tuple[str, str], list[Row]] = {}
    for kernel in kernels:
        found.setdefault((kernel["name"], kernel["target"]), []).append(kernel)
    rows = []
    for place, own in sorted(found.items()):
        fields = ("registers", "spilled_bytes", "shared_bytes")
        ranges = [_range([kernel[field] for kernel in own]) for field in fields]
        fits = "yes" if all(kernel["fits"] for kernel in own) else "no"
        uses = _range([kernel["tensor_core_instructions"] for kernel in own])
        rows.append([*place, *ranges, fits, uses, _range([round(kernel["seconds"], 1) for kernel in own])])
    return [("Triton kernels, compiled ahead of time in all dtypes and shapes", header, rows)] if rows else []


def _range(values: list[float]) -> str:
    return f"{min(values)} to {max(values)}" if min(values) != max(values) else str(values[0])


def show(tables_found: list[Table]) -> None:
    """Print tables."""
    for title, header, rows in tables_found:
        print(f"\n{title}\n")
        print("\n".join(aligned(header, rows, right=range(1, len(header)))))


def redraw(found: dict[str, list[Row]], made: str) -> None:
    """Draw them in docs/kernels.md; `made` says when and with what."""
    parts = [textwrap.fill(verdict(found["layers"]), tables.WIDTH)]
    for title, header, rows in [*layer_tables(found["layers"]), *kernel_tables(found["kernels"])]:
        cells = [[f"`{row[0]}`", *row[1:]] for row in rows]
        parts += [f"**{title}**", tables.draw(header, cells)]
    text = DOCUMENT.read_text(encoding="utf-8")
    write_text(DOCUMENT, tables.replace(text, MARKS, "\n\n".join([*parts, made])))


def verdict(layers: list[Row]) -> str:
    """Which layers are faster than flash attention, in the digits of the tables, said plainly."""
    flash = {_place(row): row for row in layers if row["layer"] == BASELINE}
    sentences = []
    for documents, which in ((False, "one document in each sample"), (True, "packed documents")):
        faster = {}
        for row in layers:
            is_ours = row["layer"].partition(",")[0] != BASELINE and row["documents"] == documents
            if is_ours and round(_multiple(row, flash[_place(row)]), 2) < 1:
                faster.setdefault(row["layer"], []).append(str(row["positions"]))
        names = "; ".join(f"{name} at N = {', '.join(lengths)}" for name, lengths in faster.items())
        sentences.append(f"With {which}: {names or 'none'}.")
    found = " ".join(sentences)
    return f"Faster than flash attention on {REFERENCE}, by the model: {found} All others are as slow or slower."


def _costs(which: str, layers: list[Row]) -> Table:
    units = [("tensor cores", "tensor core"), ("TF32", "tf32"), ("fp32", "fp32"), ("fp64", "fp64")]
    header = [_lengths(layers), "launches", "GB moved", "MB kept", *(f"10⁹ operations, {name}" for name, _ in units)]
    rows = []
    for name, own in _by_layer(layers):
        gigas = [_each(own, lambda row, unit=unit: _giga(row["operations"][unit])) for _, unit in units]
        launches = _each(own, lambda row: f"{row['launches']:.0f}")
        moved = _each(own, lambda row: f"{row['bytes'] / 1e9:.1f}")
        rows.append([name, launches, moved, _each(own, lambda row: f"{row['kept'] / 1e6:.0f}"), *gigas])
    title = "launches, bytes moved, bytes kept for the backward pass, and operations of one layer, forward and backward"
    return f"{which}: {title}, in 16 bit", header, rows


def _giga(count: float) -> str:
    giga = count / 1e9
    return f"{giga:.0f}" if giga >= 10 or count == 0 else f"{giga:.1f}" if giga >= 0.1 else "< 0.1"


def _milliseconds(which: str, layers: list[Row]) -> Table:
    names = [card.name for card in CARDS]
    header = [_lengths(layers), *names, f"{REFERENCE}, only the programs' multiprocessors"]
    rows = []
    for name, own in _by_layer(layers):
        cells = [_each(own, lambda row, card=card: f"{row['milliseconds'][card]:.1f}") for card in names]
        serial = _each(own, lambda row: f"{row['milliseconds_of_programs'][REFERENCE]:.1f}")
        rows.append([name, *cells, serial])
    return f"{which}: milliseconds of one layer, forward and backward, by the model", header, rows


def _multiples(layers: list[Row]) -> Table:
    """How many times as long as flash attention, with rotary positions in one launch and in plain PyTorch."""
    header, columns = [_lengths(layers)], []
    for base, how in ((BASELINE, ""), (f"{BASELINE}, {PORTABLE}", ", positions in plain PyTorch")):
        of_base = {_place(row): row for row in layers if row["layer"] == base}
        for documents, which in ((False, "one document in each sample"), (True, "packed documents")):
            header.append(f"{which}{how}")
            columns.append((of_base, documents))

    def cell(own: list[Row], of_base: dict, documents: bool) -> str:
        these = [row for row in own if row["documents"] == documents]
        return _each(these, lambda row: _against_goal(_multiple(row, of_base[_place(row)]), row))

    rows = [[name, *(cell(own, *column) for column in columns)] for name, own in _by_layer(layers)]
    title = (
        f"{REFERENCE}: time on the programs' multiprocessors, in multiples of flash attention's, by the model; {MARK}"
    )
    return title, header, rows


def _corrected(layers: list[Row]) -> list[Table]:
    """What layers take if every kernel is as slow everywhere as where it was measured, and how slow that was."""
    factors = Factors(layers)
    of_flash = {_place(row): row for row in layers if row["layer"] == BASELINE}
    kinds = [(card.name, documents) for card in CARDS if card.dtype == "bfloat16" for documents in (False, True)]
    header = [_lengths(layers), *(f"{name}, {'packed' if documents else 'one document'}" for name, documents in kinds)]

    def multiples(own: list[Row], card: str, documents: bool) -> str:
        def multiple(row: Row) -> str:
            flash = factors.milliseconds(of_flash[_place(row)], card)
            return _against_goal(factors.milliseconds(row, card) / flash, row)

        return _each([row for row in own if row["documents"] == documents], multiple)

    known = [(layer, own) for layer, own in _by_layer(layers) if factors.knows(layer) and factors.knows(BASELINE)]
    rows = [[layer, *(multiples(own, *kind) for kind in kinds)] for layer, own in known]
    slow = [[f"{layer}: {kernel}", f"{factor:.1f}"] for (layer, kernel), factor in factors.medians.items()]
    return [
        (f"Time of a layer in multiples of the transformer's, corrected by an {MEASURED_ON}; {MARK}", header, rows),
        (f"How many times as long as by the model kernels took on an {MEASURED_ON}", ["layer: kernel", "times"], slow),
    ]


def _place(row: Row) -> tuple[object, object]:
    return row["documents"], row["positions"]


def _multiple(row: Row, flash: Row) -> float:
    return row["milliseconds_of_programs"][REFERENCE] / flash["milliseconds"][REFERENCE]


def _against_goal(multiple: float, row: Row) -> str:
    """In italics where a mixer with its kernels misses its goal."""
    shown = f"{multiple:.2f}"
    goal = GOALS[row["documents"]].get(row["positions"], math.inf)
    is_asked = "," not in row["layer"] and row["layer"] != BASELINE
    return f"*{shown}*" if is_asked and multiple > goal else shown


def _programs(layers: list[Row]) -> Table:
    """Kernels that leave multiprocessors without work."""
    header = [_lengths(layers), "documents", "programs of a launch, at least"]
    rows = []
    for name, own in _by_layer(layers):
        for documents in (False, True):
            these = [row for row in own if row["documents"] == documents]
            for kernel in sorted({launch["kernel"] for row in these for launch in row["triton"]}):
                programs = _each(these, lambda row, kernel=kernel: f"{_fewest(row, kernel)}")
                rows.append([f"{name}: {kernel}", "packed" if documents else "one", programs])
    cards = ", ".join(f"{card.multiprocessors} on {card.name}" for card in CARDS)
    return f"Programs of each Triton kernel; a card has multiprocessors for {cards}", header, rows


def _fewest(row: Row, kernel: str) -> int | str:
    """The fewest programs of a kernel's launches; a dash where it has none."""
    return min((launch["programs"] for launch in row["triton"] if launch["kernel"] == kernel), default="–")


def _lengths(layers: list[Row]) -> str:
    lengths = sorted({row["positions"] for row in layers})
    return f"N = {' / '.join(map(str, lengths))}"


def _by_layer(layers: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Rows of each layer, in their order."""
    found: dict[str, list[Row]] = {}
    for row in layers:
        found.setdefault(row["layer"], []).append(row)
    return list(found.items())


def _each(rows: list[Row], cell: Callable[[Row], str]) -> str:
    """The cells of all lengths, one if they are alike."""
    cells = [cell(row) for row in sorted(rows, key=lambda row: row["positions"])]
    return cells[0] if len(set(cells)) == 1 else " / ".join(cells) or ABSENT

"""Names of a forecast's figures, and what they say beside those of naive forecasts over the same windows.

A figure is `mse` or `mae`, of a naive forecast with its name before it (`last_value_mse`), of one variable with the
variable's behind it (`last_value_mse_of_OT`). All are of standardised values.
"""

import math
import re
from collections.abc import Mapping

NAIVE = {"last_value": "the last value, repeated", "seasonal": "the last season, repeated"}
_SHORT = {"last_value": "last value", "seasonal": "last season"}
ERRORS = ("mse", "mae")
# Series of more variables have no figures of each: every evaluation would be a list of thousands of numbers.
MOST_VARIABLES = 32
_OF_VARIABLE = re.compile(rf"((?:(?:{'|'.join(NAIVE)})_)?(?:{'|'.join(ERRORS)}))_of_(.+)", re.DOTALL)
_SHOWN_VARIABLES = 5


def of_variable(figure: str, variable: str) -> str:
    """The name of a figure of one variable."""
    return f"{figure}_of_{variable}"


def variable_of(name: str) -> tuple[str, str] | None:
    """(figure, variable) of a figure that is one variable's; None for all others."""
    found = _OF_VARIABLE.fullmatch(name)
    return None if found is None else (found[1], found[2])


def is_forecast(figures: Mapping[str, float]) -> bool:
    """Whether naive forecasts stand beside these figures."""
    return any(f"{naive}_{error}" in figures for naive in NAIVE for error in ERRORS)


def by_variable(figures: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The figures of each variable by their names without it; empty where there are none."""
    found: dict[str, dict[str, float]] = {}
    for name, value in figures.items():
        if (pair := variable_of(name)) is not None:
            found.setdefault(pair[1], {})[pair[0]] = value
    return found


def heading(name: str) -> str | None:
    """The name of a forecast's error for people, e.g. "last season: MSE"; None for all other figures."""
    naive, error = name.rpartition("_")[::2]
    if error not in ERRORS or (naive and naive not in NAIVE):
        return None
    return f"{_SHORT[naive]}: {error.upper()}" if naive else error.upper()


def table(figures: Mapping[str, float]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for people: model and naive forecasts of all variables together, and of each."""
    columns = [prefix + error for prefix in ("", *(f"{name}_" for name in NAIVE)) for error in ERRORS]
    columns = [name for name in columns if name in figures]
    header = ["variable", *map(heading, columns)]
    parts = {"all": figures, **by_variable(figures)}
    return header, [
        [variable, *("–" if values.get(name) is None else f"{values[name]:.4g}" for name in columns)]
        for variable, values in parts.items()
    ]


def verdict(figures: Mapping[str, float]) -> str | None:
    """One line that says to which naive forecast the model loses, in all or on which variables; None if to none."""
    said = [_lost(figures)]
    variables = {name: lost for name, values in by_variable(figures).items() if (lost := _lost(values)) is not None}
    if variables:
        shown = ", ".join(map(repr, list(variables)[:_SHOWN_VARIABLES]))
        more = len(variables) - _SHOWN_VARIABLES
        said.append(
            f"on {len(variables)} of {len(by_variable(figures))} variables it loses to a naive forecast "
            f"({shown}{f' and {more} more' if more > 0 else ''})"
        )
    return "; ".join(part for part in said if part is not None) or None


def _lost(figures: Mapping[str, float]) -> str | None:
    """The best naive forecast by squared error, if the model's error is not below it."""
    ours = figures.get("mse")
    errors = {naive: figures.get(f"{naive}_mse") for naive in NAIVE}
    errors = {naive: value for naive, value in errors.items() if value is not None and math.isfinite(value)}
    if ours is None or not errors:
        return None
    best = min(errors, key=errors.get)
    if ours < errors[best]:
        return None
    return f"the model loses to a naive forecast, {NAIVE[best]}: MSE {ours:.4g} against {errors[best]:.4g}"

"""Generated tasks' common settings and options: numbers of samples, and a seed from which each is drawn alone."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.split_names import SPLITS, TEST, TRAIN, VALIDATION
from longmix.data_prep.tasks.task_folder import Split, check_seed

RULE = "samples of their own, drawn by split, seed and number"


@dataclass(frozen=True, kw_only=True)
class GeneratedSettings:
    """Base of a generated task's settings; a field `some_name` is the option `--some-name`.

    Args:
        train_samples, validation_samples, test_samples: of each split.
        seed: another one gives other samples.

    Raises:
        UserError: with the option, its value and what is allowed.
    """

    train_samples: int
    validation_samples: int
    test_samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("train_samples", "validation_samples", "test_samples"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        check_seed(self.seed)

    def require(self, field: str, condition: bool, allowed: str) -> None:
        """Raise UserError with the option of `field`, its value and what is allowed, unless `condition` holds."""
        if not condition:
            raise UserError(f"{option_of(field)} is {getattr(self, field)}, but must be {allowed}")

    def splits(self, make_sample: Callable[[Any, str, int], Mapping[str, Any]]) -> dict[str, Split]:
        """The three splits of `write_task`, of samples `make_sample(settings, split, index)`."""

        def split_of(name: str, count: int) -> Split:
            return Split(lambda: (make_sample(self, name, index) for index in range(count)), RULE)

        counts = {TRAIN: self.train_samples, VALIDATION: self.validation_samples, TEST: self.test_samples}
        return {name: split_of(name, count) for name, count in counts.items()}

    def generator(self, split: str, index: int) -> np.random.Generator:
        """Random numbers for sample `index` of a split, the same whatever was drawn before."""
        return np.random.default_rng([self.seed, SPLITS.index(split), index])


def option_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def add_option(parser: argparse.ArgumentParser, settings: type[GeneratedSettings], field: str, text: str) -> None:
    """Add the option of a whole number `field`; `text` is its help, to which the default is added."""
    default = {item.name: item.default for item in dataclasses.fields(settings)}[field]
    # Absent unless given: given_options then leaves the default to the settings.
    parser.add_argument(
        option_of(field),
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help=f"{text} (default: {default})",
    )


def add_sample_options(parser: argparse.ArgumentParser, settings: type[GeneratedSettings]) -> None:
    """Add the options of GeneratedSettings."""
    add_option(parser, settings, "train_samples", "samples to train on")
    add_option(parser, settings, "validation_samples", "samples to choose a model by")
    add_option(parser, settings, "test_samples", "samples for the last word")
    add_option(parser, settings, "seed", "another one gives other samples")

"""LEGO, chains of reasoning about signs (WavSpA, section 4.4, after "Unveiling Transformers with LEGO", 2022).

A sequence such as `d = - b ; a = + 1 ; b = - a ;` gives each variable the sign of another one, or its opposite, in a
shuffled order: the first variable of the chain is known, each further one takes a step more. Its sign is the class of
the token that a clause begins with. A model is trained on the first variables of the chain, though the clauses of all
stand in its input, and tested on the others too: does it reason farther than it was taught?

Neither paper's pretrained tokenizer is used: a token is a variable, a sign, or one of `1`, `=`, `;`.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.manifest_fields import IGNORED
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import LIST_INT32
from longmix.data_prep.split_names import TEST
from longmix.data_prep.tasks.generated import (
    GeneratedSettings,
    add_option,
    add_sample_options,
    option_of,
)
from longmix.data_prep.tasks.task_folder import FIRST_VALUE, LABEL_PLACES, TOKEN_FIELDS, describe, write_task

VARIABLES = "abcdefghijklmnopqrstuvwxyz"
SYMBOLS = VARIABLES + "1=;-+"  # their ids begin at FIRST_VALUE
ONE, EQUALS, END, MINUS, PLUS = (FIRST_VALUE + SYMBOLS.index(symbol) for symbol in "1=;-+")
CLAUSE = 5  # tokens: variable = sign variable ;
CLASSES = ("-1", "+1")
ALL, UNTRAINED = "all", "untrained"
_FORMAT = 2  # raise it when the same settings are to give other samples


@dataclass(frozen=True, kw_only=True)
class LegoSettings(GeneratedSettings):
    """The settings that decide every sample.

    Args:
        variables: of a chain, 2 to 26.
        trained_variables: how many from the beginning of the chain have labels in train and validation.
        tested_variables: which have labels in test: all | untrained, those that have none in the other splits.
    """

    variables: int = 20
    trained_variables: int = 14
    tested_variables: str = ALL
    train_samples: int = 60_000
    validation_samples: int = 5_000
    test_samples: int = 5_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("variables", 2 <= self.variables <= len(VARIABLES), f"2 to {len(VARIABLES)}")
        self.require("trained_variables", 1 <= self.trained_variables <= self.variables, f"1 to {self.variables}")
        self.require("tested_variables", self.tested_variables in (ALL, UNTRAINED), f"{ALL} or {UNTRAINED}")
        if self.tested_variables == UNTRAINED and self.trained_variables == self.variables:
            raise UserError(
                f"{option_of('tested_variables')} {UNTRAINED} leaves nothing to test where all {self.variables} "
                f"variables are trained: lower {option_of('trained_variables')}"
            )

    def labelled(self, split: str) -> range:
        """Places in the chain, from 0, of the variables that have labels."""
        if split != TEST:
            return range(self.trained_variables)
        return range(0 if self.tested_variables == ALL else self.trained_variables, self.variables)


def prepare_lego(settings: LegoSettings, output: str | Path) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test`; returns their manifests.

    Raises:
        UserError: as `write_task`.
    """
    return write_task(
        output,
        {"name": "lego", "format": _FORMAT, **asdict(settings)},
        {"input_ids": LIST_INT32, "labels": LIST_INT32, LABEL_PLACES: LIST_INT32},
        settings.splits(make_sample),
        vocab_size=FIRST_VALUE + len(SYMBOLS),
        **TOKEN_FIELDS,
        sequence_length=CLAUSE * settings.variables,
        num_labels=len(CLASSES),
        label_names=list(CLASSES),
        trained_places=settings.trained_variables,
    )


def make_sample(settings: LegoSettings, split: str, index: int) -> dict[str, Any]:
    """Sample `index` of a split: `input_ids`, `labels` and `label_places`, (5 variables,).

    Labels of other tokens are IGNORED; the place is that of the clause's variable in the chain, from 0.
    """
    generator = settings.generator(split, index)
    count = settings.variables
    names = FIRST_VALUE + generator.permutation(len(VARIABLES))[:count]
    is_opposite = generator.integers(0, 2, count)
    is_negative = np.cumsum(is_opposite) % 2
    place = generator.permutation(count)  # of each variable's clause

    clauses = np.empty((count, CLAUSE), dtype=np.int64)
    clauses[place, 0] = names
    clauses[place, 1] = EQUALS
    clauses[place, 2] = np.where(is_opposite, MINUS, PLUS)
    clauses[place, 3] = [ONE, *names[:-1]]
    clauses[place, 4] = END
    labels = np.full((count, CLAUSE), IGNORED)
    labelled = list(settings.labelled(split))
    labels[place[labelled], 0] = 1 - is_negative[labelled]
    places = np.repeat(np.argsort(place), CLAUSE)
    return {"input_ids": clauses.reshape(-1), "labels": labels.reshape(-1), LABEL_PLACES: places}


# -----------------------------------------------------------------------------
# The command line: an option for each field of the settings.


_DESCRIPTION = """\
Make LEGO: clauses such as "d = - b ; a = + 1 ; b = - a ;" in a shuffled order, which give each variable the sign of
another one or its opposite; the class of the token that a clause begins with is the sign of its variable. The clauses
of all variables stand in every sequence. In train/ and validation/ the first variables of the chain have labels, in
test/ all have, or those that have none in train/: the paper's own measure. The validation split, by which a model is
chosen, shows nothing of what is tested. Evaluations give the accuracy of each variable, accuracy_at_1 and so on, and
where both have labels that of all trained ones, accuracy_seen, and of the others, accuracy_unseen.

The task of the WavSpA paper, section 4.4, for runs with objective.name=token_classification. DIR gets train/,
validation/ and test/.
"""
_EXAMPLES = """\
examples:
  longmix prepare lego --output data/lego-20
  longmix prepare lego --variables 26 --trained-variables 20 --tested-variables untrained --output data/lego-26
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare lego`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_option(parser, LegoSettings, "variables", "variables of a chain, at most 26")
    add_option(parser, LegoSettings, "trained_variables", "variables, from the chain's beginning, to train on")
    parser.add_argument(
        option_of("tested_variables"),
        choices=(ALL, UNTRAINED),
        default=ALL,
        help="which variables have labels in test/ (default: all)",
    )
    add_sample_options(parser, LegoSettings)
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    settings = LegoSettings(**given_options(arguments, LegoSettings))
    return describe(prepare_lego(settings, arguments.output), arguments.output)

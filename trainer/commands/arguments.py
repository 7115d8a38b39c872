"""Arguments that several verbs take: run files with changes of their keys, and the options of a sweep."""

import os

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

from ..settings.configuration import RunConfiguration
from ..settings.objectives import OBJECTIVES

# Stands for the data of a plan's run file that names none.
UNSET_DATA = "(not set)"


def add_settings(parser, text: str) -> None:
    """Add run files and changes in one list, which `split` takes apart; `text` is their help."""
    parser.add_argument("settings", nargs="+", metavar="CONFIG | KEY=VALUE", help=text)


def split(settings: list[str]) -> tuple[list[str], list[str]]:
    """(run files, changes KEY=VALUE) of a list that holds both. Raises UserError if it names no run file."""
    overrides = [text for text in settings if "=" in text and not os.path.exists(text)]
    paths = [text for text in settings if text not in overrides]
    if not paths:
        raise UserError("name at least one run file before the changes; configs/ holds examples")
    return paths, overrides


def planned_data(configuration: RunConfiguration, sequence_length: int | None) -> Manifest | None:
    """The manifest of a run's data, for a plan; None where they are not here and need not be: of samples of
    `sequence_length` tokens. Raises UserError where they need to.
    """
    path, vocabulary = configuration.data.sources()[0].path, configuration.model.get("vocab_size")
    told = "data.train is not set"
    if path != UNSET_DATA:
        try:
            return Manifest.load(path)
        except UserError as error:
            told = str(error)
    is_language_model = OBJECTIVES[configuration.objective.name].is_language_model
    if sequence_length is None or vocabulary is None or not is_language_model:
        raise UserError(
            f"{told}; without the data a run of mlm or clm can be planned with --sequence-length N and "
            "model.vocab_size=V"
        )
    if type(vocabulary) is not int:
        raise UserError(f"model: vocab_size is {vocabulary!r} ({type(vocabulary).__name__}); allowed: int")
    return None


def add_sweep_options(parser) -> None:
    """Add the options that say which runs a sweep has."""
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1 for each run file (5)")
    parser.add_argument(
        "--parallel", type=int, metavar="N", help="runs side by side (one for each GPU; 1 without); each sees one GPU"
    )
    parser.add_argument(
        "--share", metavar="I/N", help="only the I-th of N shares of the runs, from 0 (slurm/sweep.sh uses it)"
    )

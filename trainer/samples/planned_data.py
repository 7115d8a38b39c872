"""The data of a plan, which need not be here."""

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

from ..settings.configuration import RunConfiguration
from ..settings.objectives import OBJECTIVES

# Stands for the data of a run file that names none.
UNSET_DATA = "(not set)"


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

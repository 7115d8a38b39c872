"""What a run learns: how samples become a micro-batch with labels, the loss, and the figures of an evaluation."""

import transformers

import longmix.modeling
from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

from ..data.collate import VALUES, is_pair
from ..settings.configuration import LANGUAGE_MODELS, ObjectiveSection
from .forecasting import Forecasting
from .labelled_positions import CausalPositions, LabelledPositions
from .labelled_samples import LabelledSamples
from .masking import TokenMasker, word_starts

Objective = LabelledPositions | CausalPositions | LabelledSamples | Forecasting

AUTO_CLASSES = {
    "mlm": transformers.AutoModelForMaskedLM,
    "clm": transformers.AutoModelForCausalLM,
    "classification": transformers.AutoModelForSequenceClassification,
    "regression": transformers.AutoModelForSequenceClassification,
    "pair_classification": longmix.modeling.AutoModelForSequencePairClassification,
    "token_classification": transformers.AutoModelForTokenClassification,
    "forecasting": Forecasting.auto_class,
}


def make_objective(section: ObjectiveSection, seed: int, manifest: Manifest, load_tokenizer) -> Objective:
    """The objective of a run file over the data set of `manifest`.

    Args:
        load_tokenizer: called without arguments when whole words are to be hidden.

    Raises:
        UserError: the data set lacks what the objective needs.
    """
    check_data(section.name, manifest)
    auto_class = AUTO_CLASSES[section.name]
    if section.name == "mlm":
        masker = TokenMasker(
            seed,
            section.mask_probability,
            manifest.mask_token_id,
            manifest.vocab_size,
            manifest.special_token_ids,
            word_starts(load_tokenizer()) if section.whole_word else None,
        )
        return LabelledPositions(auto_class, masker, manifest.pad_token_id, accuracy_name="masked_accuracy")
    if section.name == "forecasting":
        return Forecasting(manifest)
    if section.name == "clm":
        return CausalPositions(auto_class, manifest.pad_token_id)
    if section.name == "token_classification":
        return LabelledPositions(auto_class, None, manifest.pad_token_id, "accuracy", manifest.trained_places)
    is_regression = section.name == "regression"
    return LabelledSamples(auto_class, manifest.pad_token_id, is_regression, manifest.tolerance)


def check_data(name: str, manifest: Manifest) -> None:
    """Raise UserError unless a data set has what the objective `name` needs."""
    if name == "forecasting":
        return  # that it is a series is asked where its windows are cut
    columns = manifest.columns
    if name in LANGUAGE_MODELS:
        if VALUES in columns:
            raise UserError(
                f"objective {name} predicts tokens, but the data set holds real values (column {VALUES}), which are no "
                "classes: choose another objective, or prepare the task as tokens"
            )
        if name == "mlm" and manifest.mask_token_id is None:
            raise UserError("objective mlm needs a data set with a mask token: prepare it with longmix prepare text")
        return
    if "labels" not in columns:
        raise UserError(f"objective {name} needs a data set with a column labels; this one has {', '.join(columns)}")
    of_positions = len(columns["labels"]["shape"]) == 1
    if of_positions:
        whose, fitting = "token", ("token_classification",)
    elif is_pair(columns):
        whose, fitting = "pair of sequences", ("pair_classification",)
    else:
        whose, fitting = "sample", ("classification", "regression")
    if name not in fitting:
        raise UserError(
            f"objective.name is {name}, but the data set has a label for each {whose}: {' or '.join(fitting)}"
        )
    if name != "regression" and columns["labels"]["dtype"].startswith("float"):
        raise UserError(f"objective {name} needs classes, but the labels of the data set are real values: regression")

"""The objectives by the names that objective.name takes: one light row each, from which others find what is heavy.

A new objective is a file in trainer/objectives with what makes it, and a row here.
"""

from dataclasses import dataclass, field

FORECASTING = "forecasting"


@dataclass(frozen=True)
class ObjectiveRow:
    """One objective, as far as it is known without torch.

    Attributes:
        maker: function that makes it, `module:function` (see objectives/objective.py).
        auto_class: class of its models, `module:class`.
        figures: figures of an evaluation that checkpoint.best.metric can name.
        heads: endings of the model classes that are trained with it; of two rows with one ending the first is meant.
        labelled: what has one label in the data set; None where labels are made from the inputs.
        is_language_model: its labels are the tokens themselves, and columns of labels are left alone.
        hides_tokens: it needs a mask token, and its maker takes the share that an evaluation hides as a last argument.
        takes_real_labels: labels may be real values, not classes alone.
        time_steps: keys of the section that this objective alone takes, numbers of time steps, with their least values.
    """

    maker: str
    auto_class: str
    figures: tuple[str, ...]
    heads: tuple[str, ...] = ()
    labelled: str | None = None
    is_language_model: bool = False
    hides_tokens: bool = False
    takes_real_labels: bool = False
    time_steps: dict[str, int] = field(default_factory=dict)


_OF_CLASSES = ("loss", "matthews", "accuracy", "macro_f1", "f1", "roc_auc")

OBJECTIVES = {
    "mlm": ObjectiveRow(
        maker="longmix.trainer.objectives.labelled_positions:masked_language_modelling",
        auto_class="transformers:AutoModelForMaskedLM",
        figures=("loss", "perplexity", "masked_accuracy"),
        is_language_model=True,
        hides_tokens=True,
    ),
    "clm": ObjectiveRow(
        maker="longmix.trainer.objectives.labelled_positions:causal_language_modelling",
        auto_class="transformers:AutoModelForCausalLM",
        figures=("loss", "token_perplexity", "accuracy"),
        heads=("ForCausalLM", "LMHeadModel"),
        is_language_model=True,
    ),
    "classification": ObjectiveRow(
        maker="longmix.trainer.objectives.labelled_samples:labelled_samples",
        auto_class="transformers:AutoModelForSequenceClassification",
        figures=_OF_CLASSES,
        heads=("ForSequenceClassification",),
        labelled="sample",
    ),
    "regression": ObjectiveRow(
        maker="longmix.trainer.objectives.labelled_samples:labelled_samples",
        auto_class="transformers:AutoModelForSequenceClassification",
        figures=("loss", "pearson", "spearman", "accuracy"),
        labelled="sample",
        takes_real_labels=True,
    ),
    "pair_classification": ObjectiveRow(
        maker="longmix.trainer.objectives.labelled_samples:labelled_samples",
        auto_class="longmix.modeling:AutoModelForSequencePairClassification",
        figures=_OF_CLASSES,
        heads=("ForSequencePairClassification",),
        labelled="pair of sequences",
    ),
    "token_classification": ObjectiveRow(
        maker="longmix.trainer.objectives.labelled_positions:token_classification",
        auto_class="transformers:AutoModelForTokenClassification",
        figures=("loss", "accuracy"),
        heads=("ForTokenClassification",),
        labelled="token",
    ),
    FORECASTING: ObjectiveRow(
        maker="longmix.trainer.objectives.forecasting:forecasting",
        auto_class="transformers:AutoModelForTimeSeriesPrediction",
        figures=("loss", "mse", "mae"),
        heads=("ForForecasting",),
        time_steps={"input_length": 2, "horizon": 1},
    ),
}

"""The nine GLUE tasks: the places of their texts and labels, the names of their classes, their metrics.

The order of a task's classes is GLUE's own (that of the hub's `nyu-mll/glue`), so that a checkpoint fine-tuned
elsewhere agrees.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """One file of a task that is evaluated or predicted, never trained on."""

    name: str  # our name: dev, dev-matched, test, ...
    file: str  # in GLUE's TSV folder
    hub: str  # split name of the hub's layout
    submission: str | None = None  # file name in a GLUE submission
    # Of data that lie beside the task's own: their folder in GLUE's TSV layout, and their configuration on the hub.
    beside: tuple[str, str] | None = None


@dataclass(frozen=True)
class Task:
    """A sentence or sentence-pair task.

    `file_labels[c]` is how class c is written in the TSV files and `label_names[c]` what it means; both are empty for
    regression. `submission_labels` are the words that GLUE's server expects. The score is the mean of `metrics`, the
    first of which chooses checkpoints; `further_metrics` are reported beside them.
    """

    name: str
    folder: str
    text_columns: tuple[str, ...]
    label_column: str
    label_names: tuple[str, ...]
    file_labels: tuple[str, ...]
    metrics: tuple[str, ...]
    dev: tuple[Split, ...]
    test: tuple[Split, ...]
    hub_text_columns: tuple[str, ...]
    submission_labels: tuple[str, ...] = ()
    index_column: str = "index"
    # CoLA's train and dev files have no header; its test file has one.
    headerless_columns: tuple[str, ...] | None = None
    # GLUE's own QQP files hold rows that a stray line break cut; every published result leaves them out.
    skip_defective_rows: bool = False
    # Range that submitted predictions are clipped to (regression only).
    value_range: tuple[float, float] | None = None
    epochs: int = 3
    custom: bool = False
    further_metrics: tuple[str, ...] = ()

    @property
    def regression(self) -> bool:
        return not self.label_names

    @property
    def splits_beside(self) -> tuple[Split, ...]:
        """The test splits that do not lie with the others."""
        return tuple(split for split in self.test if split.beside is not None)

    @property
    def num_labels(self) -> int:
        """Width of the head: the number of classes, 1 for regression."""
        return len(self.label_names) or 1


# -----------------------------------------------------------------------------
# The tasks. A column's name or a class's order that differs from GLUE's own would spoil a submission without a word.


def _splits(submission: str) -> dict[str, tuple[Split, ...]]:
    return {
        "dev": (Split("dev", "dev.tsv", "validation"),),
        "test": (Split("test", "test.tsv", "test", submission),),
    }


# GLUE's diagnostic set, which models of MNLI answer.
DIAGNOSTIC = Split("diagnostic", "diagnostic.tsv", "test", "AX.tsv", beside=("diagnostic", "ax"))
_BINARY = ("0", "1")
_SENTENCES = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_MNLI = ("entailment", "neutral", "contradiction")

# Epochs follow the size of the training data: below 10,000 examples one pass is too few steps to settle, and the best
# checkpoint by the selection split guards against the rest.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="cola",
            folder="CoLA",
            text_columns=("sentence",),
            hub_text_columns=("sentence",),
            label_column="label",
            label_names=("unacceptable", "acceptable"),
            file_labels=_BINARY,
            submission_labels=_BINARY,
            metrics=("matthews",),
            headerless_columns=("source", "label", "note", "sentence"),
            epochs=5,
            **_splits("CoLA.tsv"),
        ),
        Task(
            name="sst2",
            folder="SST-2",
            text_columns=("sentence",),
            hub_text_columns=("sentence",),
            label_column="label",
            label_names=("negative", "positive"),
            file_labels=_BINARY,
            submission_labels=_BINARY,
            metrics=("accuracy",),
            **_splits("SST-2.tsv"),
        ),
        Task(
            name="mrpc",
            folder="MRPC",
            text_columns=("#1 String", "#2 String"),
            hub_text_columns=_SENTENCES,
            label_column="Quality",
            label_names=("not_equivalent", "equivalent"),
            file_labels=_BINARY,
            submission_labels=_BINARY,
            metrics=("accuracy", "f1"),
            epochs=10,
            **_splits("MRPC.tsv"),
        ),
        Task(
            name="stsb",
            folder="STS-B",
            text_columns=_SENTENCES,
            hub_text_columns=_SENTENCES,
            label_column="score",
            label_names=(),
            file_labels=(),
            metrics=("pearson", "spearman"),
            value_range=(0.0, 5.0),
            epochs=10,
            **_splits("STS-B.tsv"),
        ),
        Task(
            name="qqp",
            folder="QQP",
            text_columns=("question1", "question2"),
            hub_text_columns=("question1", "question2"),
            label_column="is_duplicate",
            label_names=("not_duplicate", "duplicate"),
            file_labels=_BINARY,
            submission_labels=_BINARY,
            metrics=("accuracy", "f1"),
            index_column="id",
            skip_defective_rows=True,
            **_splits("QQP.tsv"),
        ),
        Task(
            name="mnli",
            folder="MNLI",
            text_columns=_SENTENCES,
            hub_text_columns=("premise", "hypothesis"),
            label_column="gold_label",
            label_names=_MNLI,
            file_labels=_MNLI,
            submission_labels=_MNLI,
            metrics=("accuracy",),
            dev=(
                Split("dev-matched", "dev_matched.tsv", "validation_matched"),
                Split("dev-mismatched", "dev_mismatched.tsv", "validation_mismatched"),
            ),
            test=(
                Split("test-matched", "test_matched.tsv", "test_matched", "MNLI-m.tsv"),
                Split("test-mismatched", "test_mismatched.tsv", "test_mismatched", "MNLI-mm.tsv"),
                DIAGNOSTIC,
            ),
        ),
        Task(
            name="qnli",
            folder="QNLI",
            text_columns=("question", "sentence"),
            hub_text_columns=("question", "sentence"),
            label_column="label",
            label_names=_ENTAILMENT,
            file_labels=_ENTAILMENT,
            submission_labels=_ENTAILMENT,
            metrics=("accuracy",),
            **_splits("QNLI.tsv"),
        ),
        Task(
            name="rte",
            folder="RTE",
            text_columns=_SENTENCES,
            hub_text_columns=_SENTENCES,
            label_column="label",
            label_names=_ENTAILMENT,
            file_labels=_ENTAILMENT,
            submission_labels=_ENTAILMENT,
            metrics=("accuracy",),
            epochs=10,
            **_splits("RTE.tsv"),
        ),
        Task(
            name="wnli",
            folder="WNLI",
            text_columns=_SENTENCES,
            hub_text_columns=_SENTENCES,
            label_column="label",
            label_names=("not_entailment", "entailment"),
            file_labels=_BINARY,
            submission_labels=_BINARY,
            metrics=("accuracy",),
            epochs=10,
            **_splits("WNLI.tsv"),
        ),
    )
}

# GLUE's small pair tasks gain from a start at an MNLI checkpoint (the RoBERTa recipe).
FROM_MNLI_TASKS = ("rte", "mrpc", "stsb")
MNLI, CUSTOM = "mnli", "custom"
# Of a user's own classes; the first is the score unless another is asked for.
CLASS_METRICS = ("accuracy", "matthews", "macro_f1")
HUB_LABEL = "label"  # the label's column in the hub's layout of every task


def hub_names(text_columns: Sequence[str], label_column: str | None) -> tuple[tuple[str, ...], str] | None:
    """The text columns and the label column of the GLUE task whose TSV files have these, as the hub's layout calls
    them; None for those of a user's own task.
    """
    given = (tuple(text_columns), label_column)
    tasks = (task for task in TASKS.values() if (task.text_columns, task.label_column) == given)
    return next(((task.hub_text_columns, HUB_LABEL) for task in tasks), None)


def starts_after(name: str, intermediate: str) -> bool:
    """Whether a task starts at a model that was first fine-tuned on `intermediate`."""
    if intermediate == MNLI:
        return name in FROM_MNLI_TASKS
    # A user's own intermediate task has another folder than a user's own task.
    return name != intermediate or name == CUSTOM


def custom_task(
    text_columns: tuple[str, ...], label_column: str, label_names: tuple[str, ...], metric: str = CLASS_METRICS[0]
) -> Task:
    """A task of a user's own (custom.py), with the metric of its classes that is its score; no `label_names` means
    regression.
    """
    further = tuple(name for name in CLASS_METRICS if name != metric)
    return Task(
        name=CUSTOM,
        folder="",
        text_columns=text_columns,
        hub_text_columns=text_columns,
        label_column=label_column,
        label_names=label_names,
        file_labels=label_names,
        submission_labels=label_names,
        metrics=(metric,) if label_names else ("pearson", "spearman"),
        further_metrics=further if label_names else ("rmse", "mae"),
        epochs=5,
        custom=True,
        **_splits("custom.tsv"),
    )

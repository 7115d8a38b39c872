"""What a user without a model would try first: a linear classifier of the pieces that a text holds."""

from pathlib import Path

import numpy as np
from glue_table.budget import LENGTH
from glue_table.data import GLUE, LABELS, TASKS, kept, task_folder
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline

from longmix.data_prep.tokenizer import call, load_tokenizer
from longmix.trainer.finetune.readers import Examples, read_tsv
from longmix.trainer.finetune.tasks import custom_task
from longmix.trainer.objectives import metrics

# Strengths of the penalty; five-fold cross-validation of the training examples chooses.
PENALTIES = (0.1, 1.0, 10.0, 100.0)
FOLDS = 5  # fewer where a class has fewer examples
# By the metrics of TASKS.
SCORERS = {"accuracy": "accuracy", "matthews": "matthews_corrcoef"}


def score(work: Path, name: str, tokenizer_folder: Path) -> float:
    """The task's metric of a logistic regression of TF-IDF weights, from the pieces that the models read too."""

    def measure() -> dict[str, float]:
        tokenizer = load_tokenizer(tokenizer_folder)

        def pieces(texts: list[str]) -> list[list[int]]:
            cut = call(tokenizer, texts, truncation=True, max_length=LENGTH, verbose=False)
            return cut["input_ids"]

        metric = TASKS[name].metric
        train, reported = (_read(work, name, split) for split in ("train", "dev"))
        weighed = make_pipeline(TfidfVectorizer(analyzer=list, sublinear_tf=True), LogisticRegression(max_iter=1000))
        # Shuffled: CoLA's examples lie in the order of what they are taken from.
        folds = StratifiedKFold(max(2, min(FOLDS, *np.bincount(train.labels).tolist())), shuffle=True, random_state=0)
        search = GridSearchCV(weighed, {"logisticregression__C": PENALTIES}, scoring=SCORERS[metric], cv=folds)
        found = search.fit(pieces(train.first), train.labels).predict(pieces(reported.first))
        return metrics.evaluate((metric,), np.asarray(reported.labels), found).values

    return kept(task_folder(work, name) / "bag_of_words.json", measure)[TASKS[name].metric]


def _read(work: Path, name: str, split: str) -> Examples:
    """A split of a task's folder, as `longmix finetune` reads it."""
    task = GLUE.get(name)
    folder = task_folder(work, name)
    if task is None:
        return read_tsv(folder / f"{split}.tsv", custom_task(("text",), "label", LABELS), test=False)
    return read_tsv(folder / task.folder / f"{split}.tsv", task, test=False)

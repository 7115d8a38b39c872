import math
import tracemalloc

import numpy as np
import pytest

from longmix.trainer.objectives import metrics

# 10 examples, 4 true positives, 3 true negatives, 2 false positives, 1 false negative.
LABELS = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
PREDICTIONS = np.array([1, 1, 1, 1, 0, 0, 0, 0, 1, 1])


def test_classification_metrics_by_hand():
    scores = metrics.evaluate(("matthews", "accuracy", "f1"), LABELS, PREDICTIONS)
    matthews = (4 * 3 - 2 * 1) / math.sqrt((4 + 2) * (4 + 1) * (3 + 2) * (3 + 1))
    assert scores.values == pytest.approx({"matthews": matthews, "accuracy": 0.7, "f1": 2 * 4 / (2 * 4 + 2 + 1)})
    assert scores.score == pytest.approx((matthews + 0.7 + 8 / 11) / 3)
    assert scores.notes == ()


def test_correlations_by_hand():
    scores = metrics.evaluate(("pearson", "spearman"), np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 9.0]))
    # deviations (-1.5, -0.5, 0.5, 1.5) and (-2.75, -0.75, -1.75, 5.25)
    pearson = (4.125 + 0.375 - 0.875 + 7.875) / math.sqrt(5.0 * (7.5625 + 0.5625 + 3.0625 + 27.5625))
    assert scores.values["pearson"] == pytest.approx(pearson)
    assert scores.values["spearman"] == pytest.approx(1 - 6 * (0 + 1 + 1 + 0) / (4 * 15))
    assert scores.score == pytest.approx((pearson + 0.8) / 2)


def test_spearman_of_ties_takes_mean_ranks():
    scores = metrics.evaluate(("spearman",), np.array([1.0, 2.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0, 40.0]))
    assert scores.values["spearman"] == pytest.approx(4.5 / math.sqrt(4.5 * 5.0))


@pytest.mark.parametrize("predictions", [np.full(5, 2.5), np.full(5, 2.5) + np.arange(5) * 1e-9])
def test_correlation_with_a_constant_is_zero_and_noted(predictions):
    scores = metrics.evaluate(("pearson", "spearman"), np.arange(5.0), predictions)
    assert scores.values == {"pearson": 0.0, "spearman": 0.0}
    assert len(scores.notes) == 2 and "constant" in scores.notes[0]
    assert metrics.intervals(("pearson",), np.arange(5.0), predictions, draws=50)["score"] == (0.0, 0.0)


def test_correlation_with_not_finite_predictions_is_zero_and_noted():
    scores = metrics.evaluate(("pearson",), np.arange(4.0), np.array([0.0, np.nan, 1.0, np.inf]))
    assert scores.score == 0.0
    assert "2 predictions are not finite" in scores.notes[0]


def test_matthews_of_constant_predictions_is_zero_and_noted():
    scores = metrics.evaluate(("matthews",), LABELS, np.ones_like(LABELS))
    assert scores.score == 0.0
    assert "all predictions are equal" in scores.notes[0]


def test_baseline_is_the_best_constant_answer():
    labels = np.array([1] * 7 + [0] * 3)
    scores = metrics.baseline(("accuracy", "f1", "matthews"), labels)
    assert scores.values == pytest.approx({"accuracy": 0.7, "f1": 2 * 7 / (2 * 7 + 3), "matthews": 0.0})
    assert metrics.baseline(("pearson", "spearman"), labels * 1.0).score == 0.0


@pytest.mark.parametrize(("ones", "score"), [(3, (0.3 + 6 / 13) / 2), (1, 0.45)])
def test_baseline_of_a_rare_class_answers_it_for_f1(ones, score):
    """The score is that of a single answer: of 1 where that is better, of 0 otherwise."""
    scores = metrics.baseline(("accuracy", "f1"), np.array([1] * ones + [0] * (10 - ones)))
    share = ones / 10
    assert scores.values == pytest.approx({"accuracy": 1 - share, "f1": 2 * share / (1 + share)})
    assert scores.score == pytest.approx(score)


def test_further_metrics_are_no_part_of_the_score():
    arguments = (LABELS, PREDICTIONS)
    scores = metrics.evaluate(("accuracy",), *arguments, ("matthews", "macro_f1"))
    assert scores.score == scores.values["accuracy"] == 0.7
    assert scores.values["macro_f1"] == pytest.approx((8 / 11 + 6 / 9) / 2)
    assert metrics.baseline(("accuracy",), LABELS, ("macro_f1",)).score == 0.5
    alone, beside = (metrics.intervals(("accuracy",), *arguments, further=more) for more in ((), ("macro_f1",)))
    assert beside["score"] == alone["score"] == beside["accuracy"] and beside["macro_f1"] != beside["accuracy"]


def test_errors_are_in_the_unit_of_the_labels():
    labels, predictions = np.array([1.0, 2.0, 3.0, 10.0]), np.array([1.0, 2.0, 5.0, 14.0])
    scores = metrics.evaluate(("pearson",), labels, predictions, ("rmse", "mae"))
    assert scores.values["rmse"] == pytest.approx(math.sqrt((4 + 16) / 4)) and scores.values["mae"] == 6 / 4
    # The best constants are the mean, 4, and any value from 2 to 3.
    constant = metrics.baseline(("pearson",), labels, ("rmse", "mae")).values
    assert constant == pytest.approx({"pearson": 0.0, "rmse": math.sqrt((9 + 4 + 1 + 36) / 4), "mae": 10 / 4})
    found = metrics.intervals(("pearson",), labels, np.stack([predictions, labels]), draws=400, further=("mae",))
    assert 0 <= found["mae"][0] < 6 / 8 < found["mae"][1] < 4
    assert metrics.evaluate(("rmse",), labels, predictions * np.nan).values == {"rmse": math.inf}


@pytest.mark.parametrize(
    ("name", "classes"),
    [("accuracy", 3), ("matthews", 2), ("matthews", 3), ("f1", 2), ("macro_f1", 2), ("macro_f1", 5)],
)
def test_interval_arithmetic_agrees_with_scikit_learn(name, classes):
    generator = np.random.default_rng(3)
    labels = generator.integers(0, classes, 60)
    predictions = np.where(generator.random(60) < 0.6, labels, generator.integers(0, classes, 60))
    counts = generator.integers(0, 4, (2, 60))  # of two draws
    own = metrics._of_counts(name, counts.astype(float), labels, predictions)
    drawn = [metrics.evaluate((name,), *(found.repeat(times) for found in (labels, predictions))) for times in counts]
    assert own == pytest.approx([scores.values[name] for scores in drawn])


@pytest.mark.parametrize("right", [False, True])
def test_macro_f1_lies_in_its_interval_whatever_classes_a_draw_lacks(right):
    """Ninety examples of two classes, and twenty classes of one."""
    labels = np.array([0] * 60 + [1] * 30 + list(range(2, 22)))
    predictions = np.stack([labels if right else np.zeros_like(labels), np.zeros_like(labels)])
    for runs in (predictions[:1], predictions):
        value = np.mean([metrics.evaluate(("macro_f1",), labels, run).values["macro_f1"] for run in runs])
        low, high = metrics.intervals(("macro_f1",), labels, runs)["macro_f1"]
        assert low <= value <= high


def test_no_interval_of_macro_f1_lies_beyond_one():
    labels = np.array([2, 1, 1, 0, 0, 0, 0, 3, 2, 3, 2, 2, 3, 2, 2, 2, 2, 3, 1, 3, 2, 0, 1, 3, 2, 0])
    predictions = np.array([2, 1, 1, 0, 0, 0, 0, 3, 2, 3, 2, 2, 1, 0, 2, 2, 2, 3, 1, 3, 2, 0, 1, 3, 2, 0])
    low, high = metrics.intervals(("macro_f1",), labels, predictions)["macro_f1"]
    assert 0.7 < low < 0.92 and high == 1


def test_intervals_of_macro_f1_know_that_a_rare_class_was_seen_rarely():
    generator = np.random.default_rng(0)

    def sample(size):
        labels = generator.choice(4, size=size, p=[0.45, 0.40, 0.12, 0.03])
        is_right = generator.random(size) < np.where(labels < 2, 0.9, 0.5)
        return labels, np.where(is_right, labels, generator.choice(2, size=size))

    truth, held = metrics.evaluate(("macro_f1",), *sample(100_000)).values["macro_f1"], 0
    for _ in range(100):
        low, high = metrics.intervals(("macro_f1",), *sample(60), draws=300)["macro_f1"]
        held += low <= truth <= high
    assert 80 <= held <= 99


def test_intervals_of_many_classes_fit_into_memory():
    labels = np.arange(3000) % 1000
    predictions = np.where(np.arange(3000) % 4 == 0, 0, labels)
    tracemalloc.start()
    low, high = metrics.intervals(("accuracy", "matthews"), labels, predictions, draws=100)["accuracy"]
    assert low < 0.75 < high and tracemalloc.get_traced_memory()[1] < 2e8
    tracemalloc.stop()


def test_intervals_of_many_numbers_fit_into_memory(monkeypatch):
    generator = np.random.default_rng(5)
    labels, noise = generator.normal(size=(2, 20_000))
    names, few = ("pearson", "spearman", "rmse"), slice(300)
    whole = metrics.intervals(names, labels[few], (labels + noise)[few], draws=60)
    monkeypatch.setattr(metrics, "_MOST_DRAWN", 100_000)
    assert metrics.intervals(names, labels[few], (labels + noise)[few], draws=60) == whole
    monkeypatch.setattr(metrics, "_MOST_DRAWN", 1000)
    assert metrics.intervals(names, labels[few], (labels + noise)[few], draws=60) == whole
    tracemalloc.start()
    metrics.intervals(("pearson",), labels, labels + noise, draws=100)
    assert tracemalloc.get_traced_memory()[1] < 1e7
    tracemalloc.stop()


@pytest.mark.parametrize(("unit", "offset"), [(1e-7, 0.0), (1.0, 1.7e9), (3e4, 2e5)])
def test_correlations_do_not_depend_on_the_unit(unit, offset):
    generator = np.random.default_rng(3)
    labels = generator.normal(size=40)
    predictions = labels + generator.normal(size=40)
    names, constant = ("pearson", "spearman"), np.full(40, offset) * (1 + 1e-17)
    found = metrics.evaluate(names, unit * labels + offset, unit * predictions + offset)
    assert found.values == pytest.approx(metrics.evaluate(names, labels, predictions).values, abs=1e-6)
    drawn = metrics.intervals(names, unit * labels + offset, unit * predictions + offset, draws=50)["pearson"]
    assert drawn == pytest.approx(metrics.intervals(names, labels, predictions, draws=50)["pearson"], abs=1e-6)
    assert metrics.evaluate(names, unit * labels + offset, constant).score == 0


def test_accuracy_interval_is_the_binomial_one():
    labels = np.zeros(400, dtype=int)
    predictions = np.array([0] * 300 + [1] * 100)
    low, high = metrics.intervals(("accuracy",), labels, predictions)["accuracy"]
    half = 1.96 * math.sqrt(0.75 * 0.25 / 400)
    assert (low, high) == pytest.approx((0.75 - half, 0.75 + half), abs=0.006)


def test_correlation_interval_is_near_fishers():
    generator = np.random.default_rng(0)
    labels = generator.normal(size=400)
    predictions = 0.6 * labels + 0.8 * generator.normal(size=400)
    point = metrics.evaluate(("pearson", "spearman"), labels, predictions).values
    found = metrics.intervals(("pearson", "spearman"), labels, predictions, draws=1000)
    fisher = math.atanh(point["pearson"])
    expected = [math.tanh(fisher + sign * 1.96 / math.sqrt(397)) for sign in (-1, 1)]
    assert found["pearson"] == pytest.approx(tuple(expected), abs=0.02)
    assert found["spearman"][0] < point["spearman"] < found["spearman"][1]


def test_interval_widens_with_the_spread_of_the_seeds():
    labels = np.array([0, 1] * 100)
    even, odd = labels.copy(), labels.copy()
    even[:40] = 1 - even[:40]  # 80 %
    odd[:80] = 1 - odd[:80]  # 60 %
    low_a, high_a = metrics.intervals(("accuracy",), labels, np.vstack([even, even]))["score"]
    low_b, high_b = metrics.intervals(("accuracy",), labels, np.vstack([even, odd]))["score"]
    assert high_b - low_b > 1.5 * (high_a - low_a)


def test_intervals_are_reproducible():
    assert metrics.intervals(("f1",), LABELS, PREDICTIONS) == metrics.intervals(("f1",), LABELS, PREDICTIONS)


def test_mistakes_of_the_caller():
    with pytest.raises(ValueError, match="unknown metric 'bleu'"):
        metrics.evaluate(("bleu",), LABELS, PREDICTIONS)
    with pytest.raises(ValueError, match="one length"):
        metrics.evaluate(("accuracy",), LABELS, PREDICTIONS[:-1])


def test_roc_auc_is_the_share_of_pairs_in_order():
    generator = np.random.default_rng(5)
    labels = (generator.random(60) < 0.2).astype(np.int64)
    scores = np.round(labels + generator.normal(size=60), 1)  # rounded: some are equal
    pairs = [(one, two) for one in scores[labels == 1] for two in scores[labels == 0]]
    expected = np.mean([1.0 if one > two else 0.5 if one == two else 0.0 for one, two in pairs])
    assert metrics.roc_auc(labels, scores) == pytest.approx(expected)
    assert metrics.roc_auc(labels, np.zeros(60)) == 0.5
    assert metrics.roc_auc(np.ones(4, dtype=int), np.arange(4.0)) == 0.5
    assert metrics.roc_auc(labels, np.full(60, np.nan)) == 0.5

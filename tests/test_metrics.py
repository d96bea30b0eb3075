"""Classification results against brute force, and the cases where evaluation scripts usually break."""

import json
import math

import numpy as np
import pytest
import torch

from pyramidvit.errors import UserError
from pyramidvit.metrics import ClassificationMetric, ClassificationResult, bootstrap_interval
from pyramidvit.types import ClassScores, ClassTarget


def names(K: int) -> tuple[str, ...]:
    return tuple(f"class {i}" for i in range(K))


def predict(probabilities: torch.Tensor, classes: tuple[str, ...]) -> list[ClassScores]:
    return [ClassScores(f"{i}.png", classes, row) for i, row in enumerate(probabilities)]


def evaluate(probabilities: torch.Tensor, labels: list[int], classes: tuple[str, ...] | None = None) -> ClassificationResult:
    classes = classes or names(probabilities.shape[1])
    metric = ClassificationMetric(classes)
    metric.update(predict(probabilities, classes), [ClassTarget(label) for label in labels])
    return metric.compute()


def random_case(n: int, K: int, seed: int = 0) -> tuple[torch.Tensor, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(K, (n,), generator=generator)
    logits = torch.randn(n, K, generator=generator) + 2 * torch.nn.functional.one_hot(labels, K)
    return logits.softmax(1), labels.tolist()


@pytest.mark.parametrize(("n", "K"), [(1, 2), (7, 2), (40, 3), (60, 9), (200, 20)])
def test_every_number_equals_brute_force(n: int, K: int):
    probabilities, labels = random_case(n, K)
    result = evaluate(probabilities, labels)
    guesses = [max(range(K), key=lambda k: float(row[k])) for row in probabilities]
    ranks = [sum(float(p) > float(row[t]) for p in row) for row, t in zip(probabilities, labels, strict=True)]
    assert result.top1 == sum(g == t for g, t in zip(guesses, labels, strict=True)) / n
    assert result.top5 == sum(rank < 5 for rank in ranks) / n
    assert result.loss == pytest.approx(sum(-math.log(float(row[t])) for row, t in zip(probabilities, labels, strict=True)) / n)
    assert result.chance == max(labels.count(k) for k in range(K)) / n
    assert result.uniform == 1 / K
    for k, row in enumerate(result.per_class):
        hits = sum(g == t == k for g, t in zip(guesses, labels, strict=True))
        assert row.n == labels.count(k)
        assert row.recall == (hits / row.n if row.n else None)
        assert row.precision == (hits / guesses.count(k) if guesses.count(k) else None)
        if row.recall and row.precision:
            assert row.f1 == pytest.approx(2 * row.recall * row.precision / (row.recall + row.precision))
        for other in range(K):
            assert result.confusion[k, other] == sum((t, g) == (k, other) for g, t in zip(guesses, labels, strict=True))
    recalls = [row.recall for row in result.per_class if row.recall is not None]
    assert result.mean_recall == pytest.approx(sum(recalls) / len(recalls))


@pytest.mark.parametrize("K", [1, 2, 4, 5])
def test_top_5_with_few_classes_is_capped_and_left_out_of_the_logs(K: int):
    """PB-89: top-5 with fewer than five classes crashed at the first evaluation."""
    result = evaluate(*random_case(12, K))
    assert (result.k, result.top5) == (K, 1.0)
    assert "top5" not in result.numbers
    assert "top5" not in result.to_json()
    assert "top5" in evaluate(*random_case(12, 6)).numbers


def test_results_carry_the_users_class_names():
    """PB-93: result tables showed the default names of another data set."""
    classes = ("Ölpumpe", "<script>", "ventil 3")
    result = evaluate(*random_case(30, 3), classes)
    assert [row.name for row in result.per_class] == list(classes)
    assert [row[1] for row in result.tables()[0].rows] == list(classes)
    assert {mistake.true for mistake in result.worst} <= set(classes)
    other = ClassificationMetric(names(3))
    with pytest.raises(ValueError, match="other classes"):
        other.update(predict(torch.ones(1, 3) / 3, classes), [ClassTarget(0)])


def test_a_class_without_samples_has_no_recall_and_does_not_lower_the_mean():
    probabilities = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2]])
    result = evaluate(probabilities, [0, 0, 0])
    first, unseen, guessed = result.per_class
    assert (first.n, first.recall, first.precision) == (3, 2 / 3, 1.0)
    assert (unseen.n, unseen.recall, unseen.precision, unseen.f1) == (0, None, None, None)
    assert (guessed.n, guessed.recall, guessed.precision, guessed.f1) == (0, None, 0.0, None)
    assert result.mean_recall == 2 / 3
    assert "1 classes that have samples" in result.tables()[0].note


def test_result_is_over_the_data_set_whatever_the_batches():
    """A mean of batch means would weigh the last, smaller batch too much."""
    probabilities, labels = random_case(23, 6)
    whole = evaluate(probabilities, labels)
    classes = names(6)
    metric = ClassificationMetric(classes)
    predictions, targets = predict(probabilities, classes), [ClassTarget(label) for label in labels]
    for start, stop in ((20, 23), (0, 0), (0, 7), (7, 20)):
        metric.update(predictions[start:stop], targets[start:stop])
    parts = metric.compute()
    assert parts.loss == pytest.approx(whole.loss)
    assert (parts.numbers | {"loss": 0}, parts.interval, parts.worst) == (whole.numbers | {"loss": 0}, whole.interval, whole.worst)


def test_equal_probabilities_go_to_the_first_class():
    result = evaluate(torch.full((7, 7), 1 / 7), list(range(7)))
    assert (result.top1, result.top5) == (1 / 7, 5 / 7)


def test_interval_equals_resampling_and_is_seeded():
    outcomes = np.array([1] * 43 + [0] * 17)
    rng = np.random.default_rng(1)
    shares = np.array([rng.choice(outcomes, len(outcomes)).mean() for _ in range(10_000)])
    low, high = bootstrap_interval(43, 60)
    assert (low, high) == pytest.approx(np.quantile(shares, (0.025, 0.975)), abs=1.01 / 60)
    assert bootstrap_interval(43, 60) == (low, high)
    assert low < 43 / 60 < high


def test_interval_is_honest_when_all_answers_are_right_or_wrong():
    """Resamples of identical outcomes would claim certainty after five pictures."""
    assert bootstrap_interval(5, 5) == pytest.approx((0.4782, 1.0), abs=1e-4)  # scipy's binomtest(5, 5).proportion_ci()
    assert bootstrap_interval(0, 5) == pytest.approx((0.0, 0.5218), abs=1e-4)


def test_worst_are_the_wrong_answers_with_the_least_trust_in_the_truth():
    probabilities, labels = random_case(60, 4)
    metric = ClassificationMetric(names(4), worst=5)
    metric.update(predict(probabilities, names(4)), [ClassTarget(label) for label in labels])
    worst = metric.compute().worst
    wrong = sorted((float(row[t]), f"{i}.png") for i, (row, t) in enumerate(zip(probabilities, labels, strict=True)) if row.argmax() != t)
    assert len(wrong) > 5
    assert [(mistake.probability, mistake.path) for mistake in worst] == wrong[:5]
    assert all(mistake.true != mistake.predicted for mistake in worst)


def test_confused_pairs_are_sorted_by_count():
    eye = torch.eye(3)
    result = evaluate(eye[[1, 1, 2, 0, 0, 1]], [0, 0, 0, 1, 0, 1])
    assert result.confused == [("class 0", "class 1", 2), ("class 0", "class 2", 1), ("class 1", "class 0", 1)]
    assert result.tables()[1].rows[0] == ("class 0", "class 1", 2, 50.0)


def test_a_zero_probability_of_the_truth_gives_a_finite_loss():
    result = evaluate(torch.tensor([[0.0, 1.0]]), [0])
    assert math.isfinite(result.loss)
    assert result.loss > 50


def test_json_is_plain_data():
    result = evaluate(*random_case(30, 7))
    text = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert text["n"] == 30
    assert text["top1"] == result.headline[1]
    assert np.array_equal(text["confusion"], result.confusion)


def test_what_can_not_be_evaluated_is_refused():
    metric = ClassificationMetric(names(2))
    with pytest.raises(UserError, match="nothing to evaluate"):
        metric.compute()
    half = torch.tensor([[0.5, 0.5]])
    with pytest.raises(UserError, match=r"0\.png has label 2"):
        metric.update(predict(half, names(2)), [ClassTarget(2)])
    with pytest.raises(UserError, match="not finite"):
        metric.update(predict(half * float("nan"), names(2)), [ClassTarget(0)])
    with pytest.raises(ValueError, match="mixed"):
        metric.update(predict(half, names(2)), [ClassTarget(0, other=1, share=0.5)])
    with pytest.raises(ValueError, match="name of its own"):
        ClassificationMetric(("a", "a"))

"""Evaluation: every sample once whatever the padding, the batches and the ranks, by the formulas of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.task import DEFAULT_METRICS
from ringfeed.training.metrics.evaluate import evaluate
from ringfeed.training.metrics.scorers import make_scorer
from ringfeed.training.models.target import Target
from ringfeed.training.ring.ring import SoloRing
from tests.helpers.thread_ring import on_ranks

Array = np.ndarray[Any, Any]
EVERY_METRIC = {
    "multiclass": ("accuracy", "top_2", "balanced_accuracy", "recall", "auc", "average_precision", "confusion"),
    "binary": (*DEFAULT_METRICS["binary"], "precision_recall"),
    "multilabel": (*DEFAULT_METRICS["multilabel"], "f1", "average_precision", "auc", "macro_auc"),
    "regression": DEFAULT_METRICS["regression"],
}


def _classes(count: int) -> Target:
    return Target(task="multiclass", classes=tuple(f"c{i}" for i in range(count)))


def _batches(logits: Array, truth: Array, size: int, weight: Array | None = None) -> list[tuple[Any, Any, Any]]:
    """In batches of `size`, the last padded with copies of the first sample at weight 0."""
    pad = -len(truth) % size if len(truth) else 0
    padded = np.concatenate([logits, np.repeat(logits[:1], pad, axis=0)])
    classes = np.concatenate([truth, np.repeat(truth[:1], pad, axis=0)])
    own = np.ones(len(truth)) if weight is None else weight
    weights = np.concatenate([own, np.zeros(pad)]).astype(np.float32)
    parts = [slice(i, i + size) for i in range(0, len(classes), size)]
    return [(tf.constant(padded[p]), tf.constant(classes[p]), tf.constant(weights[p])) for p in parts]


@pytest.mark.parametrize("size", [1, 7, 64, 500])
@pytest.mark.parametrize("classes", [2, 3])
def test_padding_is_not_counted(size: int, classes: int) -> None:
    rng = np.random.default_rng(classes)
    logits = rng.normal(size=(150, classes)).astype(np.float32)
    truth = rng.integers(0, classes, 150).astype(np.int32)
    result = evaluate(SoloRing(), lambda x: x, _batches(logits, truth, size), _classes(classes))
    predicted = logits.argmax(axis=1)
    shifted = np.exp(logits.astype(np.float64))
    losses = -np.log(shifted[np.arange(150), truth] / shifted.sum(axis=1))
    assert result["samples"] == 150
    assert result["accuracy"] == pytest.approx(np.mean(predicted == truth))
    assert result["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    recall = {f"c{i}": float(np.mean(predicted[truth == i] == i)) for i in range(classes)}
    assert result["recall"] == pytest.approx(recall)
    assert result["balanced_accuracy"] == pytest.approx(np.mean(list(recall.values())))
    assert (result["auc"] is None) == (classes != 2)


def test_a_class_that_does_not_occur_is_left_out_of_the_balance() -> None:
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]], np.float32)
    result = evaluate(SoloRing(), lambda x: x, _batches(logits, np.array([0, 0], np.int32), 2), _classes(3))
    assert result["recall"] == {"c0": 0.5, "c1": None, "c2": None}
    assert result["balanced_accuracy"] == 0.5


def _on_ranks(batches: list[list[Any]], target: Target, metrics: tuple[str, ...]) -> dict[str, Any]:
    results = on_ranks(len(batches), lambda ring: evaluate(ring, lambda x: x, batches[ring.rank], target, metrics))
    assert all(repr(result) == repr(results[0]) for result in results)  # NaN equals itself
    return results[0]


def _samples(task: str, count: int, seed: int) -> tuple[Target, Array, Array, Array]:
    """A target, and outputs, with many ties, truths and weights of samples."""
    rng = np.random.default_rng(seed)
    width = {"multiclass": 4, "multilabel": 3}.get(task, 1)
    outputs = np.round(rng.normal(size=(count, width)), 1).astype(np.float32)
    weight = rng.choice([1.0, 1.0, 0.3, 2.5], count).astype(np.float32)
    if task == "regression":
        truth = (outputs[:, 0] + rng.normal(size=count)).astype(np.float32) * 1e4
        return Target(task=task, std=1e4), outputs * 1e4, truth, weight
    classes = ("no", "yes") if task == "binary" else tuple("abcd"[:width])
    target = Target(task=task, classes=classes)
    if task == "multiclass":
        return target, outputs, rng.integers(0, 3, count).astype(np.int32), weight  # the last never occurs
    likely = rng.random((count, width)) < 1 / (1 + np.exp(-outputs))
    truth = likely.astype(np.float32)
    return target, outputs, truth[:, 0] if task == "binary" else truth, weight


@settings(max_examples=16, deadline=None)
@given(
    st.sampled_from(sorted(EVERY_METRIC)), st.integers(0, 60), st.integers(1, 4), st.integers(1, 9), st.integers(0, 9)
)
def test_metrics_are_the_same_bits_however_samples_are_spread(
    task: str, count: int, ranks: int, size: int, seed: int
) -> None:
    target, *columns = _samples(task, count, seed)
    metrics = EVERY_METRIC[task]
    whole = evaluate(SoloRing(), lambda x: x, _batches(columns[0], columns[1], 16, columns[2]), target, metrics)
    order = np.random.default_rng(seed).permutation(count)
    shares = [[column[order[rank::ranks]] for column in columns] for rank in range(ranks)]
    batches = [_batches(outputs, truth, size, weight) for outputs, truth, weight in shares]
    spread = _on_ranks(batches, target, metrics)
    losses = whole.pop("loss"), spread.pop("loss")  # TensorFlow's of a sample may depend on the batch in the last bit
    assert losses[0] == pytest.approx(losses[1], rel=1e-6, nan_ok=True)
    assert repr(spread) == repr(whole)  # NaN equals itself
    assert whole["samples"] == count


def _score(task: str) -> tuple[dict[str, Any], Array, Array, Array]:
    target, outputs, truth, weight = _samples(task, 400, 3)
    result = evaluate(SoloRing(), lambda x: x, _batches(outputs, truth, 50, weight), target, EVERY_METRIC[task])
    return result, outputs.astype(np.float64), truth, weight.astype(np.float64)


def test_metrics_of_classes_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    result, outputs, truth, weight = _score("multiclass")
    predicted = outputs.argmax(axis=1)
    assert result["accuracy"] == pytest.approx(metrics.accuracy_score(truth, predicted, sample_weight=weight))
    recall = metrics.recall_score(truth, predicted, average=None, labels=[0, 1, 2], sample_weight=weight)
    assert list(result["recall"].values()) == [*(pytest.approx(share) for share in recall), None]
    assert result["balanced_accuracy"] == pytest.approx(recall.mean())
    confusion = metrics.confusion_matrix(truth, predicted, labels=range(4), sample_weight=weight)
    np.testing.assert_allclose(result["confusion"], confusion)
    shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    shares = np.round(shares, 6)  # as float32 has them: ties
    of_class = [metrics.roc_auc_score(truth == c, shares[:, c], sample_weight=weight) for c in range(3)]
    assert result["auc"] == pytest.approx(np.mean(of_class), abs=1e-4)
    of_class = [metrics.average_precision_score(truth == c, shares[:, c], sample_weight=weight) for c in range(3)]
    assert result["average_precision"] == pytest.approx(np.mean(of_class), abs=1e-4)
    in_top = (np.argsort(-outputs, axis=1, kind="stable")[:, :2] == truth[:, None]).any(axis=1)
    assert result["top_2"] == pytest.approx(np.average(in_top, weights=weight))


def test_metrics_of_one_logit_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    result, outputs, truth, weight = _score("binary")
    scores = outputs[:, 0]
    assert result["auc"] == pytest.approx(metrics.roc_auc_score(truth, scores, sample_weight=weight), abs=1e-12)
    expected = metrics.average_precision_score(truth, scores, sample_weight=weight)
    assert result["average_precision"] == pytest.approx(expected, abs=1e-12)
    assert result["accuracy"] == pytest.approx(metrics.accuracy_score(truth, scores > 0, sample_weight=weight))
    assert result["loss"] == pytest.approx(metrics.log_loss(truth, 1 / (1 + np.exp(-scores)), sample_weight=weight))
    precision, recall, _ = metrics.precision_recall_curve(truth, scores, sample_weight=weight)
    known = dict(zip(np.round(recall, 9), precision, strict=True))
    curve = result["precision_recall"]
    of_recall = zip(curve["recall"], curve["precision"], strict=True)
    assert all(share == pytest.approx(known[round(at, 9)]) for at, share in of_recall)
    assert len(curve["recall"]) > 20
    assert curve["recall"][-1] == 1.0
    taken = 1 / (1 + np.exp(-scores)) >= curve["threshold"][3] - 1e-9
    assert metrics.precision_score(truth, taken, sample_weight=weight) == pytest.approx(curve["precision"][3])


def test_metrics_of_labels_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    result, outputs, truth, weight = _score("multilabel")
    for average in ("micro", "macro"):
        f1 = metrics.f1_score(truth, outputs > 0, average=average, sample_weight=weight)
        assert result[f"{average}_f1"] == pytest.approx(f1)
        expected = metrics.average_precision_score(truth, outputs, average=average, sample_weight=weight)
        assert result[f"{average}_average_precision"] == pytest.approx(expected)
    auc = metrics.roc_auc_score(truth, outputs, average=None, sample_weight=weight)
    assert result["auc"] == pytest.approx(dict(zip("abc", auc, strict=True)))
    assert result["macro_auc"] == pytest.approx(auc.mean())


def test_metrics_of_numbers_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    result, outputs, truth, weight = _score("regression")
    predicted = outputs[:, 0]
    square = metrics.mean_squared_error(truth, predicted, sample_weight=weight)
    assert result["rmse"] == pytest.approx(square**0.5)
    assert result["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predicted, sample_weight=weight))
    assert result["r2"] == pytest.approx(metrics.r2_score(truth, predicted, sample_weight=weight))
    assert result["loss"] == pytest.approx(square / 1e8, rel=1e-6)


def test_r2_is_not_rounded_away_far_from_zero() -> None:
    """The usual one-pass formula loses all digits: the squares of the targets agree in the first 13."""
    truth = 1e7 + np.arange(8.0, dtype=np.float32)
    predicted = truth[:, None] + np.float32(1.0)
    result = evaluate(SoloRing(), lambda x: x, _batches(predicted, truth, 3), Target(task="regression"))
    assert (result["rmse"], result["mae"], result["r2"]) == (1.0, 1.0, 1 - 8 / 42)


def test_metrics_that_classes_cannot_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="top_3 needs more than 3 classes, there are 3"):
        make_scorer(_classes(3), ["top_3"])
    with pytest.raises(ConfigError, match="precision_recall needs two classes, there are 3"):
        make_scorer(_classes(3), ["precision_recall"])


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("mean", [0.0, 1.0], ids=["origin 0", "origin at the targets"])
@pytest.mark.parametrize("centre", [0, 10**9, 10**11, 2**53 - 10**5, -(10**11)])
def test_a_regression_far_from_0_has_the_metrics_of_scikit_learn(centre: int, mean: float, ranks: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    truth = centre + np.round(1000 * rng.normal(size=300)).astype(np.int64)
    predicted = truth + np.round(500 * rng.normal(size=300)).astype(np.int64)
    target = Target(task="regression", column="y", mean=mean * centre, std=1000.0)
    shares = [slice(rank, None, ranks) for rank in range(ranks)]
    columns = [(predicted[own, None].astype(np.float64), target.of({"y": tf.constant(truth[own])})) for own in shares]
    batches = [_batches(outputs, values.numpy(), 16) for outputs, values in columns]
    found = _on_ranks(batches, target, ("rmse", "mae", "r2"))
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, predicted), rel=1e-12)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predicted), rel=1e-12)
    assert found["r2"] == pytest.approx(metrics.r2_score(truth, predicted), rel=1e-7)
    assert found["loss"] == pytest.approx((found["rmse"] / 1000) ** 2, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 3]), st.booleans())
def test_equal_outputs_count_as_argmax_takes_them(classes: int, seed: int, levels: int, has_nan: bool) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.integers(0, levels + 1, (40, classes)).astype(np.float32)
    if has_nan:
        outputs[rng.random(outputs.shape) < 0.1] = np.nan
    truth = rng.integers(0, classes, 40).astype(np.int32)
    metrics = ("accuracy", *(f"top_{k}" for k in range(1, classes)))
    found = evaluate(SoloRing(), lambda x: x, _batches(outputs, truth, 16), _classes(classes), metrics)
    assert found["top_1"] == found["accuracy"]
    order = np.argsort(-np.where(np.isnan(outputs), np.inf, outputs), axis=1, kind="stable")
    for k in range(1, classes):
        expected = (order[:, :k] == truth[:, None]).any(axis=1).mean()
        assert found[f"top_{k}"] == pytest.approx(expected)


def test_equal_logits_have_the_share_of_the_first_class_as_top_1() -> None:
    truth = np.array([0] * 3 + [1] * 4 + [2] * 3, np.int32)
    batches = _batches(np.zeros((10, 3), np.float32), truth, 4)
    found = evaluate(SoloRing(), lambda x: x, batches, _classes(3), ("accuracy", "top_1", "top_2"))
    assert (found["accuracy"], found["top_1"], found["top_2"]) == pytest.approx((0.3, 0.3, 0.7))

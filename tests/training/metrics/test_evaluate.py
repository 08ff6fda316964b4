"""Evaluation: every sample once whatever the padding and the ranks, and the AUC of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.training.metrics.evaluate import evaluate, roc_auc
from ringfeed.training.ring.ring import SoloRing


def _pairwise_auc(scores: list[float], positive: list[bool]) -> float | None:
    """The definition of the AUC, over all pairs of a positive and a negative."""
    wins = [
        (s > t) + 0.5 * (s == t)
        for s, p in zip(scores, positive, strict=True)
        if p
        for t, q in zip(scores, positive, strict=True)
        if not q
    ]
    return float(np.mean(wins)) if wins else None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3).map(float), st.booleans()), max_size=30))
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[float, bool]]) -> None:
    scores, positive = [s for s, _ in rows], [p for _, p in rows]
    expected = _pairwise_auc(scores, positive)
    assert roc_auc(scores, positive) == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_auc_equals_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    positive = rng.random(5000) < 0.08
    scores = np.round(rng.normal(size=5000) + positive, 2)
    assert roc_auc(scores, positive) == pytest.approx(metrics.roc_auc_score(positive, scores), abs=1e-12)


def _batches(logits: np.ndarray[Any, Any], truth: np.ndarray[Any, Any], size: int) -> list[tuple[Any, Any, Any]]:
    """In batches of `size`, the last padded with copies of the first sample at weight 0."""
    pad = -len(truth) % size
    padded = np.concatenate([logits, np.repeat(logits[:1], pad, axis=0)])
    classes = np.concatenate([truth, np.repeat(truth[:1], pad)])
    weight = np.concatenate([np.ones(len(truth), np.float32), np.zeros(pad, np.float32)])
    parts = [slice(i, i + size) for i in range(0, len(classes), size)]
    return [(tf.constant(padded[p]), tf.constant(classes[p]), tf.constant(weight[p])) for p in parts]


@pytest.mark.parametrize("size", [1, 7, 64, 500])
@pytest.mark.parametrize("classes", [2, 3])
def test_padding_is_not_counted(size: int, classes: int) -> None:
    rng = np.random.default_rng(classes)
    logits = rng.normal(size=(150, classes)).astype(np.float32)
    truth = rng.integers(0, classes, 150).astype(np.int32)
    names = [f"c{i}" for i in range(classes)]
    result = evaluate(SoloRing(), lambda x: x, _batches(logits, truth, size), names)
    predicted = logits.argmax(axis=1)
    shifted = np.exp(logits.astype(np.float64))
    losses = -np.log(shifted[np.arange(150), truth] / shifted.sum(axis=1))
    assert result.samples == 150
    assert result.accuracy == pytest.approx(np.mean(predicted == truth))
    assert result.loss == pytest.approx(losses.mean(), rel=1e-6)
    recall = {name: float(np.mean(predicted[truth == i] == i)) for i, name in enumerate(names)}
    assert result.recall == pytest.approx(recall)
    assert result.balanced_accuracy == pytest.approx(np.mean(list(recall.values())))
    assert (result.auc is None) == (classes != 2)


def test_a_class_that_does_not_occur_is_left_out_of_the_balance() -> None:
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]], np.float32)
    result = evaluate(SoloRing(), lambda x: x, _batches(logits, np.array([0, 0], np.int32), 2), ["a", "b", "c"])
    assert result.recall == {"a": 0.5, "b": None, "c": None}
    assert result.balanced_accuracy == 0.5

"""Areas under curves: their definitions, and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.training.metrics.ranking import average_precision, precision_recall, roc_auc


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


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3).map(float), st.booleans()), max_size=30))
def test_average_precision_is_the_mean_precision_at_each_positive(rows: list[tuple[float, bool]]) -> None:
    scores, positive = np.array([s for s, _ in rows]), np.array([p for _, p in rows], bool)
    precisions = [positive[scores >= score].mean() for score in scores[positive]]
    expected = pytest.approx(np.mean(precisions), abs=1e-12) if precisions else None
    assert average_precision(scores, positive) == expected
    assert (precision_recall(scores, positive) is None) == (not precisions)


def test_auc_equals_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    positive = rng.random(5000) < 0.08
    scores = np.round(rng.normal(size=5000) + positive, 2)
    assert roc_auc(scores, positive) == pytest.approx(metrics.roc_auc_score(positive, scores), abs=1e-12)

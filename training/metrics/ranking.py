"""Metrics of how scores order samples: areas under the ROC and the precision-recall curve, exact with ties.

They depend on the multiset of (score, truth, weight) alone, not on its order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_POINTS = 200  # a precision-recall curve of more points would be no more readable


def _groups(scores: npt.ArrayLike, is_positive: npt.ArrayLike, weight: npt.ArrayLike | None) -> tuple[Floats, ...]:
    """Return distinct scores, ascending, and the weights of the positives and of the negatives that have each."""
    values = np.asarray(scores, np.float64)
    positive = np.asarray(is_positive, bool)
    weights = np.ones(values.size) if weight is None else np.asarray(weight, np.float64)
    distinct, place = np.unique(values, return_inverse=True)
    positives, negatives = (np.bincount(place, weights * mask, distinct.size) for mask in (positive, ~positive))
    return distinct, positives.astype(np.float64), negatives.astype(np.float64)  # bincount of nothing is of integers


def roc_auc(scores: npt.ArrayLike, is_positive: npt.ArrayLike, weight: npt.ArrayLike | None = None) -> float | None:
    """Return the area under the ROC curve: P(score of a positive > score of a negative), ties counting half.

    Hanley and McNeil, Radiology 143 (1982). None if positives or negatives have no weight.

    >>> roc_auc([0.1, 0.4, 0.4, 0.8], [False, True, False, True])
    0.875
    """
    _, positives, negatives = _groups(scores, is_positive, weight)
    pairs = positives.sum() * negatives.sum()
    below = np.cumsum(negatives) - negatives / 2
    return float((positives * below).sum() / pairs) if pairs else None


def _steps(scores: npt.ArrayLike, is_positive: npt.ArrayLike, weight: npt.ArrayLike | None) -> tuple[Floats, ...]:
    """Return each threshold, descending, with the weights of positives and of all samples that score no less."""
    distinct, positives, negatives = _groups(scores, is_positive, weight)
    hits = np.cumsum(positives[::-1])
    return distinct[::-1], hits, hits + np.cumsum(negatives[::-1])


def average_precision(
    scores: npt.ArrayLike, is_positive: npt.ArrayLike, weight: npt.ArrayLike | None = None
) -> float | None:
    """Return the average precision: the mean, over positives, of the precision at the threshold of their score.

    As scikit-learn's: no interpolation. None if positives have no weight.

    >>> average_precision([0.1, 0.4, 0.4, 0.8], [False, True, False, True])
    0.8333333333333333
    """
    _, hits, taken = _steps(scores, is_positive, weight)
    if not hits.size or not hits[-1]:
        return None
    precision = np.divide(hits, taken, out=np.zeros_like(hits), where=taken > 0)
    return float((np.diff(hits, prepend=0.0) * precision).sum() / hits[-1])


def precision_recall(
    scores: npt.ArrayLike, is_positive: npt.ArrayLike, weight: npt.ArrayLike | None = None
) -> dict[str, list[float]] | None:
    """Return up to 200 points of the precision-recall curve, evenly spaced in recall, by falling threshold.

    A sample counts as positive if it scores no less than the `threshold`. None if positives have no weight.

    >>> precision_recall([0.1, 0.4, 0.4, 0.8], [False, True, False, True])
    {'threshold': [0.8, 0.4], 'recall': [0.5, 1.0], 'precision': [1.0, 0.6666666666666666]}
    """
    thresholds, hits, taken = _steps(scores, is_positive, weight)
    if not hits.size or not hits[-1]:
        return None
    wanted = np.linspace(0, hits[-1], _POINTS + 1)[1:]
    places = np.unique(np.minimum(np.searchsorted(hits, wanted), hits.size - 1))
    points = {"threshold": thresholds, "recall": hits / hits[-1], "precision": hits / np.maximum(taken, 1e-300)}
    return {name: values[places].tolist() for name, values in points.items()}

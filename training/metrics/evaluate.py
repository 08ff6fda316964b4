"""Exact evaluation by all ranks: each sample of a split counts once, whatever the number of ranks.

Every rank scores its share (padding has weight 0 and is not counted), sums are reduced, and for two classes the scores
are gathered for the area under the ROC curve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ..models.losses import cross_entropy
from ..ring.ring import Ring

__all__ = ["Evaluation", "evaluate", "roc_auc"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The metrics of a model on a split.

    Attributes:
        samples: number of scored samples, each counted once.
        loss: mean cross entropy.
        accuracy: fraction of samples whose largest logit is that of their class.
        balanced_accuracy: mean recall of the classes that occur.
        recall: recall by class name; None for a class that does not occur.
        auc: area under the ROC curve of the second class against the first; None unless there are two classes, both
            occur, and all logits are finite.
        confusion: samples by [true class][predicted class].
    """

    samples: int
    loss: float
    accuracy: float
    balanced_accuracy: float
    recall: dict[str, float | None]
    auc: float | None
    confusion: list[list[int]]

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the metrics file."""
        return asdict(self)


def roc_auc(scores: npt.ArrayLike, is_positive: npt.ArrayLike) -> float | None:
    """Return the exact area under the ROC curve: P(score of a positive > score of a negative), ties counting half.

    By mid-ranks: (R - n1 (n1 + 1) / 2) / (n0 n1), with R the sum of the positives' ranks; Hanley and McNeil,
    Radiology 143 (1982). None if there are no positives or no negatives.

    >>> roc_auc([0.1, 0.4, 0.4, 0.8], [False, True, False, True])
    0.875
    """
    values = np.asarray(scores, np.float64)
    positive = np.asarray(is_positive, bool)
    positives = int(positive.sum())
    negatives = positive.size - positives
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mid_ranks = (ends - counts + 1 + ends) / 2
    rank_sum = float(mid_ranks[inverse][positive].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def summarise(confusion: Integers, loss_sum: float, classes: Sequence[str], auc: float | None) -> Evaluation:
    """Compute the metrics from a confusion matrix, int64 [classes, classes], and the sum of the losses.

    >>> result = summarise(np.array([[3, 1], [1, 1]]), 6.0, ["on time", "late"], None)
    >>> result.accuracy, result.balanced_accuracy, result.recall
    (0.6666666666666666, 0.625, {'on time': 0.75, 'late': 0.5})
    """
    totals = confusion.sum(axis=1)
    samples = int(totals.sum())
    recall = [float(hit / total) if total else None for hit, total in zip(np.diag(confusion), totals, strict=True)]
    return Evaluation(
        samples=samples,
        loss=loss_sum / samples if samples else float("nan"),
        accuracy=float(np.trace(confusion) / samples) if samples else float("nan"),
        balanced_accuracy=float(np.mean([r for r in recall if r is not None])) if samples else float("nan"),
        recall=dict(zip(classes, recall, strict=True)),
        auc=auc,
        confusion=confusion.tolist(),
    )


def evaluate(
    ring: Ring, predict: Callable[[Any], Any], batches: Iterable[tuple[Any, Any, Any]], classes: Sequence[str]
) -> Evaluation:
    """Score this rank's batches, and combine the results of all ranks (a collective).

    Args:
        ring: the ranks.
        predict: function from the inputs of a batch to logits, float32 [batch, classes].
        batches: `(inputs, class_id, weight)` of each batch; a weight of 0 marks padding.
        classes: names of the classes, in the order of their ids.
    """
    count = len(classes)
    confusion = np.zeros((count, count), np.int64)
    loss_sum = 0.0
    margins, truths = [np.zeros(0, np.float32)], [np.zeros(0, np.int32)]
    for inputs, class_id, weight in batches:
        logits = predict(inputs)
        counted = weight.numpy() > 0
        truth = class_id.numpy()[counted]
        scores = logits.numpy()[counted]
        loss_sum += float(cross_entropy(logits, class_id).numpy()[counted].sum(dtype=np.float64))
        pairs = truth.astype(np.int64) * count + scores.argmax(axis=1)
        confusion += np.bincount(pairs, minlength=count * count).reshape(count, count)
        if count == 2:
            margins.append(scores[:, 1] - scores[:, 0])
            truths.append(truth)
    totals, losses = ring.allreduce_sum([tf.constant(confusion), tf.constant(loss_sum, tf.float64)])
    auc = None
    if count == 2:
        scores, positive = ring.allgather(np.concatenate(margins)), ring.allgather(np.concatenate(truths)) == 1
        auc = roc_auc(scores, positive) if np.isfinite(scores).all() else None
    return summarise(totals.numpy(), float(losses), classes, auc)

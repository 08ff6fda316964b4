"""What evaluations keep of each batch, and the metrics that follow from it, by task.

A scorer takes samples of one rank by `add`: outputs [samples, outputs], targets as of `Target.of`, and weights. Its
`result`, a collective, combines all ranks. Sums are exact (`ExactSum`, or sums of weights, which are whole as a rule),
and metrics of order need all scores, which are gathered: 4 bytes for each output and sample.
Tested in tests/training/metrics/test_evaluate.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.checks import is_function
from ringfeed.training.config.task import DEFAULT_METRICS, top_k
from ringfeed.training.models.target import Target
from ringfeed.training.ring.ring import Ring

from .exact_sum import ExactSum, exact_squares
from .ranking import average_precision, precision_recall, roc_auc

Array = npt.NDArray[Any]
_OF_ORDER: dict[str, Callable[..., Any]] = {
    "auc": roc_auc,
    "average_precision": average_precision,
    "precision_recall": precision_recall,
}


def make_scorer(target: Target, metrics: Sequence[str] | None) -> _ClassScorer | _LabelsScorer | _RegressionScorer:
    """Make the scorer of a task for metrics, None being its default ones; names of functions are passed over.

    A ConfigError says that a metric does not go with the number of classes.
    """
    names = DEFAULT_METRICS[target.task] if metrics is None else [name for name in metrics if not is_function(name)]
    if target.task == "regression":
        return _RegressionScorer(names, target.mean)
    if target.task == "multilabel":
        return _LabelsScorer(names, target.classes)
    count = len(target.classes)
    for name in names:
        if (k := top_k(name)) and k >= count:
            raise ConfigError(f"metrics: {name} needs more than {k} classes, there are {count}")
        if name == "precision_recall" and count > 2:
            raise ConfigError(f"metrics: {name} needs two classes, there are {count}; average_precision takes more")
    if target.task == "multiclass" and metrics is None and count > 2:
        return _ClassScorer([name for name in names if name != "auc"], target.classes, {"auc": None})
    return _ClassScorer(names, target.classes)


class _ClassScorer:
    """Metrics of two or more classes, from a logit for each class, or for the second of two alone."""

    def __init__(self, names: Sequence[str], classes: Sequence[str], known: dict[str, Any] | None = None) -> None:
        self._names, self._classes, self._known = names, classes, known or {}
        count = len(classes)
        self._confusion = np.zeros((count, count))
        self._top = {k: 0.0 for name in names if (k := top_k(name))}
        self._scores = _Gathered((count if count > 2 else 1,), ()) if set(names) & set(_OF_ORDER) else None

    def add(self, outputs: Array, truth: Array, weight: Array) -> None:
        count, truth = len(self._classes), truth.astype(np.int64)
        predicted = outputs.argmax(axis=1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
        pairs = np.bincount(truth * count + predicted, weight, count * count)
        self._confusion += pairs.reshape(count, count)
        if self._top:
            rank = _rank_of(outputs, truth)
            for k in self._top:
                self._top[k] += float(weight[rank < k].sum())
        if self._scores is not None:
            self._scores.add(_class_scores(outputs), truth, weight)

    def result(self, ring: Ring) -> dict[str, Any]:
        tops = tf.constant(list(self._top.values()), tf.float64)
        sums = ring.allreduce_sum([tf.constant(self._confusion), tops])
        confusion, hits = (part.numpy() for part in sums)
        totals = confusion.sum(axis=1)
        total, nan = totals.sum(), float("nan")
        recall = [float(hit / of) if of else None for hit, of in zip(np.diag(confusion), totals, strict=True)]
        occurring = [share for share in recall if share is not None]
        found: dict[str, Any] = {
            "accuracy": float(np.trace(confusion) / total) if total else nan,
            "balanced_accuracy": float(np.mean(occurring)) if occurring else nan,
            "recall": dict(zip(self._classes, recall, strict=True)),
            "confusion": _plain(confusion),
            **{f"top_{k}": float(hit / total) if total else nan for k, hit in zip(self._top, hits, strict=True)},
            **self._known,
        }
        if self._scores is not None:
            found |= self._of_order(*self._scores.all(ring))
        return {name: found[name] for name in [*self._names, *self._known]}

    def _of_order(self, scores: Array, truth: Array, weight: Array) -> dict[str, Any]:
        if not np.isfinite(scores).all():
            return dict.fromkeys(_OF_ORDER)
        names = [name for name in self._names if name in _OF_ORDER]
        if scores.shape[1] == 1:  # the log of the odds
            found = {name: _OF_ORDER[name](scores[:, 0], truth == 1, weight) for name in names}
            if curve := found.get("precision_recall"):
                curve["threshold"] = [1 / (1 + float(np.exp(-margin))) for margin in curve["threshold"]]
            return found
        return {name: _mean_over(_by_label(_OF_ORDER[name], scores, truth[:, None] == range(scores.shape[1]), weight))
                for name in names}  # fmt: skip


class _LabelsScorer:
    """Metrics of many labels, of a logit for each."""

    def __init__(self, names: Sequence[str], labels: Sequence[str]) -> None:
        self._names, self._labels = names, labels
        self._counts = np.zeros((3, len(labels)))  # right, predicted, true
        by_order = any("average_precision" in name or "auc" in name for name in names)
        self._scores = _Gathered((len(labels),), (len(labels),)) if by_order else None

    def add(self, outputs: Array, truth: Array, weight: Array) -> None:
        predicted, true = outputs > 0, truth > 0.5
        self._counts += [weight @ flags for flags in (predicted & true, predicted, true)]
        if self._scores is not None:
            self._scores.add(outputs, true, weight)

    def result(self, ring: Ring) -> dict[str, Any]:
        (sums,) = ring.allreduce_sum([tf.constant(self._counts)])
        right, predicted, true = sums.numpy()
        f1 = [2 * hit / both if both else None for hit, both in zip(right, predicted + true, strict=True)]
        both = float((predicted + true).sum())
        found: dict[str, Any] = {
            "f1": f1,
            "macro_f1": _mean_over(f1),
            "micro_f1": 2 * float(right.sum()) / both if both else None,
        }
        if self._scores is not None:
            found |= self._of_order(*self._scores.all(ring))
        by_label = ("f1", "average_precision", "auc")
        return {name: dict(zip(self._labels, found[name], strict=True)) if name in by_label else found[name]
                for name in self._names}  # fmt: skip

    def _of_order(self, scores: Array, truth: Array, weight: Array) -> dict[str, Any]:
        is_finite = bool(np.isfinite(scores).all())
        found: dict[str, Any] = {"micro_average_precision": None}
        for name in ("average_precision", "auc"):
            wanted = is_finite and any(name in metric for metric in self._names)
            found[name] = _by_label(_OF_ORDER[name], scores, truth, weight) if wanted else [None] * len(self._labels)
            found[f"macro_{name}"] = _mean_over(found[name])
        if is_finite and "micro_average_precision" in self._names:
            every = np.repeat(weight, scores.shape[1])
            found["micro_average_precision"] = average_precision(scores.ravel(), truth.ravel(), every)
        return found


class _RegressionScorer:
    """Metrics of a prediction, in the target's unit.

    Targets count from an origin close to them: far from 0, their squares would differ in their last digits only.
    """

    def __init__(self, names: Sequence[str], origin: float) -> None:
        self._names, self._origin = names, origin
        self._sums = {name: ExactSum() for name in ("weight", "square", "size", "truth", "truth_square")}

    def add(self, outputs: Array, truth: Array, weight: Array) -> None:
        truth = truth.astype(np.float64)
        error = outputs[:, 0].astype(np.float64) - truth
        truth = truth - self._origin
        parts = (weight, weight * error**2, weight * np.abs(error), weight * truth)
        for total, values in zip(self._sums.values(), parts, strict=False):
            total.add(values)
        for square in exact_squares(truth):
            self._sums["truth_square"].add(weight * square)

    def result(self, ring: Ring) -> dict[str, Any]:
        for total in self._sums.values():
            total.reduce(ring)
        weight, square, size, truth, truth_square = (total.value for total in self._sums.values())
        if not weight:
            return dict.fromkeys(self._names, float("nan"))
        spread = truth_square - truth * truth / weight
        found = {
            "rmse": float(np.sqrt(float(square / weight))),
            "mae": float(size / weight),
            "r2": float(1 - square / spread) if spread > 0 else None,
        }
        return {name: found[name] for name in self._names}


class _Gathered:
    """Scores, targets and weights of a rank's samples; the first two of these shapes for each sample."""

    def __init__(self, scores: tuple[int, ...], truth: tuple[int, ...]) -> None:
        none = (np.zeros((0, *scores), np.float32), np.zeros((0, *truth), np.int32), np.zeros(0, np.float64))
        self._kept: list[list[Array]] = [[array] for array in none]

    def add(self, scores: Array, truth: Array, weight: Array) -> None:
        for kept, array in zip(self._kept, (scores, truth, weight), strict=True):
            kept.append(array.astype(kept[0].dtype))

    def all(self, ring: Ring) -> list[Array]:
        """Return the arrays of all ranks (a collective)."""
        return [ring.allgather(np.concatenate(kept)) for kept in self._kept]


def _rank_of(outputs: Array, truth: Array) -> Array:
    """Return the classes before the true one, int64 [samples]: of equal outputs the first class comes first.

    As in `argmax`, so that ``top_1`` is the accuracy; NaN counts as the largest number.
    """
    outputs = np.where(np.isnan(outputs), np.inf, outputs)
    own, is_before = np.take_along_axis(outputs, truth[:, None], 1), np.arange(outputs.shape[1]) < truth[:, None]
    rank: Array = ((outputs > own) | ((outputs == own) & is_before)).sum(axis=1)
    return rank


def _class_scores(outputs: Array) -> Array:
    """Return the log of the odds of the second of two classes, or the probability of each of more."""
    if outputs.shape[1] == 1:
        return outputs
    if outputs.shape[1] == 2:
        return outputs[:, 1:] - outputs[:, :1]
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _by_label(metric: Callable[..., Any], scores: Array, truth: Array, weight: Array) -> list[float | None]:
    return [metric(scores[:, label], truth[:, label], weight) for label in range(scores.shape[1])]


def _mean_over(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _plain(table: Array) -> list[Any]:
    """Return a table as lists, of integers if all cells are whole."""
    cells: list[Any] = (table.astype(np.int64) if (table == np.rint(table)).all() else table).tolist()
    return cells

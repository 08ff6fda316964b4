"""Exact evaluation by all ranks: each sample of a split counts once, whatever the number of ranks.

Every rank scores its share (padding has weight 0 and is not counted); `scorers` combine them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.training.models.losses import plain_loss
from ringfeed.training.models.target import Target
from ringfeed.training.ring.ring import Ring

from .exact_sum import ExactSum
from .scorers import make_scorer

__all__ = ["evaluate", "evaluate_each"]


def evaluate(
    ring: Ring,
    predict: Callable[[Any], Any],
    batches: Iterable[tuple[Any, Any, Any]],
    target: Target,
    metrics: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Score this rank's batches, and combine the results of all ranks (a collective).

    Args:
        ring: the ranks.
        predict: function from the inputs of a batch to the network's outputs, float32 [batch, outputs].
        batches: `(inputs, target, weight)` of each batch; a weight of 0 marks padding.
        target: what the network predicts.
        metrics: names of the metrics; None: the default ones of the task.

    Returns:
        The number of `samples`, their mean `loss` without options, and the metrics, in JSON's types. Means are weighted
        by the samples' weights.
    """
    tally = _Tally(target, metrics)
    for inputs, truth, weight in batches:
        tally.add(predict(inputs), truth, weight)
    return tally.result(ring)


def evaluate_each(
    ring: Ring,
    predict: Callable[[Any], Any],
    batches: Mapping[str, Iterable[tuple[Any, Any, Any]]],
    target: Target,
    metrics: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Score several datasets (a collective): all their samples together, and under ``datasets`` each alone.

    Args:
        ring, predict, target, metrics: see `evaluate`.
        batches: those of each dataset, by its name.

    Returns:
        As `evaluate`, for all samples, with ``datasets``: the same by name.
    """
    together, each = _Tally(target, metrics), {}
    for name, own in batches.items():
        each[name] = _Tally(target, metrics)
        for inputs, truth, weight in own:
            outputs = predict(inputs)
            for tally in (together, each[name]):
                tally.add(outputs, truth, weight)
    return {**together.result(ring), "datasets": {name: tally.result(ring) for name, tally in each.items()}}


class _Tally:
    """Loss and metrics of samples."""

    def __init__(self, target: Target, metrics: Sequence[str] | None) -> None:
        self._scorer, self._loss_of = make_scorer(target, metrics), plain_loss(target)
        self._losses, self._weights, self._samples = ExactSum(), ExactSum(), 0

    def add(self, outputs: Any, truth: Any, weight: Any) -> None:
        counted = weight.numpy() > 0
        own = weight.numpy()[counted].astype(np.float64)
        self._samples += int(counted.sum())
        self._weights.add(own)
        self._losses.add(self._loss_of(outputs, truth).numpy()[counted] * own)
        self._scorer.add(outputs.numpy()[counted], truth.numpy()[counted], own)

    def result(self, ring: Ring) -> dict[str, Any]:
        for total in (self._losses, self._weights):
            total.reduce(ring)
        (every,) = ring.allreduce_sum([tf.constant(self._samples, tf.int64)])
        mean = float(self._losses.value / self._weights.value) if self._weights.value else float("nan")
        return {"samples": int(every), "loss": mean, **self._scorer.result(ring)}

"""Exact evaluation by all ranks: each sample of a split counts once, whatever the number of ranks.

Every rank scores its share (padding has weight 0 and is not counted); `scorers` combine them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.training.config.loss import LossConfig
from ringfeed.training.models.losses import Loss, build_loss
from ringfeed.training.models.target import Target
from ringfeed.training.ring.ring import Ring

from .exact_sum import ExactSum
from .scorers import make_scorer
from .user_metrics import Metric, UserMetrics

Batch = tuple[Any, Any, Any]


def evaluate(
    ring: Ring,
    predict: Callable[[Any], Any],
    batches: Iterable[Batch] | Mapping[str, Iterable[Batch]],
    target: Target,
    metrics: Sequence[str] | None = None,
    loss_of: Loss | None = None,
    functions: Mapping[str, Metric] | None = None,
) -> dict[str, Any]:
    """Score this rank's batches, and combine the results of all ranks (a collective).

    `predict` makes outputs, float32 [batch, outputs], of the inputs of a batch, `(inputs, target, weight)`; a weight of
    0 marks padding. Returned are the number of `samples`, their mean loss (by `loss_of`; None: the task's, without
    options), and the metrics (None: the task's), in JSON's types, weighted by sample; of several datasets also those of
    each. The user's metrics, `functions` by `module:function`, take all samples.
    """
    make = partial(_Tally, target, metrics, loss_of or build_loss(LossConfig(), target), functions or {})
    together, each = make(), dict[str, _Tally]()
    is_mixture = isinstance(batches, Mapping)
    for name, of_dataset in batches.items() if isinstance(batches, Mapping) else [("", batches)]:
        tallies = [together, each.setdefault(name, make())] if is_mixture else [together]
        for inputs, truth, weight in of_dataset:
            outputs = predict(inputs)
            for tally in tallies:
                tally.add(outputs, truth, weight)
    result = together.result(ring)
    return result | {"datasets": {name: tally.result(ring) for name, tally in each.items()}} if is_mixture else result


class _Tally:
    def __init__(
        self, target: Target, metrics: Sequence[str] | None, loss_of: Loss, functions: Mapping[str, Metric]
    ) -> None:
        self._scorer, self._loss_of, self._own = make_scorer(target, metrics), loss_of, UserMetrics(functions)
        self._losses, self._weights, self._samples = ExactSum(), ExactSum(), 0

    def add(self, outputs: Any, truth: Any, weight: Any) -> None:
        counted = weight.numpy() > 0
        own = weight.numpy()[counted].astype(np.float64)
        self._samples += int(counted.sum())
        self._weights.add(own)
        self._losses.add(self._loss_of(outputs, truth).numpy()[counted] * own)
        self._scorer.add(outputs.numpy()[counted], truth.numpy()[counted], own)
        self._own.add(outputs.numpy()[counted], truth.numpy()[counted])

    def result(self, ring: Ring) -> dict[str, Any]:
        for total in (self._losses, self._weights):
            total.reduce(ring)
        (every,) = ring.allreduce_sum([tf.constant(self._samples, tf.int64)])
        mean = float(self._losses.value / self._weights.value) if self._weights.value else float("nan")
        return {"samples": int(every), "loss": mean, **self._scorer.result(ring), **self._own.result(ring)}

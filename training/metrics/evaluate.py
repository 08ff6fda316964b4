"""Exact evaluation by all ranks: each sample of a split counts once, whatever the number of ranks.

Every rank scores its share (padding has weight 0 and is not counted); `scorers` combine them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..models.losses import plain_loss
from ..models.target import Target
from ..ring.ring import Ring
from .exact_sum import ExactSum
from .scorers import make_scorer

__all__ = ["evaluate"]


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
    scorer, loss_of = make_scorer(target, metrics), plain_loss(target)
    losses, weights, samples = ExactSum(), ExactSum(), 0
    for inputs, truth, weight in batches:
        outputs = predict(inputs)
        counted = weight.numpy() > 0
        own = weight.numpy()[counted].astype(np.float64)
        samples += int(counted.sum())
        weights.add(own)
        losses.add(loss_of(outputs, truth).numpy()[counted] * own)
        scorer.add(outputs.numpy()[counted], truth.numpy()[counted], own)
    for total in (losses, weights):
        total.reduce(ring)
    (every,) = ring.allreduce_sum([tf.constant(samples, tf.int64)])
    mean = float(losses.value / weights.value) if weights.value else float("nan")
    return {"samples": int(every), "loss": mean, **scorer.result(ring)}

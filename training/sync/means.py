"""Means over ranks: weighted by their samples, or robust to outliers; and tensors as one vector, to take them of.

Robust means, the coordinate-wise median and the trimmed mean, count each rank once, whatever its number of samples:
Yin et al., arXiv 1803.01498, Definitions 1 and 2.
Tested in tests/training/sync/test_rounds.py and tests/training/run/test_modes.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor
from ringfeed.training.ring.ring import Ring


def median(rows: Tensor) -> Tensor:
    """Return the median of each column, [n], of float [ranks, n]; of an even number the mean of the middle two.

    >>> median(tf.constant([[1.0, 5.0], [2.0, 6.0], [99.0, -99.0]])).numpy().tolist()
    [2.0, 5.0]
    """
    return trimmed_mean(rows, (rows.shape[0] - 1) // 2)


def trimmed_mean(rows: Tensor, count: int) -> Tensor:
    """Return the mean of each column, [n], of float [ranks, n], without its `count` smallest and largest.

    >>> trimmed_mean(tf.constant([[1.0], [2.0], [3.0], [99.0]]), 1).numpy().tolist()
    [2.5]
    """
    ordered = tf.sort(rows, axis=0)
    return tf.reduce_mean(ordered[count : rows.shape[0] - count], axis=0)


def trimmed_count(share: float, ranks: int) -> int:
    """Return how many ranks are left out at either end.

    >>> trimmed_count(0.34, 3), trimmed_count(0.34, 2)
    (1, 0)
    """
    return math.floor(share * ranks)


def weighted_mean(ring: Ring, tensors: Sequence[Tensor], weight: float) -> list[Tensor]:
    """Return ``sum(w_k * t_k) / sum(w_k)`` over ranks k (a collective); zeros if no rank has a weight.

    >>> from ringfeed.training import SoloRing
    >>> [float(mean) for mean in weighted_mean(SoloRing(), [tf.constant(3.0)], 5)]
    [3.0]
    """
    if ring.size == 1:
        return list(tensors)
    factor = tf.constant(float(weight))
    *sums, total = ring.allreduce_sum([*(tensor * tf.cast(factor, tensor.dtype) for tensor in tensors), factor])
    return [tf.math.divide_no_nan(s, tf.cast(total, s.dtype)) for s in sums]


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return the entries of all tensors as one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def parted(vector: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the tensors that `joined` made a vector from.

    >>> [part.numpy().tolist() for part in parted(joined([tf.constant([[1, 2]]), tf.constant([3])]), [[1, 2], [1]])]
    [[[1, 2]], [3]]
    """
    parts = tf.split(vector, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]

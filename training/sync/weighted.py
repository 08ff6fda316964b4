"""The mean over ranks, weighted by their samples.

Tested in tests/training/run/test_modes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.ring.ring import Ring

__all__ = ["weighted_mean"]

Tensor = Any


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

"""The trust ratio of 1-bit LAMB. Li et al., arXiv 2104.06069, Algorithm 1.

Once the second moment is frozen, the ratio of each layer is the average of its ratios so far, times a factor that
follows the second moment as it would be now. The norms of compressed steps would give another ratio.
Tested in tests/training/sync/compression/test_onebit.py.
"""

from __future__ import annotations

import tensorflow as tf

from .keras_doors import Tensor

__all__ = ["RATIO_DECAY", "next_average", "next_factor"]


RATIO_DECAY = 0.9  # the average of ratios decays by it; it and the bounds are the paper's (section 4)
_FACTORS = 0.5, 4.0
_FACTOR_STEP = 0.1  # a step changes the factor by this share of it at most


def next_average(average: Tensor, ratio: Tensor) -> Tensor:
    """Return the moving average, from 0, of the trust ratios of the dense steps; of layers, [layers].

    >>> float(next_average(tf.constant(2.0), tf.constant(12.0)))
    3.0
    """
    return RATIO_DECAY * average + (1 - RATIO_DECAY) * ratio


def next_factor(factor: Tensor, frozen_root: Tensor, root: Tensor, moves: Tensor, share: Tensor) -> Tensor:
    """Return the factor of the average after a step: the greatest quotient of the roots, within bounds.

    Args:
        factor: the step before's, [layers]; at first 1.
        frozen_root, root: what the optimizer divides by, and would divide by, [layers, ...].
        moves: whether an entry is ever changed, bool [layers, ...]; others do not count.
        share: norm of the step without weight decay over the whole step's, [layers]; the rest keeps the factor 1.

    >>> roots = tf.constant([[2.0, 1.0, 9.0]]), tf.constant([[1.9, 1.0, 1.0]])
    >>> round(float(next_factor(tf.ones(1), *roots, tf.constant([[True, True, False]]), tf.ones(1))[0]), 3)
    1.053
    """
    quotients = tf.where(moves, frozen_root / root, 0.0)
    greatest = tf.reduce_max(quotients, axis=list(range(1, quotients.shape.rank)))
    share = tf.minimum(share, 1.0)
    wanted = tf.clip_by_value(greatest * share + 1 - share, *_FACTORS)
    return tf.clip_by_value(wanted, factor * (1 - _FACTOR_STEP), factor * (1 + _FACTOR_STEP))

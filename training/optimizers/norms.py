"""Norms of layers, the trust ratio of LARS and LAMB, and which variables have one.

A tensor here is a stack of layers of one shape: the first dimension counts layers.
Tested in tests/training/optimizers/test_lars.py and tests/training/optimizers/test_references.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf

from .keras_doors import Tensor

_EXPONENTS = {tf.float32: (tf.int32, 0x7F800000), tf.float64: (tf.int64, 0x7FF0000000000000)}
_SAFE_SQUARES = {tf.float32: 1e-25, tf.float64: 1e-280}  # smaller sums may have lost terms to underflow


def layer_norms(layers: Tensor) -> Tensor:
    """Return the Euclidean norm of each layer, float32 or float64 [layers, ...], as [layers, 1, ...] of the same rank.

    Where squares overflow or underflow, layers are first divided by a power of two, which rounds nothing: a norm has
    the same bits either way.

    >>> print(*layer_norms(tf.constant([[3.0, 4.0], [3e30, 4e30], [3e-30, 4e-30], [0.0, 0.0]])).numpy().ravel())
    5.0 5e+30 5e-30 0.0
    """
    axes = list(range(1, layers.shape.rank))
    squares = tf.reduce_sum(layers * layers, axes, keepdims=True)

    def rescaled() -> Tensor:
        integers, mask = _EXPONENTS[layers.dtype]
        largest = tf.reduce_max(tf.abs(layers), axes, keepdims=True)
        power = tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(largest, integers), mask), layers.dtype)
        power = tf.where(tf.equal(power, 0), tf.ones_like(power), power)
        scaled = layers / power
        return power * tf.sqrt(tf.reduce_sum(scaled * scaled, axes, keepdims=True))

    is_safe = tf.logical_and(squares >= _SAFE_SQUARES[layers.dtype], tf.math.is_finite(squares))
    return tf.cond(tf.reduce_all(is_safe), lambda: tf.sqrt(squares), rescaled)


def trust_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return `numerator / denominator`, or 1 where either is zero.

    >>> trust_ratio(tf.constant([1.0, 0.0, 2.0]), tf.constant([4.0, 3.0, 0.0])).numpy().tolist()
    [0.25, 1.0, 1.0]
    """
    is_zero = tf.logical_or(tf.equal(numerator, 0), tf.equal(denominator, 0))
    return tf.where(is_zero, tf.ones_like(numerator), numerator / denominator)


def is_adapted(path: str, shape: Sequence[int], exclude: Sequence[str] | None) -> bool:
    """Whether a variable of a path, such as `dense/kernel`, and a shape gets the trust ratio and weight decay.

    `exclude` are regular expressions searched in the path; `None` is the default rule, which leaves out what has fewer
    than two dimensions: biases, and the scale and offset of normalisation layers.

    >>> is_adapted("dense/kernel", (3, 4), None), is_adapted("dense/bias", (4,), None)
    (True, False)
    >>> is_adapted("embedding/embeddings", (9, 4), ["embedding"]), is_adapted("dense/bias", (4,), [])
    (False, True)
    """
    if exclude is None:
        return len(shape) >= 2
    return not any(re.search(pattern, path) for pattern in exclude)

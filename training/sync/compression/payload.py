"""Payloads: tensors as vectors of bytes, bits packed by eight, and seeds of random rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor


def to_bytes(tensor: Tensor) -> Tensor:
    """Return a tensor [..., n] as its little-endian bytes, uint8 [..., n * itemsize].

    >>> to_bytes(tf.constant([1, 258])).numpy().tolist()
    [1, 0, 0, 0, 2, 1, 0, 0]
    """
    if tensor.dtype.size == 1:
        return tf.bitcast(tensor, tf.uint8)
    shape = tf.shape(tensor)
    width = shape[-1:] * tensor.dtype.size
    return tf.reshape(tf.bitcast(tensor, tf.uint8), tf.concat([shape[:-1], width], 0))


def from_bytes(data: Tensor, dtype: Any) -> Tensor:
    """Return the tensor [..., n] of its bytes, uint8 [..., n * itemsize].

    >>> from_bytes(to_bytes(tf.constant([[1.5, -2.0]])), tf.float32).numpy().tolist()
    [[1.5, -2.0]]
    """
    if dtype.size == 1:
        return tf.bitcast(data, dtype)
    shape = tf.shape(data)
    return tf.bitcast(tf.reshape(data, tf.concat([shape[:-1], [-1, dtype.size]], 0)), dtype)


def pack(values: Tensor, bits: int) -> Tensor:
    """Pack integers of 1, 2 or 4 bits, the first in the lowest bits: [..., n] to uint8 [..., n * bits / 8].

    >>> pack(tf.constant([1, 0, 0, 0, 0, 0, 0, 1]), 1).numpy().tolist()
    [129]
    """
    each = 8 // bits
    weights = tf.constant(2 ** (bits * np.arange(each)), tf.int32)
    groups = tf.reshape(tf.cast(values, tf.int32), tf.concat([tf.shape(values)[:-1], [-1, each]], 0))
    return tf.cast(tf.reduce_sum(groups * weights, -1), tf.uint8)


def unpack(data: Tensor, bits: int) -> Tensor:
    """Return the integers that `pack` packed, int32 [..., n].

    >>> unpack(pack(tf.constant([2, 0, 1, 2]), 2), 2).numpy().tolist()
    [2, 0, 1, 2]
    """
    shifts = tf.constant(bits * np.arange(8 // bits), tf.int32)
    values = tf.bitwise.bitwise_and(tf.bitwise.right_shift(tf.cast(data, tf.int32)[..., None], shifts), 2**bits - 1)
    return tf.reshape(values, tf.concat([tf.shape(data)[:-1], [-1]], 0))


def step_seed(seed: int, rank: int, step: Tensor, tensor: int) -> Tensor:
    """Return the seed of a tensor's random rounding in a step, int32 [2]; ranks draw independently of each other."""
    key = tf.random.experimental.stateless_fold_in(tf.constant([seed, rank], tf.int32), step)
    return tf.random.experimental.stateless_fold_in(key, tensor)

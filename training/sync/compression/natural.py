"""Natural compression: random rounding of each entry to a power of two. Horváth et al., arXiv 1905.10988, section 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ringfeed.training.config.compression import NaturalConfig
from ringfeed.training.optimizers.keras_doors import Tensor
from ringfeed.training.sync.synchronizer import SyncRun

from .gathered import Gathered
from .payload import pack, unpack

_MANTISSA_BITS, _LARGEST_EXPONENT = 23, 254
"""float32 has so many; the exponent 255 stands for infinity."""


def build(run: SyncRun, options: NaturalConfig) -> Gathered:
    return Gathered(run, Natural())


@dataclass(frozen=True, slots=True, kw_only=True)
class Natural:
    """The codec: nine bits for each entry, its sign and its exponent. The mean over seeds is the tensor itself.

    >>> codec, seed = Natural(), tf.constant([1, 2])
    >>> codec.decode(codec.encode(tf.constant([4.0, -0.5, 0.0]), seed), [3]).numpy().tolist()
    [4.0, -0.5, 0.0]
    """

    def encode(self, tensor: Tensor, seed: Tensor) -> Tensor:
        """Keep the exponent, or the next with the probability of the mantissa: equation 7."""
        flat = tf.reshape(tensor, [-1])
        bits = tf.bitcast(tf.abs(flat), tf.int32)
        exponent = tf.bitwise.right_shift(bits, _MANTISSA_BITS)
        mantissa = tf.cast(tf.bitwise.bitwise_and(bits, 2**_MANTISSA_BITS - 1), tf.float32) / 2**_MANTISSA_BITS
        up = tf.random.stateless_uniform(tf.shape(flat), seed) < mantissa
        exponent = tf.minimum(exponent + tf.cast(up, tf.int32), _LARGEST_EXPONENT)
        signs = tf.pad(tf.cast(flat < 0, tf.int32), [[0, -flat.shape[0] % 8]])
        return tf.concat([tf.cast(exponent, tf.uint8), pack(signs, 1)], 0)

    def decode(self, payload: Tensor, shape: Sequence[int]) -> Tensor:
        """The powers of two with their signs; the exponent 0 stands for 0."""
        size = math.prod(shape)
        exponent = tf.cast(payload[:size], tf.int32)
        power = tf.bitcast(tf.bitwise.left_shift(exponent, _MANTISSA_BITS), tf.float32)
        return tf.reshape(power * (1.0 - 2.0 * tf.cast(unpack(payload[size:], 1)[:size], tf.float32)), shape)

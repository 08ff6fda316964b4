"""QSGD: random rounding of each entry to a multiple of norm / levels. Alistarh et al., arXiv 1610.02132, sec. 3.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ringfeed.training.config.compression import QSGDConfig
from ringfeed.training.optimizers.keras_doors import Tensor
from ringfeed.training.sync.synchronizer import SyncRun

from .gathered import Gathered
from .payload import from_bytes, to_bytes


def build(run: SyncRun, options: QSGDConfig) -> Gathered:
    return Gathered(run, QSGD(levels=options.levels))


@dataclass(frozen=True, slots=True, kw_only=True)
class QSGD:
    """The codec: a byte for each entry, four for the norm of the tensor. The mean over seeds is the tensor itself."""

    levels: int = 127  # positive levels of an entry, in [1, 127]

    def encode(self, tensor: Tensor, seed: Tensor) -> Tensor:
        """Round ``levels * |x| / norm`` up with the probability of its fraction, else down."""
        flat = tf.reshape(tensor, [-1])
        norm = tf.norm(flat)
        scaled = self.levels * tf.math.divide_no_nan(tf.abs(flat), norm)
        low = tf.floor(scaled)
        up = tf.random.stateless_uniform(tf.shape(flat), seed) < scaled - low
        level = tf.minimum(low + tf.cast(up, tf.float32), self.levels)  # the norm may be rounded below an entry
        return tf.concat([to_bytes(norm[None]), to_bytes(tf.cast(tf.sign(flat) * level, tf.int8))], 0)

    def decode(self, payload: Tensor, shape: Sequence[int]) -> Tensor:
        norm = from_bytes(payload[:4], tf.float32)
        levels = tf.cast(from_bytes(payload[4:], tf.int8), tf.float32)
        return tf.reshape(levels * (norm / self.levels), shape)

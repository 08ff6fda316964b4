"""TernGrad: each entry becomes -s, 0 or s at random. Wen et al., arXiv 1705.07878, eqs. 3 and 5."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ringfeed.training.config.compression import TernGradConfig
from ringfeed.training.optimizers.keras_doors import Tensor
from ringfeed.training.sync.synchronizer import SyncRun

from .gathered import Gathered
from .payload import from_bytes, pack, to_bytes, unpack


def build(run: SyncRun, options: TernGradConfig) -> Gathered:
    return Gathered(run, TernGrad(clip_factor=options.clip_factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class TernGrad:
    """The codec: two bits for each entry and four bytes for the scale. Its mean over seeds is the clipped tensor."""

    clip_factor: float = 2.5  # entries are first clipped to this many standard deviations of the tensor; 0: not at all

    def encode(self, tensor: Tensor, seed: Tensor) -> Tensor:
        """Keep the sign of an entry with the probability ``|x| / s``, where s is the largest magnitude."""
        flat = tf.reshape(tensor, [-1])
        if self.clip_factor:
            limit = self.clip_factor * tf.math.reduce_std(flat)
            flat = tf.where(limit > 0, tf.clip_by_value(flat, -limit, limit), flat)
        scale = tf.reduce_max(tf.abs(flat))
        kept = tf.random.stateless_uniform(tf.shape(flat), seed) < tf.math.divide_no_nan(tf.abs(flat), scale)
        codes = tf.where(kept, tf.cast(tf.sign(flat), tf.int32), 0) + 1
        padded = tf.pad(codes, [[0, -codes.shape[0] % 4]])
        return tf.concat([to_bytes(scale[None]), pack(padded, 2)], 0)

    def decode(self, payload: Tensor, shape: Sequence[int]) -> Tensor:
        scale = from_bytes(payload[:4], tf.float32)
        codes = unpack(payload[4:], 2)[: math.prod(shape)] - 1
        return tf.reshape(tf.cast(codes, tf.float32) * scale, shape)

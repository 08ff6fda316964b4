"""Top-k sparsification: the entries of largest magnitude, as values and indices.

Aji and Heafield, arXiv 1704.05021; with error feedback it converges as SGD does: Stich et al., arXiv 1809.07599.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ringfeed.training.config.compression import TopKConfig
from ringfeed.training.optimizers.keras_doors import Tensor
from ringfeed.training.sync.synchronizer import SyncRun

from .gathered import Gathered
from .payload import from_bytes, to_bytes


def build(run: SyncRun, options: TopKConfig) -> Gathered:
    return Gathered(run, TopK(ratio=options.sent_share), error_feedback=True, together=True)


def largest(tensor: Tensor, ratio: Tensor | float) -> Tensor:
    """Return the flat indices of the entries of largest magnitude, int32 [k]; of equal ones the first count.

    Their share is `ratio`, in (0, 1]; k is rounded down, and at least 1.

    >>> sorted(largest(tf.constant([[1.0, -3.0], [2.0, 0.0]]), 0.5).numpy().tolist())
    [1, 2]
    """
    flat = tf.reshape(tensor, [-1])
    size = tf.size(flat)
    k = tf.maximum(1, tf.cast(tf.floor(tf.cast(ratio, tf.float64) * tf.cast(size, tf.float64)), tf.int32))
    return tf.math.top_k(tf.abs(flat), k, sorted=False).indices


def sparse_payload(tensor: Tensor, indices: Tensor) -> Tensor:
    """Return the entries at flat indices as a payload: float32 values, then int32 indices."""
    values = tf.gather(tf.reshape(tensor, [-1]), indices)
    return tf.concat([to_bytes(values), to_bytes(indices)], 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """The codec of sparse tensors: 8 bytes for each of the k entries that are sent.

    >>> codec = TopK(ratio=0.5)
    >>> codec.decode(codec.encode(tf.constant([1.0, -3.0, 2.0, 0.0]), None), [4]).numpy().tolist()
    [0.0, -3.0, 2.0, 0.0]
    """

    ratio: float  # share of entries that are sent

    def encode(self, tensor: Tensor, seed: Tensor) -> Tensor:
        """The k largest entries; nothing is random."""
        return sparse_payload(tensor, largest(tensor, self.ratio))

    def decode(self, payload: Tensor, shape: Sequence[int]) -> Tensor:
        half = tf.size(payload) // 2
        values, indices = from_bytes(payload[:half], tf.float32), from_bytes(payload[half:], tf.int32)
        return tf.reshape(tf.scatter_nd(indices[:, None], values, [math.prod(shape)]), shape)

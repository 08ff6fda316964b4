"""One bit for each number: its sign, and for each block of 256 numbers the mean magnitude.

Scaled signs come from EF-SignSGD, Karimireddy et al., arXiv 1901.09847, eq. (1): with the mean magnitude an error
is always smaller than what is encoded, whatever the distribution. With the root mean square of 1-bit Adam, arXiv
2102.02888, it is not where few entries are large, as in gradients; that method encodes momenta.
Tested in tests/training/sync/compression/test_codecs.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from .base import Tensor
from .payload import from_bytes, pack, to_bytes, unpack

__all__ = ["OneBit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBit:
    """The codec of `TwoStage`: a bit for each number, four bytes for each block.

    With one scale for a whole matrix, entries that have no gradient, as of pixels that are always black, would be
    moved by as much as the others.

    >>> codec = OneBit(multiple=8)
    >>> row = tf.constant([[3.0, -1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    >>> codec.decode(codec.encode(row, tf.constant([3.0]))).numpy()[0, :3].tolist()
    [2.0, -2.0, 2.0]
    """

    multiple: int = 256
    """Numbers of a block, a multiple of 8."""

    def encode(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Scales and signs; 0 counts as positive."""
        number, length = rows.shape
        blocks = tf.reshape(rows, [number, length // self.multiple, self.multiple])
        starts = tf.range(0, length, self.multiple, dtype=tf.float32)
        in_block = tf.clip_by_value(counts[:, None] - starts, 0, self.multiple)
        scales = tf.math.divide_no_nan(tf.reduce_sum(tf.abs(blocks), 2), in_block)
        return tf.concat([to_bytes(scales), pack(rows >= 0, 1)], 1)

    def decode(self, payloads: Tensor) -> Tensor:
        number, width = payloads.shape
        count = width // (self.multiple // 8 + 4)
        scales = from_bytes(payloads[:, : 4 * count], tf.float32)
        signs = tf.cast(unpack(payloads[:, 4 * count :], 1), tf.float32) * 2 - 1
        blocks = tf.reshape(signs, [number, count, self.multiple]) * scales[:, :, None]
        return tf.reshape(blocks, [number, count * self.multiple])

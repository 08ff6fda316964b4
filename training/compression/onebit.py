"""One bit for each number: its sign, and for each part of a tensor the mean magnitude.

Scaled signs are those of EF-SignSGD, Karimireddy et al., arXiv 1901.09847, eq. (1): with the mean magnitude an error
is always smaller than what is encoded, whatever the distribution. With the root mean square of 1-bit Adam, arXiv
2102.02888, it is not where few entries are large, as in gradients; that method encodes momenta.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from .base import Tensor
from .payload import from_bytes, pack, to_bytes, unpack

__all__ = ["OneBit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBit:
    """The codec of `TwoStage`: a bit for each number, four bytes for each row.

    >>> codec = OneBit()
    >>> row = tf.constant([[3.0, -1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    >>> codec.decode(codec.encode(row, tf.constant([3.0]))).numpy()[0, :3].tolist()
    [2.0, -2.0, 2.0]
    """

    multiple: int = 8

    def encode(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Scale and signs; 0 counts as positive."""
        scales = tf.math.divide_no_nan(tf.reduce_sum(tf.abs(rows), 1), counts)
        return tf.concat([to_bytes(scales[:, None]), pack(rows >= 0, 1)], 1)

    def decode(self, payloads: Tensor) -> Tensor:
        """The scale with each sign."""
        scales = from_bytes(payloads[:, :4], tf.float32)
        return (tf.cast(unpack(payloads[:, 4:], 1), tf.float32) * 2 - 1) * scales

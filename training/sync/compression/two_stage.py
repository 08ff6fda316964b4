"""Compression in two stages, each an eighth or half of a dense one: an all-to-all of parts, and an all-gather of means.

Each rank averages one part of every tensor, as in a reduce-scatter, but decodes what it receives and adds in float32.
The bytes, 2 (ranks - 1) / ranks payloads, do not grow with the ranks. Tang et al., arXiv 2102.02888, fig. 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor, Variable
from ringfeed.training.sync.synchronizer import Array, Exchange, SyncRun

from .base import Compressed, zeros_like


class RowCodec(Protocol):
    """An encoding of rows of numbers, as pure functions."""

    @property
    def multiple(self) -> int:
        """The length of a row is a multiple of this."""

    def encode(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return payloads, uint8 [rows, bytes], of float32 [rows, length].

        Rows that hold fewer than `length` entries end in zeros; `counts`, float32 [rows], says how many they hold.
        """

    def decode(self, payloads: Tensor) -> Tensor:
        """Return the rows that payloads stand for, float32 [rows, length], undefined beyond a row's count."""


def part_length(size: int, ranks: int, multiple: int) -> int:
    """Return the length of the equal parts that `ranks` ranks average of `size` entries.

    >>> part_length(100, 3, 8)
    40
    """
    return math.ceil(math.ceil(size / ranks) / multiple) * multiple


class TwoStage(Compressed):
    """The mean of gradients, encoded on the way to the rank that averages a part, and on the way back.

    With error feedback both stages keep what encoding left out, and add it the next time. Tensors of fewer than
    `least_dimensions` travel dense.
    """

    def __init__(
        self, run: SyncRun, codec: RowCodec, *, error_feedback: bool = False, least_dimensions: int = 2
    ) -> None:
        super().__init__(run.ring, run.start_step)
        self._codec, self._error_feedback = codec, error_feedback
        self.least_dimensions = least_dimensions

    def create(self, variables: Sequence[Variable]) -> None:
        """Create for each tensor the residuals of this rank's gradient, and of the part that it averages."""
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self._lengths = [part_length(size, self._ring.size, self._codec.multiple) for size in self._sizes]
        starts = [np.arange(self._ring.size) * length for length in self._lengths]
        part_counts = [
            np.clip(size - at, 0, length) for size, at, length in zip(self._sizes, starts, self._lengths, strict=True)
        ]
        # Variables: of constants TensorFlow would see that a rank without a part needs nothing of the all-to-all, and
        # prune it there, while the others wait for ever.
        self._counts = [tf.Variable(counts.astype(np.float32), trainable=False) for counts in part_counts]
        if self._error_feedback:
            own = zeros_like(self._shapes, "residual")
            self.rank_variables = own + zeros_like([[length] for length in self._lengths], "part_residual")

    def resize(self, stacked: Sequence[Array], rank: int, size: int) -> list[Array]:
        """The mean of the ranks' residuals; the parts' residuals make up one of the mean, and are cut anew."""
        count = len(self._shapes)
        result = super().resize(stacked[:count], rank, size)
        for parts, entries, length in zip(stacked[count:], self._sizes, self._lengths, strict=True):
            whole = np.zeros(size * length, np.float32)
            whole[:entries] = parts.reshape(-1)[:entries]
            result.append(whole[rank * length : (rank + 1) * length])
        return result

    def compressed_means(self, tensors: list[Tensor], others: Exchange, step: Tensor) -> tuple[list[Tensor], Exchange]:
        if not tensors:
            return [], self.dense_means(others)
        own, part = self.rank_variables[: len(tensors)], self.rank_variables[len(tensors) : 2 * len(tensors)]
        sent = []
        for i, tensor in enumerate(tensors):
            corrected = tensor + own[i] if own else tensor
            rows = self._rows(corrected, i)
            sent.append(self._codec.encode(rows, self._counts[i]))
            if own:
                own[i].assign(corrected - self._tensor(self._codec.decode(sent[i]), i))
        widths = [payload.shape[1] for payload in sent]
        received = tf.split(self._ring.alltoall(tf.concat(sent, 1)), widths, 1)
        replies = []
        for i, payloads in enumerate(received):
            count = self._counts[i][self._ring.rank]
            mean = tf.reduce_mean(self._codec.decode(payloads), 0)
            mean = tf.where(tf.range(self._lengths[i]) < tf.cast(count, tf.int32), mean, 0.0)
            mean = mean + part[i] if part else mean
            replies.append(self._codec.encode(mean[None], count[None]))
            if part:
                left = mean - self._codec.decode(replies[i])[0]
                part[i].assign(tf.where(tf.range(self._lengths[i]) < tf.cast(count, tf.int32), left, 0.0))
        gathered = tf.split(self._ring.gather(tf.concat(replies, 1)[0]), widths, 1)
        means = [self._tensor(self._codec.decode(payloads), i) for i, payloads in enumerate(gathered)]
        return means, self.dense_means(others)

    def _rows(self, tensor: Tensor, i: int) -> Tensor:
        """A tensor as the parts of all ranks, [ranks, length], ending in zeros."""
        missing = self._ring.size * self._lengths[i] - self._sizes[i]
        return tf.reshape(tf.pad(tf.reshape(tensor, [-1]), [[0, missing]]), [self._ring.size, self._lengths[i]])

    def _tensor(self, rows: Tensor, i: int) -> Tensor:
        return tf.reshape(tf.reshape(rows, [-1])[: self._sizes[i]], self._shapes[i])

"""Compression by an all-gather: each rank encodes its gradients, and all ranks decode and average what all sent.

Its bytes grow with the ranks: (ranks - 1) payloads are received, where a ring all-reduce receives 2 at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor, Variable, assign_all
from ringfeed.training.ring.ring import Ring
from ringfeed.training.sync.means import joined, parted
from ringfeed.training.sync.synchronizer import Exchange, SyncRun

from .base import Compressed, zeros_like
from .payload import step_seed


class Codec(Protocol):
    """An encoding of one tensor, as pure functions."""

    def encode(self, tensor: Tensor, seed: Tensor) -> Tensor:
        """Return the payload of a float32 tensor, uint8 [bytes]; `seed` keys random rounding."""

    def decode(self, payload: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the tensor that a payload stands for, float32 of a shape."""


def gathered_means(
    ring: Ring, codec: Codec, payloads: Sequence[Tensor], shapes: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Return the means over ranks of the tensors that the ranks' payloads stand for, by one all-gather.

    Ranks are added in their order, so all of them get the same bits.
    """
    sizes = [tf.size(payload) for payload in payloads]
    rows = ring.gather(tf.concat(payloads, 0))

    def add(totals: list[Tensor], row: Tensor) -> list[Tensor]:
        parts = tf.split(row, sizes, num=len(sizes))
        decoded = [codec.decode(part, shape) for part, shape in zip(parts, shapes, strict=True)]
        return [total + new for total, new in zip(totals, decoded, strict=True)]

    totals = tf.foldl(add, rows, initializer=[tf.zeros(shape) for shape in shapes])
    return [total / ring.size for total in totals]


class Gathered(Compressed):
    """The mean of what a codec leaves of each rank's gradients, which it encodes one by one, or `together` as one.

    With error feedback, which a codec that is unbiased does not need, a rank adds to its next gradient what the codec
    left out: Karimireddy et al., arXiv 1901.09847, Algorithm 2. So nothing is lost: all that was sent and the last
    residual add up to the sum of all gradients.
    """

    def __init__(self, run: SyncRun, codec: Codec, *, error_feedback: bool = False, together: bool = False) -> None:
        super().__init__(run.ring, run.start_step)
        self._codec, self._seed = codec, run.config.seed
        self._error_feedback, self._together = error_feedback, together

    def create(self, variables: Sequence[Variable]) -> None:
        self.rank_variables = zeros_like(self._shapes, "residual") if self._error_feedback else []

    def compressed_means(self, tensors: list[Tensor], others: Exchange, step: Tensor) -> tuple[list[Tensor], Exchange]:
        if not tensors:
            return [], self.dense_means(others)
        if self._error_feedback:
            tensors = [tensor + residual for tensor, residual in zip(tensors, self.rank_variables, strict=True)]
        tensors = [joined(tensors)] if self._together else tensors
        shapes = [list(tensor.shape) for tensor in tensors]
        payloads = [
            self._codec.encode(tensor, step_seed(self._seed, self._ring.rank, step, i))
            for i, tensor in enumerate(tensors)
        ]
        if self._error_feedback:
            encoded = zip(tensors, payloads, shapes, strict=True)
            left = [tensor - self._codec.decode(payload, shape) for tensor, payload, shape in encoded]
            assign_all(self.rank_variables, self._apart(left))
        means = gathered_means(self._ring, self._codec, payloads, shapes)
        return self._apart(means), self.dense_means(others)

    def _apart(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors that were encoded, in their own shapes."""
        return parted(tensors[0], self._shapes) if self._together else tensors

"""A ring that counts the bytes that its collectives put on the wire."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor

from .ring import Ring


class MeteredRing:
    """A ring that counts in `wire_bytes`, float64, what its reductions and exchanges receive, when they run.

    Other collectives, which are no part of a step, are not counted.

    A rank of `size` receives, and sends, of S bytes: 2 (size - 1) / size * S in a ring all-reduce, (size - 1) * S in an
    all-gather of S from each rank, and (size - 1) / size * S in an all-to-all.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.rank, self.size = ring.rank, ring.size
        self.local_rank, self.local_size = ring.local_rank, ring.local_size
        self.broadcast, self.barrier = ring.broadcast, ring.barrier
        self.allgather, self.allgather_object = ring.allgather, ring.allgather_object
        self.wire_bytes = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="wire_bytes")

    def _count(self, tensors: Sequence[Tensor], share: float) -> None:
        if share == 0.0:
            return
        known, others = 0, []
        for tensor in tensors:
            width = 4 if tensor.dtype == tf.bfloat16 else tensor.dtype.size
            if (elements := tensor.shape.num_elements()) is not None:
                known += elements * width  # an operation of a step fewer
            else:
                others.append(tf.size(tensor, tf.int64) * width)
        total = tf.constant(known, tf.int64)
        self.wire_bytes.assign_add(tf.cast(tf.add_n([total, *others]), tf.float64) * share)

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        means = self._ring.allreduce_mean(tensors)
        self._count(means, 2 * (self.size - 1) / self.size)
        return means

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        sums = self._ring.allreduce_sum(tensors)
        self._count(sums, 2 * (self.size - 1) / self.size)
        return sums

    def gather(self, tensor: Tensor) -> Tensor:
        self._count([tensor], self.size - 1)
        return self._ring.gather(tensor)

    def alltoall(self, tensor: Tensor) -> Tensor:
        self._count([tensor], (self.size - 1) / self.size)
        return self._ring.alltoall(tensor)

    def sendrecv(self, tensor: Tensor, partner: int) -> Tensor:
        self._count([tensor], float(partner != self.rank))
        return self._ring.sendrecv(tensor, partner)

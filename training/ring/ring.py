"""The ranks of a run: what they can do together, and the ring of a single process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor, Variable


class Ring(Protocol):
    """The ranks of one run. Every method is a collective: all ranks call it, in the same order.

    >>> from ringfeed.training import SoloRing
    >>> ring: Ring = SoloRing()
    >>> ring.rank, ring.size
    (0, 1)
    """

    rank: int
    """The number of this process, in [0, size)."""
    size: int
    """Number of ranks."""
    local_rank: int
    """The number of this process on its host."""
    local_size: int
    """Number of ranks on this host."""

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean over ranks of each tensor, by one grouped operation; works inside `tf.function`."""

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum over ranks of each tensor."""

    def gather(self, tensor: Tensor) -> Tensor:
        """Stack the ranks' tensors of one shape, [...] to [size, ...], in rank order; works inside `tf.function`."""

    def alltoall(self, tensor: Tensor) -> Tensor:
        """Send row r of a tensor [size, ...] to rank r, and return the rows received, in rank order (all-to-all)."""

    def sendrecv(self, tensor: Tensor, partner: int) -> Tensor:
        """Return the vector of a partner, which names this rank as its own; a rank may be its own partner."""

    def broadcast(self, variables: Sequence[Variable]) -> None:
        """Assign to each variable, on every rank, its value on rank 0."""

    def allgather(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Concatenate the ranks' arrays along the first dimension, in rank order; lengths may differ."""

    def allgather_object(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order. Values are of JSON's types."""

    def barrier(self) -> None:
        """Wait until all ranks have called it."""


class SoloRing:
    """A ring of one process: each collective is the identity.

    >>> ring = SoloRing()
    >>> ring.rank, ring.size, ring.allgather_object({"a": 1})
    (0, 1, [{'a': 1}])
    """

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [dense(t) for t in tensors]

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [dense(t) for t in tensors]

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor[None]

    def alltoall(self, tensor: Tensor) -> Tensor:
        return tensor

    def sendrecv(self, tensor: Tensor, partner: int) -> Tensor:
        return tensor

    def broadcast(self, variables: Sequence[Variable]) -> None:
        """Nothing to do."""

    def allgather(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array

    def allgather_object(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        """Nothing to do."""


def dense(tensor: Tensor) -> Tensor:
    """Return a plain tensor: `tf.IndexedSlices` would become two allgathers, whose memory grows with the ranks (#554).

    >>> slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 0]), tf.constant([2, 1]))
    >>> dense(slices).numpy().ravel().tolist()
    [3.0, 0.0]
    """
    return tf.convert_to_tensor(tensor)


def reduced_by_dtype(tensors: Sequence[Tensor], reduce: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> list[Tensor]:
    """Reduce tensors of any shapes, all of one dtype together; bfloat16 travels as float32.

    `reduce` is a collective of dense tensors of one dtype, which keeps dtype and shapes.
    """
    sent = [dense(t) for t in tensors]
    sent = [tf.cast(t, tf.float32) if t.dtype == tf.bfloat16 else t for t in sent]
    received: list[Tensor] = [None] * len(sent)
    for dtype in sorted({t.dtype.name for t in sent}):
        places = [i for i, t in enumerate(sent) if t.dtype.name == dtype]
        for place, tensor in zip(places, reduce([sent[i] for i in places]), strict=True):
            tensor.set_shape(sent[place].shape)
            received[place] = tensor
    return [tf.cast(r, t.dtype) for r, t in zip(received, tensors, strict=True)]

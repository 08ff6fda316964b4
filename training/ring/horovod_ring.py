"""The ring of Horovod, by the module that is given to it.

Tested in tests/training/ring/test_ring.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor, Variable

from .connections import Connections, expect_answers, hang_up
from .ring import reduced_by_dtype

__all__ = ["HorovodRing"]


_CARRIERS = {
    tf.bfloat16: tf.uint16,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
}  # Horovod does not broadcast these dtypes


class HorovodRing:
    """The ring of an initialised `horovod.tensorflow`.

    Args:
        hvd: the module `horovod.tensorflow`, after `hvd.init()`.
        connections: those that it has opened.

    >>> import horovod.tensorflow as hvd  # doctest: +SKIP
    >>> HorovodRing(hvd).size  # doctest: +SKIP
    """

    def __init__(self, hvd: Any, connections: Connections = frozenset()) -> None:
        self._hvd, self._connections = hvd, connections
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        self.local_rank: int = hvd.local_rank()
        self.local_size: int = hvd.local_size()

    def _grouped(self, tensors: Sequence[Tensor], op: Any) -> list[Tensor]:
        """Run one grouped allreduce per dtype: Horovod groups one dtype only."""
        return reduced_by_dtype(tensors, lambda sent: self._reduced(sent, op))

    def _reduced(self, tensors: Sequence[Tensor], op: Any) -> list[Tensor]:
        reduced: list[Tensor] = self._hvd.grouped_allreduce(tensors, op=op)
        return reduced

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean over ranks of each tensor."""
        return self._grouped(tensors, self._hvd.Average)

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over ranks of each tensor."""
        return self._grouped(tensors, self._hvd.Sum)

    def gather(self, tensor: Tensor) -> Tensor:
        """The ranks' tensors as rows, in rank order."""
        gathered = self._hvd.allgather(tensor[None])
        gathered.set_shape([self.size, *tensor.shape])
        return gathered

    def exchange(self, tensor: Tensor) -> Tensor:
        """The rows that the ranks sent to this one."""
        received = self._hvd.alltoall(tensor)
        received.set_shape(tensor.shape)
        return received

    def swap(self, tensor: Tensor, partner: int) -> Tensor:
        """The partner's vector, by an all-to-all where each rank sends to one other."""
        splits = [len(tensor) if rank == partner else 0 for rank in range(self.size)]
        received, _ = self._hvd.alltoall(tensor, splits=tf.constant(splits, tf.int32))
        received.set_shape(tensor.shape)
        return received

    def broadcast(self, variables: Sequence[Variable]) -> None:
        """Give each variable, on every rank, the value it has on rank 0."""
        for index, variable in enumerate(variables):
            value = tf.convert_to_tensor(variable)
            carrier = _CARRIERS.get(value.dtype)
            sent = value if carrier is None else tf.bitcast(value, carrier)
            received = self._hvd.broadcast(sent, root_rank=0, name=f"ringfeed.broadcast.{index}")
            variable.assign(received if carrier is None else tf.bitcast(received, value.dtype))

    def allgather(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The ranks' arrays one after another along the first dimension."""
        return np.asarray(self._hvd.allgather(tf.constant(array)).numpy())

    def allgather_object(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self.allgather(np.array([data.size], np.int64))
        joined = self.allgather(data)
        return [json.loads(part.tobytes()) for part in np.split(joined, np.cumsum(sizes)[:-1])]

    def expect_answers(self, seconds: float) -> None:
        """Let collectives fail if another rank's machine acknowledges nothing for some seconds."""
        expect_answers(self._connections, seconds)

    def hang_up(self) -> None:
        """Let collectives of all ranks fail that run now; from any thread."""
        hang_up(self._connections)

    def leave(self) -> None:
        """Leave the ring, also after a collective has failed; not itself a collective. `join` then makes another."""
        self._hvd.shutdown()
        self.hang_up()

    def barrier(self) -> None:
        """Wait for all ranks by a sum, which needs every rank: Horovod has no barrier for TensorFlow."""
        self._hvd.allreduce(tf.zeros(1), op=self._hvd.Sum)

"""The ring of Horovod, by the module that is given to it; and the same ring with reductions in two levels.

Two levels are within each host, between one rank of each host, and back within the host; the groups of ranks are
process sets of Horovod's. Of N ranks on H hosts, 2 (H - 1) messages then pass between hosts one after the other,
instead of 2 (N - 1).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor, Variable

from .connections import Connections, expect_answers, hang_up
from .ring import reduced_by_dtype
from .world import host_groups

DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"  # environment variable, "1" before `hvd.init()`
_HOST = "HOROVOD_HOSTNAME"  # which launchers with Gloo set, as the user names it
_CARRIERS = {
    tf.bfloat16: tf.uint16,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
}
"""Horovod does not broadcast these dtypes."""


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

    def _reduced(self, op: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run one grouped allreduce, of tensors of one dtype: Horovod groups no others."""
        reduced: list[Tensor] = self._hvd.grouped_allreduce(tensors, op=op)
        return reduced

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return reduced_by_dtype(tensors, partial(self._reduced, self._hvd.Average))

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return reduced_by_dtype(tensors, partial(self._reduced, self._hvd.Sum))

    def gather(self, tensor: Tensor) -> Tensor:
        gathered = self._hvd.allgather(tensor[None])
        gathered.set_shape([self.size, *tensor.shape])
        return gathered

    def alltoall(self, tensor: Tensor) -> Tensor:
        received = self._hvd.alltoall(tensor)
        received.set_shape(tensor.shape)
        return received

    def sendrecv(self, tensor: Tensor, partner: int) -> Tensor:
        """The partner's vector, by an all-to-all where each rank sends to one other."""
        splits = [tensor.shape[0] if rank == partner else 0 for rank in range(self.size)]
        received, _ = self._hvd.alltoall(tensor, splits=tf.constant(splits, tf.int32))
        received.set_shape(tensor.shape)
        return received

    def broadcast(self, variables: Sequence[Variable]) -> None:
        for index, variable in enumerate(variables):
            value = tf.convert_to_tensor(variable)
            carrier = _CARRIERS.get(value.dtype)
            sent = value if carrier is None else tf.bitcast(value, carrier)
            received = self._hvd.broadcast(sent, root_rank=0, name=f"ringfeed.broadcast.{index}")
            variable.assign(received if carrier is None else tf.bitcast(received, value.dtype))

    def allgather(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.asarray(self._hvd.allgather(tf.constant(array)).numpy())

    def allgather_object(self, value: Any) -> list[Any]:
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


class HierarchicalRing(HorovodRing):
    """A Horovod ring whose reductions have two levels; its other collectives are flat.

    `DYNAMIC` has to be in the environment at `hvd.init()`. The host is called as the launcher, or the machine, calls
    it. A ConfigError says that there are no two levels.
    """

    def __init__(self, hvd: Any, host: str | None = None) -> None:
        super().__init__(hvd)
        host = host or os.environ.get(_HOST) or socket.gethostname()
        groups = host_groups(self.allgather_object(host))
        # All ranks add all sets, in the same order.
        sets = [hvd.add_process_set(group) if len(group) > 1 else None for group in groups]
        self._leaders = hvd.add_process_set([group[0] for group in groups])
        mine = next(place for place, group in enumerate(groups) if self.rank in group)
        self._host, self._leader = sets[mine], groups[mine][0]

    def _reduced(self, op: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Reduce tensors of one dtype as one vector.

        Operations have names of their own: those that Horovod makes up follow from the graph, and a leader's has one
        operation more, so that the ranks of its host would wait for each other under different names.
        """
        name = _unique("ringfeed.hierarchical")
        total = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        if self._host is not None:
            total = self._hvd.allreduce(total, op=self._hvd.Sum, name=f"{name}.host", process_set=self._host)
        if self.rank == self._leader:
            total = self._hvd.allreduce(total, op=self._hvd.Sum, name=f"{name}.leaders", process_set=self._leaders)
        if self._host is not None:
            total = self._hvd.broadcast(total, self._leader, name=f"{name}.back", process_set=self._host)
        if op is self._hvd.Average:
            total = tf.cast(total / self.size, total.dtype)
        parts = tf.split(total, [tf.size(tensor) for tensor in tensors])
        return [tf.reshape(part, tf.shape(tensor)) for part, tensor in zip(parts, tensors, strict=True)]


def _unique(name: str) -> str:
    if tf.executing_eagerly():
        return name
    unique: str = tf.compat.v1.get_default_graph().unique_name(name)
    return unique

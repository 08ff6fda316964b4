"""A ring that reduces in two levels: within each host, between one rank of each host, and back within the host.

Of N ranks on H hosts, 2 (H - 1) messages then pass between hosts one after the other, instead of 2 (N - 1). The groups
are process sets of Horovod's.
Tested in tests/training/sync/compression/test_methods.py.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor

from .horovod_ring import HorovodRing
from .host_groups import host_groups

__all__ = ["DYNAMIC", "HierarchicalRing"]

DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"  # environment variable, "1" before `hvd.init()`
_HOST = "HOROVOD_HOSTNAME"  # which launchers with Gloo set, as the user names it


class HierarchicalRing(HorovodRing):
    """A Horovod ring whose reductions have two levels; its other collectives are flat.

    A ConfigError says that there are no two levels.

    Args:
        hvd: the module `horovod.tensorflow`, after `hvd.init()` with `DYNAMIC` in the environment.
        host: name of this rank's host; None: as the launcher, or the machine, calls it.
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

    def _reduced(self, tensors: Sequence[Tensor], op: Any) -> list[Tensor]:
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

"""Places a network's variables on parameter servers, and gives each server an optimizer of its own.

Tested in tests/training/servers/test_row_shards.py and tests/training/servers/test_worker_loop.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorflow as tf

from ringfeed.training.config.optimizers import OptimizerConfig
from ringfeed.training.optimizers.build import build_optimizer
from ringfeed.training.optimizers.keras_doors import Tensor, Variable
from ringfeed.training.optimizers.rows import update_rows


def finished(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Do some work in a graph, and return its result and a context whose operations wait for all of the work."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    result = work()
    return result, tf.control_dependencies(graph.get_operations()[before:])


def server_device(index: int) -> str:
    return f"/job:ps/replica:0/task:{index}"


class VariablePlacement:
    """Places each variable that is created in its scope on the server with the fewest bytes so far, `server_bytes`."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices
        self._chosen: int | None = None
        self.server_bytes = [0] * len(devices)

    @property
    def servers(self) -> int:
        return len(self._devices)

    def scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = tf.variable_creator_scope(self._create)
        return scope

    @contextmanager
    def on(self, server: int) -> Iterator[None]:
        """Place the variables that are created in the body on this server."""
        self._chosen = server
        try:
            yield
        finally:
            self._chosen = None

    def _create(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        filled = self.server_bytes
        server = filled.index(min(filled)) if self._chosen is None else self._chosen
        with tf.device(self._devices[server]):
            variable = next_creator(**arguments)
        filled[server] += variable.shape.num_elements() * variable.dtype.size
        return variable


class ServerOptimizers:
    """An optimizer for the variables of each server, so that an update is computed where they are.

    Of `shards` of tables, only some rows are updated. `version`, int64 on one of the servers, counts the updates so
    far.
    """

    def __init__(
        self, config: OptimizerConfig, schedule: Any, variables: Sequence[Variable], shards: Sequence[Variable] = ()
    ) -> None:
        self._shards = {id(shard) for shard in shards}
        devices = [variable.value.device for variable in variables]
        self._groups: list[tuple[str, Any, list[int]]] = []
        for device in sorted(set(devices)):
            places = [index for index, found in enumerate(devices) if found == device]
            with tf.device(device):
                self._groups.append((device, build_optimizer(config, schedule, [variables[i] for i in places]), places))
        self._variables = variables
        with tf.device(self._groups[0][0]):
            self.version = tf.Variable(0, trainable=False, dtype=tf.int64, name="version")
        self.variables = [variable for _, optimizer, _ in self._groups for variable in optimizer.variables]

    def apply(self, update: Tensor, gradients: Sequence[Tensor | None]) -> None:
        """Apply the gradients of an update, inside `tf.function`, then count it; None leaves a variable as it is.

        Workers race for the optimizers' counters, so each sets them to the number of its update.
        """
        _, after = finished(lambda: self._apply(update, gradients))
        with after:
            self.version.assign_add(1)

    def _apply(self, update: Tensor, gradients: Sequence[Tensor | None]) -> None:
        for device, optimizer, places in self._groups:
            used = [place for place in places if gradients[place] is not None]
            if not used:
                continue
            whole = [place for place in used if id(self._variables[place]) not in self._shards]
            with tf.device(device):
                optimizer.iterations.assign(tf.cast(update, optimizer.iterations.dtype))
                for place in sorted({*used} - {*whole}):
                    update_rows(optimizer, self._variables[place], _moved(gradients[place]))
                dense = [tf.convert_to_tensor(_moved(gradients[place])) for place in whole]  # rows travel, not tables
                if whole:
                    optimizer.apply(dense, [self._variables[place] for place in whole])


def _moved(gradient: Any) -> Any:
    """Copy a gradient to the present device."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape)
    return tf.identity(gradient)

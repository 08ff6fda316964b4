"""Places a network's variables on parameter servers, and gives each server an optimizer of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ..config.optimizer import OptimizerConfig
from ..optimizers.build import build_optimizer
from .ordering import finished

__all__ = ["ServerOptimizers", "placed", "server_device"]

Tensor = Any
Variable = Any


def server_device(index: int) -> str:
    """Return the device of a parameter server."""
    return f"/job:ps/replica:0/task:{index}"


@contextmanager
def placed(devices: Sequence[str]) -> Iterator[list[int]]:
    """Place each variable that is created in the body on the server with the fewest bytes so far.

    Args:
        devices: those of the servers.

    Yields:
        The bytes of each server, which grow as variables are created.
    """
    held = [0] * len(devices)

    def creator(next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        index = held.index(min(held))
        with tf.device(devices[index]):
            variable = next_creator(**arguments)
        held[index] += variable.shape.num_elements() * variable.dtype.size
        return variable

    with tf.variable_creator_scope(creator):
        yield held


class ServerOptimizers:
    """An optimizer for the variables of each server, so that an update is computed where they are.

    Args:
        config: options of the optimizer.
        schedule: learning rate by update.
        variables: a network's trainable variables.

    Attributes:
        variables: those of all optimizers, for checkpoints.
        version: number of updates applied so far, on one of the servers; int64.
    """

    def __init__(self, config: OptimizerConfig, schedule: Any, variables: Sequence[Variable]) -> None:
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
            with tf.device(device):
                optimizer.iterations.assign(tf.cast(update, optimizer.iterations.dtype))
                dense = [tf.identity(tf.convert_to_tensor(gradients[i])) for i in used]  # rows travel, not whole tables
                optimizer.apply(dense, [self._variables[i] for i in used])

"""How a worker's gradient reaches the servers' variables: parts of the loop that the chief traces.

Tested in tests/training/servers/test_parameter_server.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor

from .placement import ServerOptimizers, finished
from .task import ADDED_TOKEN, FLUSH_TOKEN, SIFT_TOKEN, VOTE_TOKEN

Gradients = Sequence[Any]


class Updates(ABC):
    """What becomes of gradients, inside `tf.function`."""

    @abstractmethod
    def send(self, number: Tensor, gradients: Gradients) -> Tensor:
        """Send the gradients of an update; return the share of their entries that was sent, a float32 scalar."""

    def end(self, number: Tensor) -> None:
        """Send what was held back, if anything is, after the last update before an evaluation or a checkpoint."""
        del number


class DirectUpdates(Updates):
    """Each gradient is an update."""

    def __init__(self, optimizers: ServerOptimizers) -> None:
        self._optimizers = optimizers

    def send(self, number: Tensor, gradients: Gradients) -> Tensor:
        self._optimizers.apply(number, gradients)
        return tf.constant(1.0)


class SynchronousUpdates(Updates):
    """The mean of the first gradients of a step, as many as are needed, is an update; see `RoundPlan`."""

    def __init__(self, optimizers: ServerOptimizers, variables: Sequence[Any], needed: int) -> None:
        self._optimizers, self._needed = optimizers, needed
        self._sums = []
        for variable in variables:
            with tf.device(variable.device):
                self._sums.append(tf.Variable(tf.zeros_like(variable), trainable=False, name="sum"))

    def send(self, number: Tensor, gradients: Gradients) -> Tensor:
        """Add the gradients to the others', unless they are late; apply the mean if they are the last."""
        pairs = [(g, total) for g, total in zip(gradients, self._sums, strict=True) if g is not None]

        def add() -> None:
            for gradient, total in pairs:
                with tf.device(total.device):
                    total.assign_add(tf.identity(tf.convert_to_tensor(gradient)))

        def apply() -> Tensor:
            means = [
                None if g is None else total.read_value() / self._needed
                for g, total in zip(gradients, self._sums, strict=True)
            ]
            _, after = finished(lambda: self._optimizers.apply(number, means))
            with after:
                for _, total in pairs:
                    with tf.device(total.device):
                        total.assign(tf.zeros_like(total))
            return tf.constant(1.0)

        def take_part() -> Tensor:
            _, after = finished(add)
            with after:
                is_last = _asked(ADDED_TOKEN)
            return tf.cond(is_last, apply, lambda: tf.constant(1.0))

        return tf.cond(_asked(VOTE_TOKEN), take_part, lambda: tf.constant(0.0))


def _asked(token: str) -> Tensor:
    (answer,) = tf.raw_ops.PyFunc(input=[tf.constant(0)], token=token, Tout=[tf.bool])
    answer.set_shape([])
    return answer


class SignificantUpdates(Updates):
    """Significant entries are an update, the others are held back; see `Significance`. A step has so many updates."""

    def __init__(
        self, optimizers: ServerOptimizers, variables: Sequence[Any], rate: Callable[[Tensor], Tensor], updates: int
    ) -> None:
        self._optimizers, self._variables, self._rate, self._updates = optimizers, variables, rate, updates
        self._connected: list[int] = []

    def send(self, number: Tensor, gradients: Gradients) -> Tensor:
        self._connected = [place for place, gradient in enumerate(gradients) if gradient is not None]
        dense = [tf.convert_to_tensor(gradients[place]) for place in self._connected]
        weights = [self._variables[place].read_value() for place in self._connected]
        inputs = [number // self._updates, self._rate_of(number), *dense, *weights]
        entries = tf.raw_ops.PyFunc(input=inputs, token=SIFT_TOKEN, Tout=[tf.int64, tf.float32] * len(dense))
        self._apply(number, entries)
        sent = tf.add_n([tf.size(values) for values in entries[1::2]])
        return tf.cast(sent, tf.float32) / float(
            sum(self._variables[place].shape.num_elements() for place in self._connected)
        )

    def end(self, number: Tensor) -> None:
        count = len(self._connected)
        entries = tf.raw_ops.PyFunc(
            input=[tf.constant(count), self._rate_of(number)], token=FLUSH_TOKEN, Tout=[tf.int64, tf.float32] * count
        )
        has_entries = tf.add_n([tf.size(values) for values in entries[1::2]]) > 0

        def apply() -> Tensor:
            _, after = finished(lambda: self._apply(number, entries))
            with after:
                return tf.constant(True)

        tf.cond(has_entries, apply, lambda: tf.constant(False))

    def _rate_of(self, number: Tensor) -> Tensor:
        return tf.cast(self._rate(number), tf.float32)

    def _apply(self, number: Tensor, entries: Sequence[Tensor]) -> None:
        gradients: list[Tensor | None] = [None] * len(self._variables)
        for order, place in enumerate(self._connected):
            variable, indices, values = self._variables[place], entries[2 * order], entries[2 * order + 1]
            with tf.device(variable.device):  # entries travel, not whole gradients
                flat = tf.scatter_nd(
                    tf.reshape(indices, [-1, 1]), tf.reshape(values, [-1]), [variable.shape.num_elements()]
                )
                gradients[place] = tf.reshape(tf.cast(flat, variable.dtype), variable.shape)
        self._optimizers.apply(number, gradients)

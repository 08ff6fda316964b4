"""The learning rate of an update that has only a share of the global batch.

Tested in tests/training/servers/test_server_log.py.
"""

from __future__ import annotations

from typing import Any

import keras

from ringfeed.training.schedules.learning_rate import scaled_learning_rate

__all__ = ["UpdateRate"]


class UpdateRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras ships no types
    """A schedule by step, as one by update: `updates` of them make a step, and each has a share of its batch.

    So each has a share of its rate, too, by the scaling rule of the run: after a step's updates, SGD has moved as far
    as by one update of the whole batch.

    Args:
        schedule: learning rate by step.
        updates: number of updates in a step.
        scaling: "linear" or "sqrt".

    >>> rate = UpdateRate(lambda step: 0.8 - 0.1 * step, 4, "linear")
    >>> round(float(rate(8)), 4)  # a quarter of 0.6
    0.15
    """

    def __init__(self, schedule: Any, updates: int, scaling: str) -> None:
        self._schedule, self._updates = schedule, updates
        self._share = scaled_learning_rate(1.0, 1, updates, scaling)

    def __call__(self, step: Any) -> Any:
        """The learning rate at an update."""
        return self._schedule(keras.ops.cast(step, "float32") / self._updates) * self._share

    def at_step(self, step: int) -> float:
        """The learning rate of the step that the updates make up."""
        return float(self._schedule(step))

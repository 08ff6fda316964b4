"""A learning rate of Keras, or of the user, by `module:function` or as an object."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.own_code import import_own, own_code
from ringfeed.training.config.schedule import ScheduleConfig

_KEY = "schedule.name"


class UserSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras ships no types
    """A function from the step, float32, to the learning rate, in TensorFlow operations, as a schedule of Keras.

    Errors name the function by `name`, and its place by `key`.

    >>> float(UserSchedule(lambda step: 0.5 / (step + 1))(1))
    0.25
    """

    warmup_steps = 0

    def __init__(
        self, function: Callable[[Any], Any], name: str = "the schedule", peak_value: float = 0.0, key: str = _KEY
    ) -> None:
        self._function, self._name, self.peak_value, self._key = function, name, peak_value, key

    def __call__(self, step: Any) -> Any:
        with own_code(self._key, self._name):
            return self._function(keras.ops.cast(step, "float32"))


def user_schedule(config: ScheduleConfig, peak_value: float, steps: int) -> UserSchedule:
    """Return the schedule that `schedule.name` names: it is called with `(peak_value, steps)` and `schedule.options`.

    Schedules of Keras take the same arguments, such as `keras.optimizers.schedules:CosineDecay`.
    """
    name = str(config.name)
    function = import_own(_KEY, name)
    with own_code(_KEY, name):
        rate = function(peak_value, steps, **config.options)
    if not callable(rate):
        raise ConfigError(f"{_KEY}: {name} must return a function of the step, got {type(rate).__name__}")
    return checked_schedule(_KEY, name, rate, peak_value)


def checked_schedule(key: str, name: str, function: Callable[[Any], Any], peak_value: float = 0.0) -> UserSchedule:
    """Return a function of the step as a schedule, after a trial, also as a part of a graph.

    A ConfigError says that its rate at step 0 is not finite, or below 0; a TrainingError that it fails, or returns no
    number.
    """
    schedule = UserSchedule(function, name, peak_value, key)
    with own_code(key, name):
        tf.function(schedule, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))
        first = float(schedule(0))
    if not (math.isfinite(first) and first >= 0):
        raise ConfigError(f"{key}: the rates of {name} must be finite and at least 0, got {first} at step 0")
    return schedule

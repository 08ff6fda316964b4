"""Metrics of the user, or of Keras, by `module:function`.

Tested in tests/training/run/test_own_code.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.config.checks import is_function
from ringfeed.training.config.own_code import import_own, own_code
from ringfeed.training.config.task import metric_name
from ringfeed.training.ring.ring import Ring

Array = npt.NDArray[Any]
Metric = Callable[[Array, Array], Any]


def import_metrics(metrics: Sequence[str] | None) -> dict[str, Metric]:
    """Import the metrics of a configuration that name functions; return them by `module:function`.

    A class of Keras' metrics, such as `keras.metrics:MeanSquaredLogarithmicError`, becomes a function, too.
    """
    return {name: _as_function(import_own("metrics", name)) for name in metrics or () if is_function(name)}


def _as_function(function: Any) -> Metric:
    if not (isinstance(function, type) and issubclass(function, keras.metrics.Metric)):
        return function  # type: ignore[no-any-return]

    def metric(target: Array, outputs: Array) -> Any:
        one = function()
        one.update_state(target[:, None] if target.ndim == 1 and outputs.shape[1] == 1 else target, outputs)
        return one.result()

    return metric


class UserMetrics:
    """The samples of an evaluation, for `metrics`: functions of `(target, outputs)` of all samples of all ranks."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics
        self._parts: list[tuple[Array, Array]] = []

    def add(self, outputs: Array, truth: Array) -> None:
        """Add samples, without padding."""
        if self._metrics:
            self._parts.append((truth, outputs))

    def result(self, ring: Ring) -> dict[str, float | None]:
        """Return the metrics by name (a collective); None where a function returns NaN.

        A TrainingError says that a function fails, or returns no number.
        """
        if not self._metrics:
            return {}
        parts = [part for of_rank in ring.allgather_object(self._parts) for part in of_rank]
        if not parts:
            return dict.fromkeys(map(metric_name, self._metrics))
        target, outputs = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return {metric_name(name): _number(name, function, target, outputs) for name, function in self._metrics.items()}


def _number(name: str, function: Metric, target: Array, outputs: Array) -> float | None:
    with own_code("metrics", name):
        value = function(target.copy(), outputs.copy())
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TrainingError(f"metrics {name}: it must return a number, got {type(value).__name__}") from None
    return None if np.isnan(number) else number

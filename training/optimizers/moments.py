"""The base of Adam and LAMB: a moving average of gradients, and one of their squares.

Tested in tests/training/optimizers/test_references.py and tests/training/optimizers/test_stacked.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .stacked import StackedOptimizer, check_argument

__all__ = ["MomentsOptimizer"]

Tensor = Any


class MomentsOptimizer(StackedOptimizer):
    """An optimizer that keeps two moments of each variable's gradients.

    Args:
        learning_rate: a float, a `LearningRateSchedule`, or a callable without arguments.
        weight_decay: at least 0.
        beta_1, beta_2: decay of the moments, in [0, 1).
        eps: added to the root of the second moment, at least 0.
        exclude, exclude_ratio, name: see `StackedOptimizer`.
        freeze_step: steps after which the second moment changes no more; None: it always does.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float,
        beta_1: float,
        beta_2: float,
        eps: float,
        exclude: Sequence[str] | None,
        name: str,
        exclude_ratio: Sequence[str] | None = None,
        freeze_step: int | None = None,
    ) -> None:
        own = type(self).__name__
        check_argument(own, "weight_decay", weight_decay, "at least 0", weight_decay >= 0)
        check_argument(own, "eps", eps, "at least 0", eps >= 0)
        check_argument(own, "beta_1", beta_1, "in [0, 1)", 0 <= beta_1 < 1)
        check_argument(own, "beta_2", beta_2, "in [0, 1)", 0 <= beta_2 < 1)
        if freeze_step is not None:
            check_argument(own, "freeze_step", freeze_step, "at least 1", freeze_step >= 1)
        super().__init__(learning_rate, name, exclude, exclude_ratio)
        self.decay_rate = float(weight_decay)
        self.beta_1, self.beta_2 = float(beta_1), float(beta_2)
        self.eps = float(eps)
        self.freeze_step = freeze_step

    def moments(self, gradient: Tensor, before_first: Tensor, before_second: Tensor) -> tuple[Tensor, Tensor]:
        """Return both moments after a gradient."""
        first = self.beta_1 * before_first + (1 - self.beta_1) * gradient
        second = self.beta_2 * before_second + (1 - self.beta_2) * gradient * gradient
        if self.freeze_step is not None:
            second = tf.where(self.iterations.value < self.freeze_step, second, before_second)
        return first, second

    def share(self, beta: float, last: int | None = None) -> Tensor:
        """Return `1 - beta ** t`, of t at most `last`; float64: float32 would lose digits of it in the first steps."""
        step = tf.cast(self.iterations.value + 1, tf.float64)
        step = step if last is None else tf.minimum(step, tf.cast(last, tf.float64))
        return -tf.math.expm1(step * tf.math.log(tf.constant(beta, tf.float64)))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, for Keras to save and restore."""
        return {
            **super().get_config(),
            "weight_decay": self.decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "eps": self.eps,
            "freeze_step": self.freeze_step,
        }

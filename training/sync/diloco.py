"""DiLoCo: an outer optimizer applies the mean change of a round. Douillard et al., arXiv 2311.08105, Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.config.sync import DiLoCoConfig
from ringfeed.training.optimizers.keras_doors import Tensor, Variable

from .periodic import Periodic


def outer_step(change: Tensor, momentum: Tensor, rate: float, factor: float) -> tuple[Tensor, Tensor]:
    """Return the change to apply and the new momentum, by SGD with Nesterov's momentum.

    ``m = factor * m + change``, ``applied = rate * (change + factor * m)``.

    >>> [float(x) for x in outer_step(tf.constant(1.0), tf.constant(2.0), 0.5, 0.5)]
    [1.0, 2.0]
    """
    momentum = factor * momentum + change
    return rate * (change + factor * momentum), momentum


class DiLoCo(Periodic):
    """Rounds whose mean change an outer SGD with Nesterov's momentum applies.

    With rate 1 and no momentum it is local SGD. The paper has 500 steps a round, AdamW on each rank, and outside of it
    the rate 0.7 and the momentum 0.9.
    """

    _options: DiLoCoConfig

    def build(self, variables: Sequence[Variable], optimizer: Any = None) -> None:
        super().build(variables, optimizer)
        self.shared_variables = [tf.Variable(tf.zeros_like(v.value), name="outer_momentum") for v in variables]

    def combine(self, changes: list[Tensor], step: int) -> tuple[list[Tensor], list[Tensor]]:
        """The outer step of the mean change, and the outer momentum after it."""
        means, _ = super().combine(changes, step)
        rate, factor = self._options.outer_learning_rate, self._options.outer_momentum
        pairs = [
            outer_step(mean, momentum, rate, factor)
            for mean, momentum in zip(means, self.shared_variables, strict=True)
        ]
        return [applied for applied, _ in pairs], [momentum for _, momentum in pairs]

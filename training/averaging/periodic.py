"""Periodic averaging: ranks train alone for some steps, then agree on new weights. Local SGD is its plain form.

Local SGD: Stich, arXiv 1805.09767. Post-local SGD, with synchronous steps first: Lin et al., arXiv 1808.07217.
Tested in tests/training/averaging/test_rounds.py and tests/training/compression/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.synchronizer import EveryStep

__all__ = ["Periodic", "Tensor", "Variable"]

Tensor = Any
Variable = Any


class Periodic(EveryStep):
    """Rounds of `every` steps, at whose end the ranks' weights become ``base + combine(weights - base)``.

    `base` are the weights at the last round, the same on all ranks. With the mean as `combine` this is local SGD; it
    averages changes, not weights, since a mean of equal numbers need not have their bits. A round also ends before an
    evaluation and a checkpoint. Scalars are averaged in each step: by them
    ranks agree on overflows and on whether to stop.

    Args:
        ring: the ranks.
        every: steps of a round: it ends after the steps that are multiples of it.
        start_step: steps before this one are synchronous.
        average_slots: whether the optimizer's state is averaged, too; else each rank keeps its own.
    """

    def __init__(self, ring: Ring, every: int, *, start_step: int = 0, average_slots: bool = False) -> None:
        super().__init__(ring)
        self._every, self._start_step, self._average_slots = every, start_step, average_slots
        self._is_apart = False

    def build(self, variables: Sequence[Variable], slots: Sequence[Variable]) -> None:
        """Remember whose values to average."""
        self._variables = [v.value for v in variables]
        self._slots = [v.value for v in slots if "float" in str(v.dtype)]
        self.rank_variables = [] if self._average_slots else self._slots
        self.begin()

    def begin(self) -> None:
        """Start from the weights of now."""
        self._base = [tf.identity(v) for v in self._variables]

    def reduce(
        self, gradients: Sequence[Tensor], scalars: Sequence[Tensor], step: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """This rank's own gradients, and before `start_step` their means; the means of the scalars."""
        count = len(scalars)
        if not self._start_step:
            return list(gradients), self._ring.allreduce_mean(scalars)
        both = tf.cond(
            step < self._start_step,
            lambda: self._ring.allreduce_mean([*scalars, *gradients]),
            lambda: [*self._ring.allreduce_mean(scalars), *gradients],
        )
        return both[count:], both[:count]

    def after_step(self, step: int) -> None:
        """End a round where one is due."""
        self._is_apart = True
        if step % self._every == 0 and step > self._start_step:
            self.end_round(step)

    def end_round(self, step: int) -> None:
        """Do what ends a round."""
        self.settle()

    def settle(self) -> None:
        """Give all ranks the same weights, unless they have them."""
        if not self._is_apart:
            return
        changes = self.combine([v - base for v, base in zip(self._variables, self._base, strict=True)])
        self._base = [base + change for base, change in zip(self._base, changes, strict=True)]
        for variable, value in zip(self._variables, self._base, strict=True):
            variable.assign(value)
        if self._average_slots and self._slots:
            for variable, value in zip(self._slots, self._ring.allreduce_mean(self._slots), strict=True):
                variable.assign(value)
        self._is_apart = False

    def combine(self, changes: list[Tensor]) -> list[Tensor]:
        """Return the change that all ranks apply, from that of this rank: the mean."""
        return self._ring.allreduce_mean(changes)

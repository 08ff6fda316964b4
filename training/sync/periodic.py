"""Periodic averaging: ranks train alone for some steps, then agree on new weights. Local SGD is its plain form.

Local SGD: Stich, arXiv 1805.09767. Post-local SGD, with synchronous steps first: Lin et al., arXiv 1808.07217.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.config.sync import RoundsConfig
from ringfeed.training.optimizers.keras_doors import Tensor, Variable, assign_all

from .synchronizer import EveryStep, Exchange, SyncRun


class Periodic(EveryStep):
    """Rounds of `options.every` steps, at whose end the ranks' weights become ``base + combine(weights - base)``.

    `base` are the weights at the last round, the same on all ranks. With the mean as `combine` this is local SGD; it
    averages changes, not weights, since a mean of equal numbers need not have their bits. Scalars are averaged in each
    step: by them ranks agree on overflows and on whether to stop. Steps before `start_step` are synchronous.
    """

    def __init__(self, run: SyncRun, options: RoundsConfig) -> None:
        super().__init__(run.ring)
        self._options, self._every, self._start_step = options, options.every, options.start_step
        self._average_slots = options.optimizer_state == "average"

    @property
    def step_variables(self) -> Sequence[Variable]:
        """None: only the end of a round changes state of its own."""
        return ()

    def build(self, variables: Sequence[Variable], optimizer: Any = None) -> None:
        self._variables = [v.value for v in variables]
        slots = () if optimizer is None else optimizer.variables
        self._slots = [v.value for v in slots if "float" in str(v.dtype)]
        self.rank_variables = [] if self._average_slots else self._slots
        self.apart_variables = [*self._variables, *(self._slots if self._average_slots else [])]
        self.base_variables = [tf.Variable(v, trainable=False, name="base") for v in self._variables]

    def begin(self) -> None:
        assign_all(self.base_variables, self._variables)

    def reduce(self, sent: Exchange, step: Tensor) -> Exchange:
        """This rank's own gradients, and before `start_step` their means; the means of the scalars."""

        def scalars_alone() -> list[Tensor]:
            return [*self._ring.allreduce_mean(list(sent.scalars.values())), *sent.gradients]

        if not self._start_step:
            return sent.received(scalars_alone())
        everything = functools.partial(self._ring.allreduce_mean, sent.tensors)
        return sent.received(tf.cond(step < self._start_step, everything, scalars_alone))

    def after_step(self, step: int) -> None:
        if step > self._start_step and not self.open_steps(step):
            self.end_round(step)

    def open_steps(self, step: int) -> int:
        """The steps since the last round, or since those that are synchronous."""
        return min(step % self._every, max(step - self._start_step, 0))

    def end_round(self, step: int) -> None:
        """Give all ranks the weights that the round leads to."""
        weights, shared = self._outcome(step)
        assign_all([*self._variables, *self.base_variables, *self.shared_variables], [*weights, *weights, *shared])
        if self._average_slots and self._slots:
            assign_all(self._slots, self._ring.allreduce_mean(self._slots))

    def agreed(self, step: int) -> list[tuple[Variable, Tensor]]:
        """The weights if the round ended after `step`; none where all ranks hold the same."""
        if not self.open_steps(step):
            return []
        return list(zip(self._variables, self._outcome(step)[0], strict=True))

    def _outcome(self, step: int) -> tuple[list[Tensor], list[Tensor]]:
        """The weights, and the values of `shared_variables`, if the round ended after `step`."""
        changes = [v - base for v, base in zip(self._variables, self.base_variables, strict=True)]
        combined, shared = self.combine(changes, step)
        return [base + change for base, change in zip(self.base_variables, combined, strict=True)], shared

    def combine(self, changes: list[Tensor], step: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return the mean of the ranks' changes in a round, which all ranks apply, and values of `shared_variables`."""
        return self._ring.allreduce_mean(changes), []

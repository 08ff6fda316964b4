"""What ranks hold apart while they train, and what they agree on for an evaluation, a checkpoint and the end.

Apart are the weights within a round, and the statistics of batch normalisation with their moving averages. Agreeing
changes none of them: a run continues from what each rank had, so evaluations, checkpoints and stops leave no trace.

Tested in tests/training/sync/test_agreement.py and tests/training/run/test_modes.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor, Variable, assign_all, copies
from ringfeed.training.ring.replicas import replicas_of
from ringfeed.training.ring.ring import Ring

from .means import weighted_mean
from .moving import MovingAverage
from .synchronizer import Array, EveryStep, Synchronizer


class Agreement:
    """The values that all ranks agree on, beside what each of them holds.

    The weights of rounds are the synchronizer's. Of the others the ranks agree on ``base + mean(value - base)``: a
    variable that no step updates, such as one of a frozen layer, keeps its bits, which a mean of equal numbers need not
    have. In rounds, a moving average of the weights takes in what they lead to.

    Checkpoints keep the `variables`, which this rank holds, for every rank, and the `base` once.
    """

    def __init__(
        self, ring: Ring, network: Any, synchronizer: Synchronizer | None = None, average: MovingAverage | None = None
    ) -> None:
        self._ring, self._synchronizer = ring, synchronizer or EveryStep(ring)
        trainable = {id(variable) for variable in network.trainable_weights}
        moving = [v.value for v in network.weights if id(v) not in trainable and "float" in str(v.dtype)]
        self._average = average if self._synchronizer.apart_variables else None
        if average is not None:
            moving += average.statistics if self._average is None else average.variables
        is_alone = ring.size == 1 and replicas_of(ring) is None
        self._moving = [] if is_alone else moving
        self._moving_base = [tf.Variable(v, trainable=False, name="base") for v in self._moving]
        alone = self._average.variables if self._average is not None and is_alone else []
        self.variables: list[Variable] = [*self._synchronizer.apart_variables, *self._moving, *alone]
        self.base: list[Variable] = [*self._synchronizer.base_variables, *self._moving_base]
        self._own: list[list[Tensor]] | None = None  # this rank's values, while it holds the agreed ones

    def begin(self) -> None:
        """Count changes from the present values, which all ranks have to share."""
        self._synchronizer.begin()
        assign_all(self._moving_base, [copies(variable)[0] for variable in self._moving])

    def after_step(self, step: int) -> None:
        """Do what is due after a step; `step` counts from 1. At the end of a round the average takes in its weights."""
        self._synchronizer.after_step(step)
        if not self._synchronizer.open_steps(step):
            self._update_average(step, self._synchronizer.open_steps(step - 1) + 1)

    def _update_average(self, step: int, since: int) -> None:
        if self._average is not None and since:
            self._average.update(step, since)

    @contextmanager
    def applied(self, step: int, weight: float = 1.0) -> Iterator[None]:
        """Give all ranks the agreed values in the body (a collective); then each has its own again, bit for bit.

        `weight` is this rank's in the means, such as its number of samples.
        """
        if self._own is not None:
            yield
            return
        pairs = self._agreed(step, weight)
        self._own = self._values()
        _assign(pairs)
        self._update_average(step, self._synchronizer.open_steps(step))
        try:
            yield
        finally:
            for variable, own in zip(self.variables, self._own, strict=True):
                assign_all(copies(variable), own)
            self._own = None

    def settle(self, step: int = 0, weight: float = 1.0) -> None:
        """Give all ranks the agreed values for good (a collective)."""
        _assign(self._agreed(step, weight))
        self._update_average(step, self._synchronizer.open_steps(step))
        assign_all(self._moving_base, [copies(variable)[0] for variable in self._moving])

    def rows(self) -> list[Array]:
        """Return the values of this rank, also in the body of `applied`: for each variable a row for each replica."""
        values = self._values() if self._own is None else self._own
        return [np.stack([np.asarray(copy) for copy in of_variable]) for of_variable in values]

    def _values(self) -> list[list[Tensor]]:
        return [[tf.identity(copy) for copy in copies(variable)] for variable in self.variables]

    def _agreed(self, step: int, weight: float) -> list[tuple[Variable, Tensor]]:
        pairs = self._synchronizer.agreed(step)
        if not self._moving:
            return pairs
        changes = [_change(v, base) for v, base in zip(self._moving, self._moving_base, strict=True)]
        means = weighted_mean(self._ring, changes, weight)
        values = [base + mean for base, mean in zip(self._moving_base, means, strict=True)]
        return [*pairs, *zip(self._moving, values, strict=True)]


def _change(variable: Variable, base: Tensor) -> Tensor:
    """The change of a variable since `base`; the mean of its replicas."""
    changes = [copy - base for copy in copies(variable)]
    if len(changes) == 1:
        return changes[0]
    mean = np.stack([np.asarray(change) for change in changes]).mean(0, dtype=np.float64)
    return tf.cast(mean, changes[0].dtype)


def _assign(pairs: Sequence[tuple[Variable, Tensor]]) -> None:
    for variable, value in pairs:
        for copy in copies(variable):
            copy.assign(value)

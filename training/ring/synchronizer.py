"""How the ranks of a run are kept in step: what the training loop asks for, and the answer of synchronous SGD.

The loop knows no other method than this interface. Compressed and periodic synchronisation are objects of their own.
Tested in tests/training/loop/test_step.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .ring import Ring

__all__ = ["Array", "EveryStep", "Synchronizer"]

Tensor = Any
Variable = Any
Array = npt.NDArray[Any]


class Synchronizer(Protocol):
    """A method of keeping ranks in step. All ranks call every method, in the same order."""

    @property
    def rank_variables(self) -> Sequence[Variable]:
        """State of this rank alone, such as what compression has held back; checkpoints hold that of every rank."""

    @property
    def shared_variables(self) -> Sequence[Variable]:
        """State that is the same on all ranks, such as an outer momentum; checkpoints hold it once."""

    @property
    def step_variables(self) -> Sequence[Variable]:
        """State that `reduce` changes; a step that is skipped restores it."""

    @property
    def apart_variables(self) -> Sequence[Variable]:
        """Weights and optimizer state that differ between ranks within a round; checkpoints hold every rank's."""

    @property
    def base_variables(self) -> Sequence[Variable]:
        """The weights at the last round, the same on all ranks; checkpoints hold them once."""

    def resize(self, stacked: Sequence[Array], rank: int, size: int) -> list[Array]:
        """Return the values of `rank_variables` for a rank of a run that had another number of ranks.

        Args:
            stacked: for each variable its values on the earlier ranks, [ranks, ...].
            rank, size: this rank, among those of now.
        """

    def begin(self) -> None:
        """Record the initial weights. Called once, after the broadcast."""

    def build(self, variables: Sequence[Variable], slots: Sequence[Variable]) -> None:
        """Create the state for the trainable variables and the optimizer's. Called once, before the first step."""

    def reduce(
        self, gradients: Sequence[Tensor], scalars: Sequence[Tensor], step: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return what this rank applies, inside `tf.function`.

        Args:
            gradients: this rank's gradients, dense, not scaled.
            scalars: float32 scalars of this rank, such as its loss, to be averaged over ranks.
            step: the step's number, int64 scalar, the same on all ranks.

        Returns:
            The gradients to apply, and the scalars' means.
        """

    def after_step(self, step: int) -> None:
        """Do what is due after a step, outside `tf.function`; `step` counts from 1."""

    def agreed(self, step: int) -> list[tuple[Variable, Tensor]]:
        """Return the weights that all ranks agree on, by variable, for an evaluation, a checkpoint and the end.

        Nothing is assigned, and what all ranks hold anyway is left out; `step` is the number of steps done.
        """


class EveryStep:
    """Synchronous SGD: the mean of gradients and scalars in each step, by one grouped all-reduce.

    One group of all tensors gives the same bits whenever the ranks arrive; with several, their order of arrival
    decides how tensors are fused, and so the order of additions on three ranks and more.
    """

    rank_variables: Sequence[Variable] = ()
    shared_variables: Sequence[Variable] = ()
    apart_variables: Sequence[Variable] = ()
    base_variables: Sequence[Variable] = ()

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    @property
    def step_variables(self) -> Sequence[Variable]:
        """All state of its own."""
        return [*self.rank_variables, *self.shared_variables]

    def resize(self, stacked: Sequence[Array], rank: int, size: int) -> list[Array]:
        """The mean of the earlier ranks, which keeps the mean over ranks of what each has held back."""
        return [values.mean(axis=0, dtype=np.float64).astype(values.dtype) for values in stacked]

    def begin(self) -> None:
        """Nothing to do."""

    def build(self, variables: Sequence[Variable], slots: Sequence[Variable]) -> None:
        """Nothing to do."""

    def reduce(
        self, gradients: Sequence[Tensor], scalars: Sequence[Tensor], step: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The means over ranks."""
        reduced = self._ring.allreduce_mean([*scalars, *gradients])
        return reduced[len(scalars) :], reduced[: len(scalars)]

    def after_step(self, step: int) -> None:
        """Nothing to do."""

    def agreed(self, step: int) -> list[tuple[Variable, Tensor]]:
        """None: the ranks never differ."""
        return []

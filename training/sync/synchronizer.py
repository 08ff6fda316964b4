"""How the ranks of a run are kept in step: what the training loop asks for, and the answer of synchronous SGD.

The loop knows no other method than this interface. Compressed and periodic synchronisation are objects of their own.
Tested in tests/training/step/test_train_step.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringfeed.training.config.compression import CompressionConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.keras_doors import Tensor, Variable
from ringfeed.training.ring.ring import Ring

Array = npt.NDArray[Any]


class Exchange(NamedTuple):
    """What a rank sends in a step, or the means over ranks that it receives.

    Attributes:
        gradients: one for each trainable variable, dense, not scaled.
        overflowed: 1.0 if the rank's gradients are not finite, float32 scalar.
        loss: the rank's loss, float32 scalar; by samples: times `samples`.
        stopping: 1.0 if the rank was asked to stop, float32 scalar.
        samples: the rank's samples, float32 scalar; None: all ranks count alike.

    >>> sent = Exchange([[1.0, 2.0]], loss=0.5)
    >>> sent.tensors, sent.received([0.25, [0.5, 1.0]]).gradients
    ([0.5, [1.0, 2.0]], [[0.5, 1.0]])
    """

    gradients: Sequence[Tensor]
    overflowed: Tensor = None
    loss: Tensor = None
    stopping: Tensor = None
    samples: Tensor = None

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The scalars by name."""
        return {name: value for name, value in self._asdict().items() if name != "gradients" and value is not None}

    @property
    def tensors(self) -> list[Tensor]:
        """All scalars, then all gradients."""
        return [*self.scalars.values(), *self.gradients]

    def received(self, tensors: Sequence[Tensor]) -> Exchange:
        """Return the same with the values of `tensors`."""
        names = list(self.scalars)
        return self._replace(gradients=list(tensors[len(names) :]), **dict(zip(names, tensors, strict=False)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRun:
    """What a method of synchronisation is built for."""

    config: TrainConfig
    ring: Ring
    steps_per_epoch: int
    # From a step to the samples that this rank trains on before it, since the run began
    samples_before: Callable[[int], int]

    @property
    def steps(self) -> int:
        """Steps that the schedules of the run are made for."""
        return self.config.schedule_steps(self.steps_per_epoch)

    @property
    def start_step(self) -> int:
        """Steps before the first compressed one."""
        return self.config.compression.dense_steps(self.steps)


class Synchronizer:
    """A method of keeping ranks in step. All ranks call every method, in the same order.

    >>> from ringfeed.training import EveryStep, SoloRing
    >>> synchronizer: Synchronizer = EveryStep(SoloRing())
    >>> synchronizer.is_plain_mean, synchronizer.agreed(step=3)
    (True, [])
    """

    is_plain_mean = False
    """Whether an overflow of any rank is in the result, so that no rank has to look for its own before."""
    rank_variables: Sequence[Variable] = ()
    """State of this rank alone, such as residuals of compression; checkpoints hold every rank's."""
    shared_variables: Sequence[Variable] = ()
    """State that is the same on all ranks, such as an outer momentum; checkpoints hold it once."""
    apart_variables: Sequence[Variable] = ()
    """Weights and optimizer state that differ between ranks within a round; checkpoints hold every rank's."""
    base_variables: Sequence[Variable] = ()
    """The weights at the last round, the same on all ranks; checkpoints hold them once."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    @property
    def step_variables(self) -> Sequence[Variable]:
        """State that `reduce` changes, by default all of its own; a step that is skipped restores it."""
        return [*self.rank_variables, *self.shared_variables]

    def resize(self, stacked: Sequence[Array], rank: int, size: int) -> list[Array]:
        """Return the values of `rank_variables` for a rank of a run that had another number of ranks.

        By default that is the mean of the earlier ranks, which keeps the mean over ranks of what each has held back.

        Args:
            stacked: for each variable its values on the earlier ranks, [ranks, ...].
            rank, size: this rank, and the number of ranks now.
        """
        return [values.mean(axis=0, dtype=np.float64).astype(values.dtype) for values in stacked]

    def begin(self) -> None:
        """Record the initial weights. Called once, after the broadcast."""

    def build(self, variables: Sequence[Variable], optimizer: Any = None) -> None:
        """Create the state for the trainable variables and the optimizer, which is built. Called once."""

    def reduce(self, sent: Exchange, step: Tensor) -> Exchange:
        """Return what this rank applies, and the means of the scalars, inside `tf.function`.

        Args:
            sent: this rank's gradients and scalars.
            step: the step's number, int64 scalar, the same on all ranks.
        """
        raise NotImplementedError(f"{type(self).__name__}.reduce")  # the one method without a default

    def after_step(self, step: int) -> None:
        """Do what is due after a step, outside `tf.function`; `step` counts from 1."""

    def open_steps(self, step: int) -> int:
        """Return how many of the first `step` steps belong to a round that has not ended; 0 if there are no rounds."""
        return 0

    def agreed(self, step: int) -> list[tuple[Variable, Tensor]]:
        """Return the weights that all ranks agree on, by variable, for an evaluation, a checkpoint and the end.

        Nothing is assigned, and what all ranks hold anyway is left out; `step` is the number of steps done.
        """
        return []


class EveryStep(Synchronizer):
    """Synchronous SGD: the mean of gradients and scalars in each step, by one grouped all-reduce.

    One group of all tensors gives the same bits whenever the ranks arrive; with several, their order of arrival
    decides how tensors are fused, and so the order of additions on three ranks and more.

    >>> from ringfeed.training import Exchange, SoloRing
    >>> EveryStep(SoloRing()).reduce(Exchange([[1.0, 2.0]]), 0).gradients[0].numpy().tolist()
    [1.0, 2.0]
    """

    is_plain_mean = True

    def __init_subclass__(cls) -> None:
        cls.is_plain_mean = False  # what a subclass makes of gradients may hide that they are not finite

    def reduce(self, sent: Exchange, step: Tensor) -> Exchange:
        """The means over ranks."""
        return sent.received(self._ring.allreduce_mean(sent.tensors))


def build(run: SyncRun, options: CompressionConfig) -> EveryStep:
    """Return the synchronizer of a run that compresses nothing."""
    return EveryStep(run.ring)

"""Epochs of ranks that have parts of their own, of unequal sizes: who trains at what step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """The steps of an epoch that a rank trains in. It rests in the others, which are spread evenly.

    An epoch has as many steps as the largest part has batches, and each rank trains once on each of its samples. So
    each round has samples of all ranks in proportion to their parts, as far as it has enough steps.

    >>> epoch_plan = EpochPlan(batches=2, steps=5, samples=7, batch_size=4, step_samples=5.2)
    >>> [epoch_plan.trains(step) for step in range(5)]
    [True, False, True, False, False]
    >>> [epoch_plan.samples_before(step) for step in (0, 1, 3, 4, 5, 6)]
    [0, 4, 7, 7, 7, 11]
    """

    batches: int  # batches of this rank in an epoch, in [1, steps]
    steps: int
    samples: int  # samples of this rank in an epoch
    batch_size: int  # samples of each of its batches, but for the last
    step_samples: float  # samples of a step over all ranks; the mean if they differ
    repeats: bool = False  # whether each epoch has the batches of the first

    def batches_before(self, step: int) -> int:
        """Return how many batches this rank has trained on before a step of an epoch."""
        return -(-step * self.batches // self.steps)

    def trains(self, step: int) -> bool:
        """Whether this rank trains in a step of an epoch; all do in step 0."""
        return self.batches_before(step + 1) > self.batches_before(step)

    def is_full(self, step: int) -> bool:
        """Whether the batch that this rank trains on in a step of an epoch is full; only its last may not be."""
        return self.batches_before(step + 1) * self.batch_size <= self.samples

    def samples_before(self, step: int) -> int:
        """Return the number of samples that this rank has trained on in the first `step` steps of the run."""
        epochs, inner = divmod(step, self.steps)
        return epochs * self.samples + min(self.batches_before(inner) * self.batch_size, self.samples)

    def batch_at(self, step: int) -> tuple[int, int]:
        """Return epoch and number of the last batch that this rank had by a step of the run, that step included."""
        epoch, inner = divmod(step, self.steps)
        return 0 if self.repeats else epoch, self.batches_before(inner + 1) - 1

"""Hands the steps of parts of the data to workers: pure bookkeeping, without threads or sockets.

A part is what one rank of the loader reads of an epoch; worker i begins with part i. Each step of each part is done
once, whichever worker does it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """The step of an epoch whose batch is read from a part."""

    part: int
    step: int


class Over:
    """There is nothing left to do."""


OVER = Over()


@dataclass(slots=True)
class _Range:
    part: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class PartPlan:
    """The steps [start, stop) of an epoch, of as many parts as there are workers.

    A worker that has done its own part helps another: it takes half of what that one has left, or all if it has died. A
    step that a dead worker has begun is done again. With a bound, each worker does its own part, and begins no step if
    it leads the slowest by more than this many; `most_ahead` is the largest lead. Ho et al., "Stale
    Synchronous Parallel Parameter Server", NIPS 2013.

    >>> plan = PartPlan(2, 0, 2)
    >>> plan.take(0), plan.take(1)
    (WorkerStep(part=0, step=0), WorkerStep(part=1, step=0))
    >>> plan.finish(0), plan.take(0), plan.finish(0)
    (None, WorkerStep(part=0, step=1), None)
    >>> plan.take(0)  # half of what worker 1 has left after its present step
    WorkerStep(part=1, step=1)
    """

    def __init__(self, workers: int, start: int, stop: int, bound: int | None = None) -> None:
        self._bound = bound
        self._ranges = [deque([_Range(part, start, stop)] if stop > start else []) for part in range(workers)]
        self._held: dict[int, WorkerStep] = {}
        self._clocks = [0] * workers
        self._away: set[int] = set()
        self._latest = start  # end of the steps that any worker has begun
        self._begun, self._numbers = 0, [0] * workers
        self.done = 0
        self.most_ahead = 0
        self._total = workers * (stop - start)

    @property
    def is_over(self) -> bool:
        return self.done == self._total

    @property
    def steps_done(self) -> int:
        """Number of steps that the updates so far make up."""
        return self.done // len(self._ranges)

    def number(self, worker: int) -> int:
        """Return the number of the update that a worker has begun, from 0."""
        return self._numbers[worker]

    def vote(self, worker: int) -> bool:
        """Every gradient counts."""
        return True

    def add(self, worker: int) -> bool:
        """Every gradient is applied at once."""
        return True

    def take(self, worker: int) -> WorkerStep | Over | None:
        """Return the next step of a worker, `OVER`, or None if it has to wait.

        A worker that asks before it has finished a step gets the same again: TensorFlow repeats what has failed.
        """
        if worker in self._held:
            return self._held[worker]
        self._away.discard(worker)
        if not self._ranges[worker]:
            self._help(worker)
        own = self._ranges[worker]
        if not own:
            return OVER if self.is_over else None
        lead = self.lead(worker)
        if self._bound is not None and lead > self._bound:
            return None
        self.most_ahead = max(self.most_ahead, lead)
        step = WorkerStep(own[0].part, own[0].start)
        own[0].start += 1
        if not own[0]:
            own.popleft()
        self._held[worker] = step
        self._numbers[worker] = self._begun
        self._begun += 1
        self._latest = max(self._latest, step.step + 1)
        return step

    def finish(self, worker: int) -> None:
        """Note that a worker has done the step that it holds."""
        if self._held.pop(worker, None) is not None:
            self.done += 1
            self._clocks[worker] += 1

    def leave(self, worker: int) -> WorkerStep | None:
        """Note that a worker has died, and return the step that it had begun."""
        self._away.add(worker)
        step = self._held.pop(worker, None)
        if step is not None:
            self._ranges[worker].appendleft(_Range(step.part, step.step, step.step + 1))
        return step

    def cut(self) -> int:
        """Let all parts end after the same step, as early as none has begun a later one; return its end."""
        for worker, ranges in enumerate(self._ranges):
            for found in ranges:
                stop = max(found.start, min(found.stop, self._latest))
                self._total -= found.stop - stop
                found.stop = stop
            self._ranges[worker] = deque(found for found in ranges if found)
        return self._latest

    def lead(self, worker: int) -> int:
        """Return how many more steps a worker has done than the slowest of those that have work left."""
        others = [
            clock
            for other, clock in enumerate(self._clocks)
            if other not in self._away and (other in self._held or self._ranges[other])
        ]
        return self._clocks[worker] - min(others, default=self._clocks[worker])

    def _help(self, worker: int) -> None:
        """Give a worker that has nothing left a part of what another has."""
        victims = [v for v, ranges in enumerate(self._ranges) if ranges and (v in self._away or self._bound is None)]
        if not victims:
            return
        victim = max(victims, key=lambda v: (v in self._away, sum(map(len, self._ranges[v]))))
        ranges = self._ranges[victim]
        if victim in self._away:
            self._ranges[worker], self._ranges[victim] = ranges, deque()
            return
        last = ranges[-1]
        middle = last.stop - (len(last) + 1) // 2
        self._ranges[worker].append(_Range(last.part, middle, last.stop))
        last.stop = middle
        if not last:
            ranges.pop()

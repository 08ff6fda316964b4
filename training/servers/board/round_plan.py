"""Synchronous rounds with backup workers: the first gradients of a step count, late ones are dropped.

Chen et al., "Revisiting Distributed Synchronous SGD", arXiv 1604.00981, algorithms 3 and 4. Pure bookkeeping, as
`part_plan`.
"""

from __future__ import annotations

from .part_plan import OVER, Over, WorkerStep


class RoundPlan:
    """The steps [start, stop) of an epoch, one after the other; each ends with the `needed`-th gradient.

    The worker whose gradient is the last of a step applies their mean. A worker that is late goes on with the present
    step; what it would have read of those that it missed is not read in this epoch.

    >>> plan = RoundPlan(2, 1, 0, 2)
    >>> plan.take(0), plan.take(1)
    (WorkerStep(part=0, step=0), WorkerStep(part=1, step=0))
    >>> plan.vote(1), plan.vote(0), plan.add(1)  # worker 1 was first, and so the last that was needed
    (True, False, True)
    >>> plan.finish(1), plan.take(1)
    (None, WorkerStep(part=1, step=1))
    """

    most_ahead = 0

    def __init__(self, workers: int, needed: int, start: int, stop: int) -> None:
        self._workers, self._needed, self._start, self._round, self._stop = workers, needed, start, start, stop
        self._held: dict[int, WorkerStep] = {}
        self._taken: set[int] = set()  # parts of the present step, as the next two
        self._granted: set[int] = set()
        self._added: set[int] = set()
        self._last: int | None = None
        self._away: set[int] = set()

    @property
    def is_over(self) -> bool:
        return self._round >= self._stop

    @property
    def steps_done(self) -> int:
        return self._round - self._start

    def number(self, worker: int) -> int:
        return self._held[worker].step - self._start

    def take(self, worker: int) -> WorkerStep | Over | None:
        """Return a worker's part of the present step, `OVER`, or None if it has to wait for the next step."""
        if worker in self._held:
            return self._held[worker]
        self._away.discard(worker)
        if self.is_over:
            return OVER
        parts = [worker, *sorted(self._away)]
        part = next((part for part in parts if part not in self._taken), None)
        if part is None:
            return None
        self._taken.add(part)
        self._held[worker] = WorkerStep(part, self._round)
        return self._held[worker]

    def vote(self, worker: int) -> bool:
        step = self._held.get(worker)
        if step is None or step.step != self._round or len(self._granted) == self._needed:
            return False
        self._granted.add(step.part)
        return True

    def add(self, worker: int) -> bool:
        """Note that a worker has added its gradient, and return whether it has to apply the mean."""
        if worker not in self._held:
            return False  # it has died since
        self._added.add(self._held[worker].part)
        if len(self._added) < self._needed:
            return False
        self._last = worker
        return True

    def finish(self, worker: int) -> None:
        """Note that a worker is through with its step; after the one that has applied the mean, the next begins."""
        self._held.pop(worker, None)
        if worker == self._last:
            self._round += 1
            self._last = None
            for parts in (self._taken, self._granted, self._added):
                parts.clear()

    def leave(self, worker: int) -> WorkerStep | None:
        """Note that a worker has died, and return the step that it had begun; another reads its batch again."""
        self._away.add(worker)
        step = self._held.pop(worker, None)
        if step is not None and step.step == self._round:
            is_counted = step.part in self._added and worker != self._last
            if not is_counted:
                for parts in (self._taken, self._granted, self._added):
                    parts.discard(step.part)
                self._last = None if worker == self._last else self._last
        return step

    def cut(self) -> int:
        """Let the present step be the last; return its end."""
        self._stop = min(self._stop, self._round + bool(self._taken))
        return self._stop

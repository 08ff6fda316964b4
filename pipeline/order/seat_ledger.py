"""How many seats of a mixture's batches each dataset has had on each stream, before any step of any epoch.

Schedules repeat after a number of epochs once the shares no longer change, so late epochs are counted by arithmetic.
Tested in tests/pipeline/order/test_passes.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .class_balance import ClassSchedule

Int64 = npt.NDArray[np.int64]


class SeatLedger:
    """The seats before an epoch and within it.

    Args:
        schedule_of: returns the schedule of an epoch: the dataset of each seat.
        changing: epochs from 0 on whose shares may differ.
        cycle: epochs after which the schedules of later epochs repeat.
        epoch: the last epoch that is asked for; no schedule of a later one is.
        streams: streams of the mixture.
    """

    def __init__(
        self, schedule_of: Callable[[int], ClassSchedule], *, changing: int, cycle: int, epoch: int, streams: int
    ) -> None:
        self._streams, self._cycle = streams, cycle
        self._first = min(changing, epoch)  # first epoch of the cycle
        self._schedules: dict[int, ClassSchedule] = {}
        self._schedule_of = schedule_of
        known: dict[tuple[bytes, int], Int64] = {}
        rows = []
        for each in range(min(self._first + cycle, epoch)):
            schedule = self.schedule(each)
            key = (schedule.weights.tobytes(), schedule.epoch)
            if key not in known:
                known[key] = schedule.seats_before(schedule.steps, streams)
            rows.append(known[key])
        datasets = len(self.schedule(epoch).weights)
        self._before = np.cumsum([np.zeros((streams, datasets), np.int64), *rows], axis=0)  # [epochs + 1, ...]

    def schedule(self, epoch: int) -> ClassSchedule:
        """Return the schedule of an epoch."""
        if epoch > self._first:
            epoch = self._first + (epoch - self._first) % self._cycle
        if epoch not in self._schedules:
            self._schedules[epoch] = self._schedule_of(epoch)
        return self._schedules[epoch]

    def before(self, epoch: int, step: int = 0) -> Int64:
        """Return the seats before a step, int64 [streams, datasets]."""
        turns, rest = divmod(max(epoch - self._first, 0), self._cycle)
        result: Int64 = self._before[self._first + rest] if turns else self._before[epoch]
        if turns:
            result = result + turns * (self._before[self._first + self._cycle] - self._before[self._first])
        if step:
            result = result + self.schedule(epoch).seats_before(step, self._streams)
        return result

    def epoch_where(self, is_later: Callable[[Int64], bool], epoch: int) -> int:
        """Return the last epoch, up to one, before which the seats are not yet `is_later`, which never turns false."""
        return bisect_left(range(1, epoch + 1), True, key=lambda each: is_later(self.before(each)))

    def step_where(self, is_later: Callable[[Int64], bool], epoch: int, stop: int) -> int:
        """Return the last step of an epoch, below `stop`, before which the seats are not yet `is_later`."""
        return bisect_left(range(1, stop), True, key=lambda step: is_later(self.before(epoch, step)))

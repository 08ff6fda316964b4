"""A trial: samples that passed in a time, and the loops that measure one.

Tested in tests/tools/profile/test_measure.py.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .estimates import Estimate, estimate, window_rates
from .other_load import core_waits

__all__ = ["Trial", "consume", "cpu_seconds", "repeat"]

_PREFETCHED = 4  # batches, as a loader keeps ready
_LEAST_CALLS = 3  # of a slow function, however little time there is
_MOST_WAIT = 2  # times a trial's seconds, with the waits for first batches, which are not counted
_MOST_GAPS = 1 << 16  # slowest batches that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A measurement: samples that passed in a time.

    Attributes:
        samples: samples of this rank.
        seconds: their time.
        wait_seconds: part of it spent waiting for input.
        cpu_seconds: seconds of cores that this process used meanwhile.
        core_wait_seconds: seconds that its threads, together, waited for cores.
        rates: samples a second in each of up to ten parts of the time.
        gaps: seconds that each batch took, by (epoch, step), where that was noted.
    """

    samples: int
    seconds: float
    wait_seconds: float = 0.0
    cpu_seconds: float = 0.0
    core_wait_seconds: float = 0.0
    rates: tuple[float, ...] = ()
    gaps: tuple[tuple[int, int, float], ...] = ()

    @property
    def samples_per_second(self) -> float:
        """Samples of this rank a second."""
        return self.samples / self.seconds

    @property
    def estimate(self) -> Estimate:
        """The rate with its interval."""
        return estimate(self.samples_per_second, self.rates)


def cpu_seconds() -> float:
    """Seconds of cores that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def repeat(call: Callable[[], Any], batch_size: int, seconds: float) -> Trial:
    """Call a function again and again; its first two calls, which compile, are not counted.

    Args:
        call: the function, which processes one batch.
        batch_size: samples of a batch.
        seconds: how long, though at least three calls.
    """
    for _ in range(2):
        call()
    _synchronize()
    cpu = cpu_seconds()
    times = [time.perf_counter()]
    end = times[0] + seconds
    while len(times) <= _LEAST_CALLS or times[-1] < end:
        call()
        times.append(time.perf_counter())
    _synchronize()
    return Trial(
        samples=(len(times) - 1) * batch_size,
        seconds=time.perf_counter() - times[0],
        cpu_seconds=cpu_seconds() - cpu,
        rates=window_rates(times, batch_size),
    )


def consume(
    batches: Iterator[tuple[int, int, Any]], step: Callable[[Any], Any], batch_size: int, seconds: float
) -> Trial:
    """Give each batch to a step. What was prefetched is used up first; waits for first batches are not counted.

    Args:
        batches: epoch, step and batch, without end.
        step: function of a batch.
        batch_size: samples of a batch.
        seconds: how long, though at least three batches.
    """
    for _ in range(_PREFETCHED + 1):
        step(next(batches)[2])
    _synchronize()
    cpu, core_wait = cpu_seconds(), core_waits()
    begun = start = now = time.perf_counter()
    times, gaps, waited, ignored = [start], [], 0.0, 0.0
    while len(times) <= _LEAST_CALLS or (now - start < seconds and now - begun < _MOST_WAIT * seconds):
        epoch, number, batch = next(batches)
        wait = time.perf_counter() - now
        if number == 0:
            start += wait
            ignored += wait
        else:
            waited += wait
            gaps.append((epoch, number, wait))
        step(batch)
        now = time.perf_counter()
        times.append(now - ignored)
    _synchronize()
    gaps.sort(key=lambda gap: -gap[2])
    return Trial(
        samples=(len(times) - 1) * batch_size,
        seconds=time.perf_counter() - start,
        wait_seconds=waited,
        cpu_seconds=cpu_seconds() - cpu,
        core_wait_seconds=max(core_waits() - core_wait, 0.0),
        rates=window_rates(times, batch_size),
        gaps=tuple(gaps[:_MOST_GAPS]),
    )


def _synchronize() -> None:
    """Wait for what devices compute; they run behind the program."""
    import tensorflow as tf

    tf.test.experimental.sync_devices()

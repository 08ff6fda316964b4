"""The load that other programs put on the cores while something is measured, and how long that was waited for.

Tested in tests/tools/profile/trials/test_training_trials.py and tests/tools/profile/test_measure.py.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LoadClock", "core_waits"]

_STAT = Path("/proc/stat")
_TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class _Reading:
    """Busy seconds of all cores and of this process with its children, its waits by thread, and the time."""

    busy: float
    own: float
    waits: dict[str, int]
    now: float


class LoadClock:
    """Measures from its construction on what other programs take of the machine's cores; on Linux only."""

    def __init__(self) -> None:
        self._start = _read()

    def other_load(self) -> float:
        """Share of all cores' time taken by other programs, the hypervisor's included, in [0, 1]; elsewhere 0."""
        now, before = _read(), self._start
        share = (now.busy - before.busy - (now.own - before.own)) / _core_seconds(before, now)
        return min(max(share, 0.0), 1.0)

    def disturbed(self) -> float:
        """Share of the time in which one thread of this program waited for a core that another program held.

        It is that of the thread that waited longest. A program that needs few cores, or goes before the others, is not
        disturbed by them. Threads that have ended are not counted. Where Linux does not say how long threads wait, the
        same as `other_load`.
        """
        now, before = _read(), self._start
        if not now.waits:
            return self.other_load()
        waited = max(wait - before.waits.get(thread, 0) for thread, wait in now.waits.items()) / 1e9
        own = max(now.own - before.own, 1e-9)
        others = max(now.busy - before.busy - own, 0.0)
        return min(waited * others / (own + others) / max(now.now - before.now, 1e-9), 1.0)


def _read() -> _Reading:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    if not _STAT.exists():
        return _Reading(own, own, {}, time.perf_counter())
    user, _, system, _, _, irq, softirq, steal, *_ = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:])
    ticks = user + system + irq + softirq + steal  # niced programs make way
    return _Reading(ticks / os.sysconf("SC_CLK_TCK"), own, _thread_waits(), time.perf_counter())


def core_waits() -> float:
    """Seconds that all threads of this process, which are running now, have waited for a core; elsewhere 0."""
    return sum(_thread_waits().values()) / 1e9


def _thread_waits() -> dict[str, int]:
    """Nanoseconds that each thread has waited for a core; empty where the system does not say."""
    waits: dict[str, int] = {}
    for folder in _TASKS.iterdir() if _TASKS.exists() else ():
        with suppress(OSError, ValueError):  # the thread has ended, or Linux does not say
            waits[folder.name] = int((folder / "schedstat").read_text().split()[1])
    return waits


def _core_seconds(before: _Reading, now: _Reading) -> float:
    return max(now.now - before.now, 1e-9) * (os.cpu_count() or 1)

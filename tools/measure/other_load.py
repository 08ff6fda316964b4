"""What stands in the way of a measurement: the load of other programs, and Python's lock.

Tested in tests/tools/measure/test_training_trials.py and tests/tools/profile/test_measure.py.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_TASKS = Path("/proc/self/task")
_LOOK_SECONDS, _HELD_SECONDS = 0.02, 0.001


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
        """Share of the time that one thread of this program waited for a core held by another program.

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


class LockWatch:
    """Wakes now and then in a thread of its own, and notes how often other threads held Python's lock for long.

    A wait for a core, as Linux counts it, is not a wait for the lock.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ringfeed-profile-lock", daemon=True)
        self._looks = self._late = 0

    def __enter__(self) -> LockWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def held(self) -> float:
        """Share of the looks at which the lock was held for longer than a millisecond, in [0, 1]."""
        return self._late / max(self._looks, 1)

    def _watch(self) -> None:
        own = _TASKS / str(threading.get_native_id()) / "schedstat"
        while not self._ended.is_set():
            before, start = _core_wait(own), time.perf_counter()
            time.sleep(_LOOK_SECONDS)
            late = time.perf_counter() - start - _LOOK_SECONDS
            self._looks += 1
            self._late += late - (_core_wait(own) - before) > _HELD_SECONDS


def _core_wait(path: Path) -> float:
    """Seconds that a thread has waited for a core; 0 where the system does not say."""
    try:
        return int(path.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _read() -> _Reading:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    if not _STAT.exists():
        return _Reading(own, own, {}, time.perf_counter())
    user, _, system, _, _, irq, softirq, steal, *_ = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:])
    ticks = user + system + irq + softirq + steal  # niced programs make way
    return _Reading(ticks / os.sysconf("SC_CLK_TCK"), own, _thread_waits(), time.perf_counter())


def _thread_waits() -> dict[str, int]:
    """Nanoseconds that each thread has waited for a core; empty where the system does not say."""
    waits: dict[str, int] = {}
    for folder in _TASKS.iterdir() if _TASKS.exists() else ():
        with suppress(OSError, ValueError):  # the thread has ended, or Linux does not say
            waits[folder.name] = int((folder / "schedstat").read_text().split()[1])
    return waits


def _core_seconds(before: _Reading, now: _Reading) -> float:
    return max(now.now - before.now, 1e-9) * (os.cpu_count() or 1)

"""The load that other programs put on the cores while something is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["LoadClock"]

_STAT = Path("/proc/stat")


class LoadClock:
    """Measures from its construction on what share of the machine's cores other programs take; on Linux only."""

    def __init__(self) -> None:
        self._start = self._read()

    def other_load(self) -> float:
        """Share of all cores' time taken by other programs, the hypervisor's included, in [0, 1]; elsewhere 0."""
        (busy, own, now), (busy_before, own_before, before) = self._read(), self._start
        share = (busy - busy_before - (own - own_before)) / (max(now - before, 1e-9) * (os.cpu_count() or 1))
        return min(max(share, 0.0), 1.0)

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Busy seconds of all cores, of this process with its children, and the time, in seconds."""
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        if not _STAT.exists():
            return own, own, time.perf_counter()
        user, _, system, _, _, irq, softirq, steal, *_ = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:])
        ticks = user + system + irq + softirq + steal  # niced programs make way
        return ticks / os.sysconf("SC_CLK_TCK"), own, time.perf_counter()

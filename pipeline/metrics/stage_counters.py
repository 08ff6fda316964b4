"""What each stage of the loader did: items, bytes, busy and waiting seconds. The profiler reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...sharding.common.fork_safe_locks import renew_lock_in_forks
from .profiler_trace import annotate

__all__ = ["CACHE_STAGES", "FAULT_STAGES", "STAGES", "Counters", "StageStats"]

CACHE_STAGES = ("cache", "fill", "evict")
FAULT_STAGES = ("hedge", "hedge_win", "quarantine")
STAGES = ("fetch", *CACHE_STAGES, *FAULT_STAGES, "verify", "open", "plan", "gather", "deliver")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """Totals of one stage since the loader was made.

    Attributes:
        items: that passed: shards for open; samples for plan, gather and deliver; for the others files, which are
            shards and their indexes. ``fetch``: read from the source. ``cache``: served by the cache; ``fill``: put
            into it; ``evict``: removed from it to make room, by this loader. ``hedge``: asked for a second time, the
            first answer being late; ``hedge_win``: of these, answered by the second request first. ``quarantine``:
            shards left out.
        bytes: that passed.
        busy_seconds: of work, over all threads.
        wait_seconds: for the stage before, or, in ``cache``, for another process to bring a file, or, in ``deliver``,
            for the consumer to ask.
        queue_depth: items begun and not yet taken on.
    """

    items: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0
    wait_seconds: float = 0.0
    queue_depth: int = 0


@dataclass(eq=False)
class Counters:
    """Counters of all stages; any thread may add to them."""

    _stages: dict[str, list[float]] = field(default_factory=lambda: {name: [0, 0, 0.0, 0.0, 0] for name in STAGES})
    _lock: threading.RLock = field(default_factory=threading.RLock)  # a handler of a signal may ask amid an `add`

    def __post_init__(self) -> None:
        renew_lock_in_forks(self)

    def add(
        self, stage: str, *, items: int = 0, size: int = 0, busy: float = 0.0, wait: float = 0.0, queue: int = 0
    ) -> None:
        """Add to a stage: items, bytes, seconds, and the change of its queue."""
        with self._lock:
            totals = self._stages[stage]
            for place, amount in enumerate((items, size, busy, wait, queue)):
                totals[place] += amount

    @contextmanager
    def busy(self, stage: str, *, items: int = 0, size: int = 0) -> Iterator[None]:
        """Count the time of a block as busy, and show it in a trace."""
        start = time.perf_counter()
        with annotate(stage):
            yield
        self.add(stage, items=items, size=size, busy=time.perf_counter() - start)

    @contextmanager
    def waiting(self, stage: str) -> Iterator[None]:
        """Count the time of a block as waiting, and show it in a trace."""
        start = time.perf_counter()
        with annotate(f"{stage}:wait"):
            yield
        self.add(stage, wait=time.perf_counter() - start)

    def snapshot(self) -> dict[str, StageStats]:
        """The totals now, by stage."""
        with self._lock:
            return {
                name: StageStats(
                    items=int(items), bytes=int(size), busy_seconds=busy, wait_seconds=wait, queue_depth=int(queue)
                )
                for name, (items, size, busy, wait, queue) in self._stages.items()
            }

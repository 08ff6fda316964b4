"""Counters of the loader's stages: items, bytes, busy and waiting seconds; and the stages in TensorFlow's traces."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ringfeed.sharding.common.fork_safe_locks import renew_lock_in_forks

CACHE_STAGES = ("cache", "fill", "evict")
FAULT_STAGES = ("hedge", "hedge_win", "quarantine")
STAGES = ("fetch", *CACHE_STAGES, *FAULT_STAGES, "verify", "open", "plan", "gather", "deliver")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """Totals of one stage since the loader was created.

    Attributes:
        items: processed items: shards in ``open`` and ``quarantine``; samples in ``plan``, ``gather`` and ``deliver``;
            elsewhere files, which are shards and their indexes. ``fetch``: read from the source. ``cache``: served by
            the cache; ``fill``: stored in it; ``evict``: evicted from it by this loader. ``hedge``: requested a second
            time because the first answer was late; ``hedge_win``: answered first by the second request.
            ``quarantine``: left out.
        bytes: processed bytes.
        busy_seconds: seconds of work, over all threads.
        cpu_seconds: the part of `busy_seconds` on a core. The rest is a wait: for the store, a core or Python's lock.
        wait_seconds: seconds spent waiting for the previous stage; in ``fetch`` for the store, as a part of
            `busy_seconds`; in ``cache`` for another process to fetch a file; in ``deliver`` for the consumer.
        queue_depth: items begun and not yet handed on.

    >>> StageStats(items=3, busy_seconds=0.5).items
    3
    """

    items: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0
    cpu_seconds: float = 0.0
    wait_seconds: float = 0.0
    queue_depth: int = 0


@dataclass(eq=False)
class Counters:
    """The counters of all stages. Any thread may add to them."""

    _stages: dict[str, list[float]] = field(default_factory=lambda: {name: [0, 0, 0.0, 0.0, 0.0, 0] for name in STAGES})
    _lock: threading.RLock = field(default_factory=threading.RLock)  # reentrant: a signal handler may interrupt `add`

    def __post_init__(self) -> None:
        renew_lock_in_forks(self)

    def add(
        self,
        stage: str,
        *,
        items: int = 0,
        size: int = 0,
        busy: float = 0.0,
        cpu: float = 0.0,
        wait: float = 0.0,
        queue: int = 0,
    ) -> None:
        """Add to a stage: items, bytes, seconds, and the change of its queue."""
        with self._lock:
            totals = self._stages[stage]
            for column, amount in enumerate((items, size, busy, cpu, wait, queue)):
                totals[column] += amount

    @contextmanager
    def busy(self, stage: str, *, items: int = 0, size: int = 0) -> Iterator[None]:
        """Count the time of a block as busy, and show the block in traces."""
        start, cpu_start = time.perf_counter(), time.thread_time()
        with annotate(stage):
            yield
        busy, cpu = time.perf_counter() - start, time.thread_time() - cpu_start
        self.add(stage, items=items, size=size, busy=busy, cpu=cpu)

    @contextmanager
    def waiting(self, stage: str) -> Iterator[None]:
        """Count the time of a block as waiting, and show the block in traces."""
        start = time.perf_counter()
        with annotate(f"{stage}:wait"):
            yield
        self.add(stage, wait=time.perf_counter() - start)

    def snapshot(self) -> dict[str, StageStats]:
        """Return the current totals by stage."""
        with self._lock:
            return {
                name: StageStats(
                    items=int(items),
                    bytes=int(size),
                    busy_seconds=busy,
                    cpu_seconds=cpu,
                    wait_seconds=wait,
                    queue_depth=int(queue),
                )
                for name, (items, size, busy, cpu, wait, queue) in self._stages.items()
            }


def annotate(name: str) -> AbstractContextManager[Any]:
    """Return a context that shows its block in the current trace, if TensorFlow is loaded and recording one.

    Imports nothing. Without a trace, it costs 1 to 3 us (2026-11-21).
    """
    try:
        trace = sys.modules["tensorflow"].profiler.experimental.Trace
    except (KeyError, AttributeError):  # not loaded, or being loaded by another thread
        return nullcontext()
    block: AbstractContextManager[Any] = trace(f"ringfeed:{name}")
    return block

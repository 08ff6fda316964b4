"""Hedged reads: a late read is requested a second time, and one that is never answered is given up.

As in Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013), a second request is sent once the first is later than
nearly all reads before it. Only a few are sent, so that a store in trouble does not get twice the load.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.sharding.errors import RingfeedError, StorageError
from ringfeed.sharding.storage.timings import StoreTimings

from .threads import start_thread

T = TypeVar("T")
_WINDOW = 100  # most recent reads whose latencies count
_MIN_READS = 8  # reads before their latencies say what is late
_FACTOR = 3.0  # late is 3 times the 95th percentile
_HEDGED_SHARE = 0.05  # share of all reads that may be sent twice


class Latencies:
    """The latencies of recent reads of one kind, which say when a read is late. Any thread may call it."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._reads = 0
        self._hedges = 0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """Record the latency of a read."""
        with self._lock:
            self._seconds.append(seconds)

    def begin(self, timings: StoreTimings) -> float:
        """Count a new read, and return the number of seconds after which it is late.

        >>> kind = Latencies()
        >>> kind.begin(StoreTimings())
        5.0
        >>> for _ in range(8):
        ...     kind.add(0.5)
        >>> kind.begin(StoreTimings())
        1.5
        """
        with self._lock:
            self._reads += 1
            if len(self._seconds) < _MIN_READS:
                return timings.late_seconds
            return max(timings.least_late_seconds, _FACTOR * float(np.percentile(self._seconds, 95)))

    def may_hedge(self) -> bool:
        """Return whether another second request may be sent, and count it: the first, then one for every 20 reads."""
        with self._lock:
            allowed = self._hedges < 1 + _HEDGED_SHARE * self._reads
            self._hedges += allowed
            return allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer(Generic[T]):
    """The value or the error of a request."""

    second: bool
    value: T | None = None
    error: BaseException | None = None


class _Closed(Exception):
    """The loader was closed."""


class Hedging:
    """Runs reads of a remote store, with a time limit and second requests.

    Args:
        counters: counters of the loader.
        timings: when a read is late, and when it is given up.
        second: whether to send second requests.
    """

    def __init__(self, counters: Counters, timings: StoreTimings, *, second: bool) -> None:
        self._counters, self._timings = counters, timings
        self._second = second
        self._waiting: set[queue.SimpleQueue[_Answer[object]]] = set()
        self._closed = False
        self._lock = threading.RLock()  # see `FetchPool`

    def call(self, read: Callable[[], T], kind: Latencies, size: int, where: str) -> T:
        """Run a read, and return the result of the first request that succeeds.

        The other request, if there is one, is abandoned: it runs to its end in a daemon thread.

        Args:
            read: read that may run twice at the same time.
            kind: latencies of reads of this kind.
            size: bytes to read.
            where: URL of the file, for errors.

        Raises:
            StorageError: there was no answer within its time limit, or the loader was closed.
            RingfeedError: the system cannot start a thread.
            Exception: the error of `read`, once all requests have failed.
        """
        answers: queue.SimpleQueue[_Answer[T]] = queue.SimpleQueue()
        with self._lock:
            if self._closed:
                raise StorageError(f"cannot read {where}: the loader was closed")
            self._waiting.add(answers)  # type: ignore[arg-type]  # `close` adds an error alone
        try:
            return self._race(read, answers, kind, size, where)
        finally:
            with self._lock:
                self._waiting.discard(answers)

    def close(self) -> None:
        """End all waits with an error."""
        with self._lock:
            self._closed = True
            for answers in self._waiting:
                answers.put(_Answer(second=False, error=_Closed()))

    def _race(
        self, read: Callable[[], T], answers: queue.SimpleQueue[_Answer[T]], kind: Latencies, size: int, where: str
    ) -> T:
        begun = time.monotonic()
        limit = self._timings.request_limit_seconds(size)
        late = min(kind.begin(self._timings), limit) if self._second else limit
        requests, failures = 1, 0
        _send(read, answers, second=False)
        while True:
            waits = late - (time.monotonic() - begun)
            try:
                answer = answers.get(timeout=max(waits, 0.0))
            except queue.Empty:
                if time.monotonic() - begun >= limit:
                    raise StorageError(
                        f"cannot read {where}: no answer within {limit:.0f} s; check the store and the network, then "
                        "run the same command again"
                    ) from TimeoutError()
                late = limit
                if kind.may_hedge():
                    with suppress(RingfeedError):  # no thread could be started: wait for the first request
                        _send(read, answers, second=True)
                        requests += 1
                        self._counters.add("hedge", items=1, size=size)
                continue
            if isinstance(answer.error, _Closed):
                raise StorageError(f"cannot read {where}: the loader was closed")
            if answer.error is None:
                kind.add(time.monotonic() - begun)
                if answer.second:
                    self._counters.add("hedge_win", items=1, size=size)
                return answer.value  # type: ignore[return-value]  # set whenever `error` is not
            failures += 1
            if failures == requests:
                raise answer.error


def _send(read: Callable[[], T], answers: queue.SimpleQueue[_Answer[T]], *, second: bool) -> None:
    def run() -> None:
        try:
            answers.put(_Answer(second=second, value=read()))
        except BaseException as error:
            answers.put(_Answer(second=second, error=error))

    start_thread(run, "read", daemon=True)

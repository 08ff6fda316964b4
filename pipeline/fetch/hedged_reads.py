"""Reads that do not wait for ever: what is late is asked for a second time, and what never comes is given up.

The manner of Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013): a second request is sent once the first is later
than nearly all before it, and only few may be sent, so that a store in trouble is not asked for twice as much.
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

from ...sharding.errors import RingfeedError, StorageError
from ...sharding.storage.timeouts import request_limit_seconds
from ..metrics.stage_counters import Counters
from .threads import start_thread

__all__ = ["Hedging", "Latencies"]

T = TypeVar("T")
_REMEMBERED = 100  # reads
_ENOUGH = 8  # reads before their times say what is usual
_UNUSUAL_SECONDS = 5.0  # until then
_FACTOR, _LEAST_SECONDS = 3.0, 0.2  # of the 95th percentile; below it a second request gains little
_SHARE = 0.05  # of all reads, that may be sent twice


class Latencies:
    """How long reads of a kind took, and what is late for one; any thread may ask."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._reads = 0
        self._hedges = 0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """A read was answered."""
        with self._lock:
            self._seconds.append(seconds)

    def begin(self) -> float:
        """A read begins; return after how many seconds it is late.

        >>> kind = Latencies()
        >>> kind.begin()
        5.0
        >>> for _ in range(8):
        ...     kind.add(0.5)
        >>> kind.begin()
        1.5
        """
        with self._lock:
            self._reads += 1
            if len(self._seconds) < _ENOUGH:
                return _UNUSUAL_SECONDS
            return max(_LEAST_SECONDS, _FACTOR * float(np.percentile(self._seconds, 95)))

    def may_hedge(self) -> bool:
        """Whether one more second request may be sent, and count it if so: one, and then one for 20 reads."""
        with self._lock:
            allowed = self._hedges < 1 + _SHARE * self._reads
            self._hedges += allowed
            return allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer(Generic[T]):
    """Of a request: a value, or an error."""

    second: bool
    value: T | None = None
    error: BaseException | None = None


class _Closed(Exception):
    """Nobody waits any more."""


class Hedging:
    """Reads from a remote store.

    Args:
        counters: of the loader.
        second: whether a second request may be sent.
    """

    def __init__(self, counters: Counters, *, second: bool) -> None:
        self._counters = counters
        self._second = second
        self._waiting: set[queue.SimpleQueue[_Answer[object]]] = set()
        self._closed = False
        self._lock = threading.RLock()  # see `FetchPool`

    def call(self, read: Callable[[], T], kind: Latencies, size: int, where: str) -> T:
        """What a read returns, by the first of two requests that is answered, where one is sent twice.

        The other is let go: it runs to its end in a thread of its own, which holds up no exit.

        Args:
            read: one that may be done twice, at the same time.
            kind: of the read.
            size: bytes to read.
            where: the file's URL, for the error.

        Raises:
            StorageError: no answer came within `request_limit_seconds`, or the loader was closed.
            RingfeedError: the system starts no thread.
            Exception: what `read` raises, once all requests have failed.
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
        """Wait for nothing any more."""
        with self._lock:
            self._closed = True
            for answers in self._waiting:
                answers.put(_Answer(second=False, error=_Closed()))

    def _race(
        self, read: Callable[[], T], answers: queue.SimpleQueue[_Answer[T]], kind: Latencies, size: int, where: str
    ) -> T:
        begun = time.monotonic()
        limit = request_limit_seconds(size)
        late = min(kind.begin(), limit) if self._second else limit
        requests, failures = 1, 0
        _send(read, answers, second=False)
        while True:
            waits = late - (time.monotonic() - begun)
            try:
                answer = answers.get(timeout=max(waits, 0.0))
            except queue.Empty:
                if time.monotonic() - begun >= limit:
                    raise StorageError(
                        f"cannot read {where}: no answer within {limit:.0f} s; see whether the store and the network "
                        "are well, and start the same command again"
                    ) from TimeoutError()
                late = limit
                if kind.may_hedge():
                    with suppress(RingfeedError):  # the system starts no thread: the first request goes on
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
                return answer.value  # type: ignore[return-value]  # there is one, without an error
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

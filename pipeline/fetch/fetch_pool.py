"""Background threads that run the most urgent task first, as many at a time as an `AdaptiveLimit` allows."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from ringfeed.sharding.errors import RingfeedError

from .adaptive_limit import AdaptiveLimit
from .threads import Threads

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class _Task(Generic[T]):
    future: Future[T]
    function: Callable[[], T]
    size: int


@dataclass(order=True, slots=True)
class _Entry(Generic[T]):
    """A task in the queue, ordered by step. A task may have several entries; the earliest counts."""

    step: int
    number: int
    task: _Task[T] = field(compare=False)


class FetchPool(Generic[T]):
    """Runs functions in background threads, in the order of the steps that need them.

    Args:
        limit: limit on concurrent functions.
        most: highest number of threads.
    """

    def __init__(self, limit: AdaptiveLimit, most: int) -> None:
        self._limit = limit
        self._threads = Threads(most, "fetch")
        self._entries: list[_Entry[T]] = []
        self._waiting: dict[Future[T], _Task[T]] = {}
        self._numbers = count()
        self._running = 0
        self._closed = False
        self._lock = threading.RLock()  # reentrant: garbage collection may call `close` in a thread that holds it

    def submit(self, step: int, function: Callable[[], T], size: int) -> Future[T]:
        """Run a function as soon as a thread is free and no other task is more urgent.

        Args:
            step: step that needs the result.
            size: bytes that it fetches.

        Returns:
            Future of the result; cancelled if the pool is closed.

        Raises:
            RingfeedError: the system cannot start a thread.
        """
        task: _Task[T] = _Task(future=Future(), function=function, size=size)
        with self._lock:
            if self._closed:
                task.future.cancel()
                return task.future
            self._waiting[task.future] = task
            heapq.heappush(self._entries, _Entry(step, next(self._numbers), task))
        self._begin()
        return task.future

    def hasten(self, future: Future[T], step: int) -> None:
        """Note that this step needs a result, too. Moves the task forward if it has not begun."""
        with self._lock:
            task = self._waiting.get(future)
            if task is not None:
                heapq.heappush(self._entries, _Entry(step, next(self._numbers), task))

    def close(self) -> None:
        """Cancel the tasks that have not begun, and let the threads end."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            self._entries = []  # a new list: this thread may be in the middle of changing the old one
        for future in waiting:
            future.cancel()
        self._threads.close()

    def _begin(self) -> None:
        """Start threads for waiting tasks, up to the limit."""
        with self._lock:
            new = max(min(self._limit.value - self._running, len(self._waiting)), 0)
            self._running += new
        for begun in range(new):
            try:
                self._threads.submit(self._work)
            except RuntimeError:  # closed in the meantime
                return
            except RingfeedError:
                with self._lock:
                    self._running -= new - begun
                raise

    def _work(self) -> None:
        while (task := self._take()) is not None:
            if task.future.set_running_or_notify_cancel():
                _run(task)
            with self._lock:
                self._limit.add(task.size, time.monotonic(), queued=bool(self._waiting))
            del task  # a waiting thread must not hold a shard
            self._begin()

    def _take(self) -> _Task[T] | None:
        """Return the most urgent task; None to end the thread."""
        with self._lock:
            if self._running <= self._limit.value:
                while self._entries:
                    task = heapq.heappop(self._entries).task
                    if self._waiting.pop(task.future, None) is not None:
                        return task
            self._running -= 1
            return None


def _run(task: _Task[T]) -> None:
    try:
        task.future.set_result(task.function())
    except BaseException as error:
        task.future.set_exception(error)

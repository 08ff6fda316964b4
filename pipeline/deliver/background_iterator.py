"""Makes items ahead of their consumer in a background thread, up to a limit in bytes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from ringfeed.pipeline.fetch.threads import in_loader_thread, start_thread

T = TypeVar("T")
_IDLE_SECONDS = 0.05  # that the thread waits for room before it ends; starting another takes 0.2 ms


def prefetch(
    items: Generator[T, None, None],
    size: Callable[[T], int],
    limit_bytes: int,
    queued: Callable[[int], None],
    *,
    join_seconds: float = 5.0,
) -> Generator[T, None, None]:
    """The same items, made in a background thread while the consumer works on earlier ones.

    The thread makes items until `limit_bytes` are ready, at least one item, waits for room for a moment, and ends. The
    next item taken starts another thread if there is room again. So a thread never keeps a program from exiting. Once
    the main thread has ended, items are made only as they are asked for.

    When the iterator ends, raises, is closed or is garbage-collected, its thread ends and `items` is closed: at once,
    or as soon as an item that takes long is made. In a forked process, which has no such thread, nothing is closed.

    Args:
        items: the items, made in the thread from the first one asked for on.
        size: the bytes of an item.
        limit_bytes: limit of the items that are ready but not yet taken; 0 for no thread.
        queued: called with each change of the number of ready items.
        join_seconds: how long closing waits for the item in progress.

    Raises:
        Exception: whatever `items` raises, after the items before it.
        RingfeedError: the system cannot start a thread.
    """
    if limit_bytes <= 0:
        yield from items
        return
    process = os.getpid()
    ahead = _Ahead(items, size, limit_bytes, queued)
    try:
        ahead.start_filling()
        while (item := ahead.take()) is not None:
            ahead.start_filling()
            yield item[0]
    finally:
        if os.getpid() == process:  # in a fork, `items` may be running and locks held for ever
            ahead.stop(join_seconds)


class _Ahead(Generic[T]):
    """The ready items. One thread fills them, one takes them."""

    def __init__(
        self, items: Generator[T, None, None], size: Callable[[T], int], limit_bytes: int, queued: Callable[[int], None]
    ) -> None:
        self._items = items
        self._size = size
        self._limit_bytes = limit_bytes
        self._queued = queued
        self._ready: deque[tuple[T, int]] = deque()
        self._held_bytes = 0
        self._lock = (
            threading.RLock()
        )  # not entered through the condition: an interrupt in its `__enter__` would leave the lock taken
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._filling = False
        self._ended = False
        self._error: BaseException | None = None

    def fill(self) -> None:
        """Make items until the limit is reached, or they end or fail: the work of one thread."""
        try:
            while self._may_continue():
                item = next(self._items)
                amount = self._size(item)
                with self._lock:
                    self._ready.append((item, amount))
                    self._held_bytes += amount
                    self._changed.notify()
                self._queued(1)
        except StopIteration:
            self._end(None)
        except BaseException as error:  # `take` raises it
            self._end(error)

    def _may_continue(self) -> bool:
        with self._lock:
            self._changed.wait_for(lambda: self._ended or self._has_room(), _IDLE_SECONDS)
            self._filling = not self._ended and self._has_room()
            return self._filling

    def _has_room(self) -> bool:
        if threading.main_thread().is_alive():
            return self._held_bytes < self._limit_bytes
        return not self._ready

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            self._ended, self._filling, self._error = True, False, error
            self._changed.notify()

    def take(self) -> tuple[T] | None:
        """The next item, or None after the last."""
        with self._lock:
            self._changed.wait_for(lambda: self._ready or self._ended)
            if not self._ready:
                if self._error is not None:
                    raise self._error
                return None
            item, amount = self._ready.popleft()
            self._held_bytes -= amount
            self._changed.notify()
        self._queued(-1)
        return (item,)

    def start_filling(self) -> None:
        """Start a thread if there is room and none is running."""
        with self._lock:
            starts = not (self._filling or self._ended) and self._has_room()
            self._filling = self._filling or starts
        if starts:
            if self._thread is not None:
                self._thread.join()  # about to end
            self._thread = start_thread(self.fill, "prefetch")

    def stop(self, join_seconds: float) -> None:
        """Make no more items, and drop those that are ready."""
        with self._lock:
            self._ended = True
            self._changed.notify()
        if self._has_joined(join_seconds):
            self._items.close()
        self._queued(-len(self._ready))
        self._ready.clear()

    def _has_joined(self, seconds: float) -> bool:
        """Whether the thread has ended. If not, it ends, and drops its items, after the item in progress.

        The garbage collector may close the iterator in any thread: the filling thread itself, or one it waits for.
        """
        if self._thread is not None and not in_loader_thread():
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

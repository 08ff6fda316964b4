"""Work done ahead of its consumer in a background thread, up to a number of bytes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from ..fetch.threads import in_loader_thread, start_thread

__all__ = ["prefetch"]

T = TypeVar("T")
_IDLE_SECONDS = 0.05  # that the thread waits for room: to start another takes 0.2 ms
_PATIENCE_SECONDS = 5.0  # for the item at hand, where the iterator is closed


def prefetch(
    items: Generator[T, None, None], size: Callable[[T], int], limit_bytes: int, queued: Callable[[int], None]
) -> Generator[T, None, None]:
    """The same items, made in a background thread while the consumer works on those before.

    The thread makes items until they hold `limit_bytes` together, at least one, and ends its turn soon after: it waits
    for the consumer for a moment alone, so that it holds up no program that ends. Once the main thread has ended, it
    makes no more than is asked for. Once the iterator has ended, raised, been closed or been let go of, its thread has
    ended and `items` is closed, or will be when the item at hand is made, if that takes long; in a process that was
    forked meanwhile, where there is no such thread, nothing is.

    Args:
        items: run in the thread, from the first item asked for on.
        size: of an item, in bytes.
        limit_bytes: that may be ready and not yet taken; 0 for no thread at all.
        queued: told each change of the number of items that are ready.

    Raises:
        Exception: whatever `items` raises, after the items before.
        RingfeedError: the system starts no thread.
    """
    if limit_bytes <= 0:
        yield from items
        return
    process = os.getpid()
    ahead = _Ahead(items, size, limit_bytes, queued)
    try:
        ahead.begin_turn()
        while (item := ahead.take()) is not None:
            ahead.begin_turn()
            yield item[0]
    finally:
        if os.getpid() == process:  # in a fork, `items` may run and locks be held, for ever
            ahead.stop()


class _Ahead(Generic[T]):
    """The items that are ready; one thread fills, one takes."""

    def __init__(
        self,
        items: Generator[T, None, None],
        size: Callable[[T], int],
        limit_bytes: int,
        queued: Callable[[int], None],
    ) -> None:
        self._items = items
        self._size = size
        self._limit_bytes = limit_bytes
        self._queued = queued
        self._ready: deque[tuple[T, int]] = deque()
        self._held_bytes = 0
        self._lock = threading.RLock()  # entered itself: an interrupt amid the condition's `__enter__` leaves it taken
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._filling = False
        self._ended = False
        self._error: BaseException | None = None

    def fill(self) -> None:
        """One turn of the thread: until the limit is reached, or the items end or fail."""
        try:
            while self._goes_on():
                item = next(self._items)
                amount = self._size(item)
                with self._lock:
                    self._ready.append((item, amount))
                    self._held_bytes += amount
                    self._changed.notify()
                self._queued(1)
        except StopIteration:
            self._end(None)
        except BaseException as error:  # raised again where the items are taken
            self._end(error)

    def _goes_on(self) -> bool:
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

    def begin_turn(self) -> None:
        """Have the thread work, if there is room again and it does not."""
        with self._lock:
            begins = not (self._filling or self._ended) and self._has_room()
            self._filling = self._filling or begins
        if begins:
            if self._thread is not None:
                self._thread.join()  # at the end of its turn
            self._thread = start_thread(self.fill, "prefetch")

    def stop(self) -> None:
        """Make no other item, and let go of all."""
        with self._lock:
            self._ended = True
            self._changed.notify()
        if self._has_joined():
            self._items.close()
        self._queued(-len(self._ready))
        self._ready.clear()

    def _has_joined(self) -> bool:
        """Whether the thread has ended; else it does so, and lets go of the items, once it has made the one at hand.

        The garbage collector may close the iterator in any thread: in this one, or in one that it waits for.
        """
        if self._thread is not None and not in_loader_thread():
            self._thread.join(_PATIENCE_SECONDS)
        return self._thread is None or not self._thread.is_alive()

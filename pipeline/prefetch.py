"""Work done ahead of its consumer in a background thread, up to a number of bytes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["prefetch"]

T = TypeVar("T")


def prefetch(
    items: Generator[T, None, None], size: Callable[[T], int], limit_bytes: int, queued: Callable[[int], None]
) -> Generator[T, None, None]:
    """The same items, made in a background thread while the consumer works on those before.

    The thread makes items until they hold `limit_bytes` together, at least one, and then ends its turn: it never
    waits for the consumer, so that it holds up no program that ends. Once the iterator has ended, raised, been closed
    or been let go of, its thread has ended and `items` is closed; in a process that was forked meanwhile, where there
    is no such thread, nothing is.

    Args:
        items: run in the thread, from the first item asked for on.
        size: of an item, in bytes.
        limit_bytes: that may be ready and not yet taken; 0 for no thread at all.
        queued: told each change of the number of items that are ready.

    Raises:
        Exception: whatever `items` raises, after the items before.
    """
    if limit_bytes <= 0:
        yield from items
        return
    process = os.getpid()
    pool = ThreadPoolExecutor(1, thread_name_prefix="ringfeed-prefetch")
    ahead = _Ahead(items, size, limit_bytes, queued)
    try:
        pool.submit(ahead.fill)
        while (item := ahead.take()) is not None:
            if ahead.next_turn():
                pool.submit(ahead.fill)
            yield item[0]
    finally:
        if os.getpid() == process:  # in a fork, `items` may run and locks be held, for ever
            ahead.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            items.close()
            ahead.clear()


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
        self._changed = threading.Condition()
        self._filling = True
        self._ended = False
        self._error: BaseException | None = None

    def fill(self) -> None:
        """One turn of the thread: until the limit is reached, or the items end or fail."""
        try:
            while self._goes_on():
                item = next(self._items)
                amount = self._size(item)
                with self._changed:
                    self._ready.append((item, amount))
                    self._held_bytes += amount
                    self._changed.notify()
                self._queued(1)
        except StopIteration:
            self._end(None)
        except BaseException as error:  # raised again where the items are taken
            self._end(error)

    def _goes_on(self) -> bool:
        with self._changed:
            self._filling = not self._ended and self._held_bytes < self._limit_bytes
            return self._filling

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._filling, self._error = True, False, error
            self._changed.notify()

    def take(self) -> tuple[T] | None:
        """The next item, or None after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            if not self._ready:
                if self._error is not None:
                    raise self._error
                return None
            item, amount = self._ready.popleft()
            self._held_bytes -= amount
        self._queued(-1)
        return (item,)

    def next_turn(self) -> bool:
        """Whether the caller has to begin another turn: the last has ended, and there is room again."""
        with self._changed:
            begins = not (self._filling or self._ended) and self._held_bytes < self._limit_bytes
            self._filling = self._filling or begins
            return begins

    def stop(self) -> None:
        """Make no other item."""
        with self._changed:
            self._ended = True

    def clear(self) -> None:
        """Let go of what was not taken."""
        self._queued(-len(self._ready))
        self._ready.clear()

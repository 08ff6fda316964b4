"""Take the next of an iterator while the one before is worked on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["read_ahead"]

T = TypeVar("T")


def read_ahead(items: Iterator[T]) -> Generator[T]:
    """The items, each taken by a thread while the one before is worked on; errors come where they would have come."""
    with ThreadPoolExecutor(1, thread_name_prefix="ringfeed-read-ahead") as thread:
        ahead = thread.submit(next, items, None)
        while (item := ahead.result()) is not None:
            ahead = thread.submit(next, items, None)
            yield item

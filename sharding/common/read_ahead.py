"""Reads the next item of an iterator in a thread while the current one is processed."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def read_ahead(items: Iterator[T]) -> Generator[T]:
    """Yield the items of an iterator, each fetched one ahead by a thread; its errors keep their place."""
    with ThreadPoolExecutor(1, thread_name_prefix="ringfeed-read-ahead") as thread:
        ahead = thread.submit(next, items, None)
        while (item := ahead.result()) is not None:
            ahead = thread.submit(next, items, None)
            yield item

"""Calls that must end: a client without a timeout of its own is called in another thread, which is waited for so long.

For the HDFS client: its calls to the NameNode wait for ever where that takes the connection and answers nothing, as one
that is stopped (SIGSTOP), swaps, or stands behind a firewall that forgot the connection does. Its reads from DataNodes
have a timeout, and are left as they are.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

__all__ = ["BoundedClient", "ListingError", "NoAnswerError", "bounded", "longest_seconds"]

T = TypeVar("T")
_LISTED = 1000  # entries of a folder that are asked for at a time
_LEAST_SECONDS, _BYTES_PER_SECOND = 300.0, 1 << 17  # many at a time share a slow link
_WRITTEN_BYTES = 8 << 20  # at a time: a slow network must not pass for a NameNode that hangs


def longest_seconds(size: int) -> float:
    """How long to wait at most for a request that moves so many bytes.

    >>> longest_seconds(1 << 20)
    308.0
    """
    return _LEAST_SECONDS + size / _BYTES_PER_SECOND


class NoAnswerError(RuntimeError):
    """A call has not returned in its time. No OSError, which fsspec passes over as it lists a folder."""


def bounded(seconds: float, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function, and give it up after so many seconds; its thread is left behind, and does not hold up the exit.

    Raises:
        NoAnswerError: it has not returned.

    >>> bounded(1, divmod, 7, 2)
    (3, 1)
    """
    if sys.is_finalizing():  # files that were left open are closed as the interpreter ends: no thread starts any more
        return function(*arguments)
    results: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((function(*arguments), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = results.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswerError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # the two come together


class ListingError(RuntimeError):
    """A folder could not be listed. No OSError, by which fsspec takes it for an empty one."""


class BoundedClient:
    """The raw client of `hdfs_native`, each of whose calls ends within `seconds`, and those of the files it writes."""

    def __init__(self, raw: Any, seconds: float) -> None:
        self._raw, self._seconds = raw, seconds

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._raw, name)
        return lambda *arguments: bounded(self._seconds, function, *arguments)

    def list_status(self, path: str, recursive: bool) -> Iterator[Any]:
        """What lies in a folder."""
        try:
            entries = iter(bounded(self._seconds, self._raw.list_status, path, recursive))
            while some := bounded(self._seconds, lambda: list(islice(entries, _LISTED))):
                yield from some
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise ListingError(str(error)) from error

    def create(self, path: str, write_options: Any) -> _BoundedWriter:
        """A new file to write."""
        return _BoundedWriter(bounded(self._seconds, self._raw.create, path, write_options), self._seconds)


class _BoundedWriter:
    def __init__(self, raw: Any, seconds: float) -> None:
        self._raw, self._seconds, self._open = raw, seconds, True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _WRITTEN_BYTES):
            bounded(self._seconds, self._raw.write, view[start : start + _WRITTEN_BYTES])
        return len(view)

    def close(self) -> None:
        if self._open:
            self._open = False  # if it fails, too: `__del__` closes once more, and would wait again
            bounded(self._seconds, self._raw.close)

"""A client of HDFS whose calls time out: `hdfs_native` waits forever for a NameNode that accepts and never answers.

Only calls that involve the NameNode need this; reads from DataNodes have a timeout of their own.
Tested in tests/pipeline/test_stores.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from .timeouts import call_within

_LISTED_ENTRIES = 1000  # fetched per call
_WRITE_BYTES = 8 << 20  # per call, so that a slow network is not taken for a hung NameNode


class ListingError(RuntimeError):
    """A folder could not be listed. Not an OSError, because fsspec takes that for an empty folder."""


class BoundedClient:
    """Wraps the raw client of `hdfs_native`: each of its calls, and of its writers', ends within `seconds`."""

    def __init__(self, raw: Any, seconds: float) -> None:
        self._raw, self._seconds = raw, seconds

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._raw, name)
        return lambda *arguments: call_within(self._seconds, function, *arguments)

    def list_status(self, path: str, recursive: bool) -> Iterator[Any]:
        """Yield the entries of a folder."""
        try:
            entries = iter(call_within(self._seconds, self._raw.list_status, path, recursive))
            while batch := call_within(self._seconds, lambda: list(islice(entries, _LISTED_ENTRIES))):
                yield from batch
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise ListingError(str(error)) from error

    def create(self, path: str, write_options: Any) -> _BoundedWriter:
        """Open a new file for writing."""
        return _BoundedWriter(call_within(self._seconds, self._raw.create, path, write_options), self._seconds)


class _BoundedWriter:
    def __init__(self, raw: Any, seconds: float) -> None:
        self._raw, self._seconds, self._open = raw, seconds, True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _WRITE_BYTES):
            call_within(self._seconds, self._raw.write, view[start : start + _WRITE_BYTES])
        return len(view)

    def close(self) -> None:
        if self._open:
            self._open = False  # even if it fails: `__del__` closes again, and would wait a second time
            call_within(self._seconds, self._raw.close)

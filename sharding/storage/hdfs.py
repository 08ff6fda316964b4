"""An HDFS client whose calls have a timeout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from .timeouts import bounded

__all__ = ["BoundedClient", "ListingError"]

_LISTED = 1000  # entries of a folder that are asked for at a time


_WRITTEN_BYTES = 8 << 20  # at a time: a slow network must not pass for a NameNode that hangs


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

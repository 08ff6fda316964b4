"""Bounds what a file may hold beyond its own bytes, so that a small one fills neither memory nor disk.

Tested in tests/sharding/sources/test_inflation.py.
"""

from __future__ import annotations

import io
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Any

from ringfeed.sharding.errors import SourceError

_HELD_BYTES, _HELD_INFLATION = 512 << 20, 100  # where a part of a file is held in memory as a whole
_STREAMED_BYTES, _STREAMED_INFLATION = 256 << 20, 1000  # gzip shrinks nothing to less than a 1032nd
_LINE_BYTES = 24  # a line counts as so many bytes more: short ones take the time of long ones to parse


def check_held(path: str, what: str, stored_bytes: int, held_bytes: int) -> None:
    """Refuse a part of a file that is read as a whole, and would take far more memory than its bytes.

    Raises:
        SourceError: it would.
    """
    if held_bytes > _most_held(stored_bytes):
        raise SourceError(
            f"{path}: a {what} of {stored_bytes:,} bytes claims to hold {held_bytes:,}; if it does, write the file "
            f"again with fewer records in a {what}"
        )


@contextmanager
def bounded_memory(path: str, what: str, stored_bytes: int) -> Iterator[None]:
    """Refuse a part of a file that takes far more memory than its bytes while the body reads it, whatever it claims.

    Only Linux can tell, and only of a whole process. One that also trains has no limit, which might end the training.

    Raises:
        SourceError: it does.
    """
    if not sys.platform.startswith("linux") or shares_process():
        yield
        return
    most = _most_held(stored_bytes)
    _limit.lower(most)
    try:
        yield
    except MemoryError as error:
        if impossible_claim(error) or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            raise
        raise SourceError(
            f"{path}: a {what} of {stored_bytes:,} bytes takes more than {most:,} to read; if this is right, write the "
            f"file again with fewer or smaller records in a {what}"
        ) from error
    finally:
        _limit.restore()


def shares_process() -> bool:
    """Whether other threads of this process may need large memory while it reads."""
    return not sys.modules.keys().isdisjoint(("tensorflow", "torch", "jax"))


def impossible_claim(error: MemoryError) -> int | None:
    """The bytes that Arrow asked for, if this machine cannot have them; a lack of memory is no damage."""
    claim = re.search(r"size (\d+)", str(error))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(claim[1]) if claim and int(claim[1]) > memory else None


def _most_held(stored_bytes: int) -> int:
    return _HELD_BYTES + _HELD_INFLATION * stored_bytes


class _DataLimit:
    """The limit of this process's memory (`RLIMIT_DATA`), lowered for a while; the highest of several threads holds."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads = 0
        self._usual = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def lower(self, more_bytes: int) -> None:
        """Allow the process so many bytes more than it has."""
        with self._lock:
            now, hard = resource.getrlimit(resource.RLIMIT_DATA)
            if not self._threads:
                self._usual, now = (now, hard), 0
            most = self._usual[0] if self._usual[0] != resource.RLIM_INFINITY else sys.maxsize
            data_bytes = int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_DATA, (min(most, max(now, data_bytes + more_bytes)), hard))
            self._threads += 1

    def restore(self) -> None:
        """Undo one `lower`; the last one restores the usual limit."""
        with self._lock:
            self._threads -= 1
            if not self._threads:
                resource.setrlimit(resource.RLIMIT_DATA, self._usual)


_limit = _DataLimit()


class CountedFile(io.RawIOBase):
    """Counts the bytes that are read from a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes."""
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.bytes += len(data)
        return len(data)


class BoundedFile(io.RawIOBase):
    """Decompressed bytes, no more than any real file holds in its compressed ones.

    Raises:
        SourceError: there are more.
    """

    def __init__(self, stream: IO[bytes], packed: CountedFile, path: str) -> None:
        self._stream, self._packed, self._path = stream, packed, path
        self._bytes = self._lines = 0

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes."""
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._bytes += len(data)
        self._lines += data.count(b"\n")
        if self._bytes + _LINE_BYTES * self._lines > _STREAMED_BYTES + _STREAMED_INFLATION * self._packed.bytes:
            raise SourceError(
                f"{self._path}: its first {self._packed.bytes:,} bytes hold {self._bytes:,} or more in {self._lines:,} "
                "lines; if it is so, decompress it"
            )
        return len(data)

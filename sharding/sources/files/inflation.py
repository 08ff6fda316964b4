"""Bounds what a file may hold beyond its own bytes, so that a small one fills neither memory nor disk.

Tested in tests/sharding/sources/test_inflation.py.
"""

from __future__ import annotations

import io
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
    if held_bytes > _HELD_BYTES + _HELD_INFLATION * stored_bytes:
        raise SourceError(
            f"{path}: a {what} of {stored_bytes:,} bytes claims to hold {held_bytes:,}; if it does, write the file "
            f"again with fewer records in a {what}"
        )


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

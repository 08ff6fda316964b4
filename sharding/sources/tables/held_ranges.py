"""Holds what was read of a file in a store, so that its reader may look at a part before it reads that part.

Tested in tests/sharding/sources/tables/test_parquet_batches.py and tests/sharding/sources/test_inflation.py.
"""

from __future__ import annotations

from typing import IO

_AHEAD_BYTES = 1 << 20  # the least that is asked for


class HeldRanges:
    """A file in a store whose ranges are held once they were read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._ranges, self._position = file, dict[int, memoryview](), 0
        self._size = file.seek(0, 2)
        self.closed = False

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset from the start, from here or from the end."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        """The offset of the next byte to read."""
        return self._position

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether it can seek."""
        return True

    def close(self) -> None:
        """Drop what is held; the file stays open."""
        self._ranges.clear()
        self.closed = True

    def read(self, size: int = -1) -> memoryview:
        """Read bytes, fewer at the end of the file."""
        start = self._position
        stop = self._size if size < 0 else min(start + size, self._size)
        for first, data in self._ranges.items():
            if first <= start and stop <= first + len(data):
                break
        else:
            self._file.seek(start)
            first, data = start, memoryview(self._file.read(min(max(stop - start, _AHEAD_BYTES), self._size - start)))
            self._ranges[first] = data
        piece = data[start - first : stop - first]
        self._position += len(piece)  # a store may send less than it was asked for
        return piece

"""Files to read and write piece by piece, made of functions that read a range and that take the next bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["RangeReader", "Sink"]


class RangeReader(io.RawIOBase):
    """A seekable file whose every read is one request for a range; buffer it where reads are small.

    Args:
        read_range: returns the bytes [start, end); it is never asked for none, nor for any beyond the size.
        size: of the file, in bytes.

    >>> file = RangeReader(lambda start, end: b"0123456789"[start:end], 10)
    >>> file.seek(-3, io.SEEK_END), file.read(2), file.read(), file.read()
    (7, b'78', b'9', b'')
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range = read_range
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative position {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._take(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._take(self._size)

    def _take(self, count: int) -> bytes:
        end = min(self._position + count, self._size)
        if end <= self._position:
            return b""
        data = self._read_range(self._position, end)
        self._position = end
        return data


class Sink(io.RawIOBase):
    """A file that hands all that is written to a function, which takes the whole of it, at once, or raises.

    >>> written = []
    >>> file = Sink(lambda pieces: written.extend(map(bytes, pieces)))
    >>> file.write(b"abc"), file.writelines([b"d", b"ef"]), file.tell(), written
    (3, None, 6, [b'abc', b'd', b'ef'])
    """

    def __init__(self, take: Callable[[Sequence[Any]], object]) -> None:
        self._take = take
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._take([view])
        self._position += view.nbytes
        return view.nbytes

    def writelines(self, lines: Iterable[Any]) -> None:
        """Write pieces of bytes, of which none is copied if the function copies none."""
        pieces = list(lines)
        self._take(pieces)
        self._position += sum(map(len, pieces))

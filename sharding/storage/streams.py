"""File objects on top of functions: readers of byte ranges or of a stream, and a writer that passes bytes on.

Tested in tests/sharding/storage/test_storage.py and tests/sharding/storage/test_special_files.py.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable
from typing import IO, Any

from .client_errors import IncompleteError
from .special_files import SpecialFileError

_SKIP_BYTES = 1 << 20  # the longest forward seek, which reads the bytes between
_UNSIZED_BYTES = 64 << 30  # the longest file of unknown size: its server may send it without end


class _Reader(io.RawIOBase):
    """A remote file for reading.

    Attributes:
        failure: the error of the last read or seek, which a library in between may hide; None if it succeeded.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._take(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.failure = None
        super().close()

    def _take(self, count: int) -> bytes:
        self.failure = None
        try:
            data = self._fetch(count)
        except Exception as error:
            self.failure = error
            raise
        self._position += len(data)
        return data

    @abstractmethod
    def _fetch(self, count: int) -> bytes:
        """Return at most `count` of the next bytes; none at the end."""


class RangeReader(_Reader):
    """A seekable file whose reads are one range request each; buffer it if reads are small.

    Args:
        read_range: returns the bytes [start, end), a nonempty range within the file.

    >>> file = RangeReader(lambda start, end: b"0123456789"[start:end], 10)
    >>> file.seek(-3, io.SEEK_END), file.read(2), file.read(), file.read()
    (7, b'78', b'9', b'')
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._read_range = read_range
        self._size = size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative position {start + offset}")
        self._position = start + offset
        return self._position

    def readall(self) -> bytes:
        return self._take(self._size)

    def _fetch(self, count: int) -> bytes:
        end = min(self._position + count, self._size)
        return self._read_range(self._position, end) if end > self._position else b""


class ForwardReader(_Reader):
    """A file that can only be read from its start to its end; after an error it is reopened and skipped forward.

    Args:
        source: opens the file, of which only `read` and `close` are used.
        size: size of the file in bytes, or None if unknown.
        refuse: creates the error for seeks backward or far ahead.

    >>> file = ForwardReader(lambda: io.BytesIO(b"0123456789"), 10, lambda read: read(), lambda: OSError("no"))
    >>> file.seek(3), file.read(2), file.read(), file.read()
    (3, b'34', b'56789', b'')
    >>> file.seek(0)
    Traceback (most recent call last):
    OSError: no
    """

    def __init__(
        self,
        source: Callable[[], IO[bytes]],
        size: int | None,
        run: Callable[[Callable[[], bytes]], bytes],
        refuse: Callable[[], Exception],
    ) -> None:
        super().__init__()
        self._source = source
        self._size = size
        self._run = run
        self._refuse = refuse
        self._file: IO[bytes] | None = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        missing = offset - (self._position if whence == io.SEEK_SET else 0)
        if whence == io.SEEK_END or not 0 <= missing <= _SKIP_BYTES:
            self.failure = self._refuse()
            raise self.failure
        while missing and (data := self._take(missing)):
            missing -= len(data)
        return self._position

    def close(self) -> None:
        self._leave()
        super().close()

    def _fetch(self, count: int) -> bytes:
        return self._run(lambda: self._next(count)) if count else b""

    def _next(self, count: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._source()
                missing = self._position
                while missing and (data := self._file.read(min(missing, _SKIP_BYTES))):
                    missing -= len(data)
            data = self._file.read(count)
            if self._size is None and self._position > _UNSIZED_BYTES:
                raise SpecialFileError(
                    f"the server does not tell the file's size, and has sent {_UNSIZED_BYTES >> 30} GiB without an "
                    "end; check the URL, or copy the file to a local disk"
                )
            if not data and self._size not in (None, self._position):
                raise IncompleteError(f"only {self._position} of {self._size} bytes arrived")
        except BaseException:
            self._leave()
            raise
        return data

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Sink(io.RawIOBase):
    """A writable file that passes everything to a function, which consumes it immediately or raises.

    >>> written = bytearray()
    >>> file = Sink(written.extend)
    >>> file.write(b"abc"), file.writelines([b"d", b"ef"]), file.tell(), written
    (3, None, 6, bytearray(b'abcdef'))
    """

    def __init__(self, take: Callable[[memoryview], object]) -> None:
        self._take = take
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._take(view)
        self._position += view.nbytes
        return view.nbytes

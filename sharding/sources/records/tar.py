"""Tar archives as streams of members: nothing is extracted, no link is followed, and truncation is always noticed.

Reads ustar, GNU and PAX headers. Python's `tarfile` reads most truncated archives as complete ones.
Tested in tests/sharding/sources/records/test_webdataset.py.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import BadGzipFile
from typing import IO

from ringfeed.sharding.sources.files.find import plain_name
from ringfeed.sharding.sources.files.open import open_file, size_if_seekable

_COMPRESSIONS = {
    ".tar": None, ".tar.gz": "gzip", ".tgz": "gzip", ".tar.bz2": "bz2", ".tar.xz": "xz", ".tar.zst": "zstd"
}  # fmt: skip
SUFFIXES = tuple(_COMPRESSIONS)
_BLOCK = 512
_READ_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 20  # an extended header holds names and numbers
_FILES, _LINKS = b"0\x007", b"123456"  # links, devices, folders and pipes have no content
_ZEROS = bytes(_BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file in an archive."""

    name: bytes  # name in the archive; not safe to use as a path
    size: int  # size of the content in bytes
    offset: int  # offset of the header in the decompressed archive
    sparse: bool  # whether holes are left out of the stored content, which `TarReader.read` does not restore


class TarDamage(Exception):
    """The archive cannot be read from an offset on."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


@contextmanager
def open_tar(path: str) -> Iterator[TarReader]:
    """Open an archive, decompressing it by the ending of its name."""
    name = plain_name(path)
    compression = next((codec for suffix, codec in _COMPRESSIONS.items() if name.endswith(suffix)), None)
    with open_file(path, compression) as file:
        yield TarReader(file, None if compression else size_if_seekable(file))


class TarReader:
    """Reads an archive once, from start to end.

    Args:
        file: archive, at its start.
        size: size of the file if it can seek past unread contents, else None.

    Raises:
        TarDamage: the archive is damaged or cut short; any method may raise it.
    """

    def __init__(self, file: IO[bytes], size: int | None) -> None:
        self._file = file
        self._size = size
        self._position = 0
        self._content_end = self._next_header = 0

    def __iter__(self) -> Iterator[Member]:
        shared: dict[bytes, bytes] = {}
        own: dict[bytes, bytes] = {}
        begins = 0  # offset of the member's first header
        while (header := self._header()) is not None:
            offset = self._position - _BLOCK
            kind, size = header[156:157], self._number(header[124:136], offset)
            if kind in (b"x", b"g", b"L", b"K", b"X"):
                self._content(size)
                if size > _MAX_HEADER_BYTES:
                    raise TarDamage(offset, f"an extended header of {size:,} bytes, which no name or number takes")
                content = self.read()
                if kind == b"L":
                    own[b"path"] = content.rstrip(b"\0")
                elif kind != b"K":
                    (shared if kind == b"g" else own).update(self._records(content, offset))
                continue
            facts = {**shared, **own}
            size = self._decimal(facts[b"size"], offset) if b"size" in facts else size
            if kind == b"S":
                self._skip_sparse_map(header)
            name = facts.get(b"path", _name(header))
            self._content(0 if kind in _LINKS else size)
            if (kind in _FILES and not name.endswith(b"/")) or kind == b"S":
                sparse = kind == b"S" or any(key.startswith(b"GNU.sparse.") for key in facts)
                yield Member(name=name, size=size, offset=begins, sparse=sparse)
            self._skip_content()
            own, begins = {}, self._position

    def read(self) -> bytes:
        """Return the content of the current member; call it once a member."""
        content = self._take(self._content_end - self._position)
        self._skip_content()
        return content

    def _content(self, size: int) -> None:
        self._content_end = self._position + size
        self._next_header = self._content_end + -size % _BLOCK

    def _skip_content(self) -> None:
        """Go to the next header."""
        missing = self._next_header - self._position
        if missing > _READ_BYTES and self._size is not None:
            if self._next_header > self._size:
                raise TarDamage(self._position, "the archive is cut short")
            self._file.seek(self._next_header)
            self._position = self._next_header
            return
        while missing:
            missing -= len(self._take(min(missing, _READ_BYTES)))

    def _header(self) -> bytes | None:
        """Return the next header, or None at a proper end of the archive."""
        offset = self._position
        header = self._take(_BLOCK)
        if header != _ZEROS:
            stored = self._number(header[148:156], offset)
            if sum(header) - sum(header[148:156]) + 8 * ord(" ") != stored:
                raise TarDamage(offset, "the header is damaged, or this is no tar archive")
            return header
        if self._take(_BLOCK) != _ZEROS:
            raise TarDamage(offset, "there is half an end-of-archive marker")
        while rest := self._some(_READ_BYTES):
            if rest.strip(b"\0"):
                raise TarDamage(offset, "the archive goes on after its end, as if there were several in the file")
        return None

    def _take(self, count: int) -> bytes:
        pieces, offset = [], self._position
        while count:
            piece = self._some(min(count, _READ_BYTES))
            if not piece:
                raise TarDamage(offset, "the archive is cut short")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def _some(self, count: int) -> bytes:
        try:
            piece = self._file.read(count)
        except (EOFError, zlib.error, lzma.LZMAError, BadGzipFile) as error:
            raise TarDamage(self._position, f"the compressed data is damaged or cut short ({error})") from error
        except OSError as error:
            if error.errno is not None or type(error) is not OSError:
                raise
            raise TarDamage(self._position, f"the compressed data is damaged ({error})") from error
        self._position += len(piece)
        return piece

    def _skip_sparse_map(self, header: bytes) -> None:
        more = header[482]
        while more:
            more = self._take(_BLOCK)[504]

    def _number(self, digits: bytes, offset: int) -> int:
        """Parse octal digits, or a large number as big-endian bytes after 0x80."""
        if digits[0] == 0x80:
            return int.from_bytes(digits[1:], "big")
        text = digits.split(b"\0")[0].strip()
        if text.strip(b"01234567"):
            raise TarDamage(offset, "the header is damaged, or this is no tar archive")
        return int(text or b"0", 8)

    def _decimal(self, digits: bytes, offset: int) -> int:
        if not digits.isdigit() or len(digits) > 20:
            raise TarDamage(offset, f"an extended header gives the size {digits[:40]!r}")
        return int(digits)

    def _records(self, content: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of a PAX header: lines of ``length key=value``."""
        while content.strip(b"\0"):
            digits, _, _ = content[:20].partition(b" ")
            length = int(digits) if digits.isdigit() else 0
            key, equals, value = content[len(digits) + 1 : length - 1].partition(b"=")
            if not equals or content[length - 1 : length] != b"\n":
                raise TarDamage(offset, "an extended header is damaged")
            yield key, value
            content = content[length:]


def _name(header: bytes) -> bytes:
    name, prefix = header[:100].split(b"\0")[0], header[345:500].split(b"\0")[0]
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name

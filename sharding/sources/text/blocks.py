"""Files of lines, read in blocks of whole records, in bounded memory, from any part of a file.

`csv.py` and `jsonl.py` say where a record ends, and parse it.
Tested in tests/sharding/sources/text/test_csv.py and tests/sharding/sources/text/test_jsonl.py.
"""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import numpy as np

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.sources.base import BadRecord, Part
from ringfeed.sharding.sources.files.find import compression_of
from ringfeed.sharding.sources.files.open import open_file, size_if_seekable
from ringfeed.sharding.sources.files.snapshot import SourceFile

LINE_BYTES = 64 << 20  # a longer record is an error: a missing quote must not fill the memory
_PART_BYTES = 64 << 20  # size of a part of an uncompressed file
_BLOCK_BYTES = 8 << 20  # read at a time

_MAGICS = {  # first bytes of compressed files, which no text starts with
    b"\x1f\x8b": (".gz", "gzip"),
    b"BZh91AY&SY": (".bz2", "bzip2"),
    b"\xfd7zXZ\0": (".xz", "xz"),
    b"(\xb5/\xfd": (".zst", "zstd"),
}

Reader = Callable[[IO[bytes], str], IO[bytes]]  # takes a file and its path, and reads it as UTF-8
Cut = Callable[[bytes], tuple[int, bool]]  # end of the last whole record, and whether a field has a line end


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Whole records of a file: the bytes [start, stop) of its decompressed contents."""

    start: int = 0  # offset of the first record
    stop: int | None = None  # end of the last record; None: the end of the file
    line: int = 1  # number of the first line, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive whole records of a file."""

    data: bytes  # the bytes with their line ends; the last line of a file may have none
    start: int  # offset in the file
    line: int  # number of the first line, from 1
    final: bool  # whether the block ends the span, perhaps within a record
    multiline: bool  # whether a field contains a line end


def read_blocks(
    path: str, span: Span, cut: Cut, block_bytes: int | None = None, reader: Reader | None = None
) -> Iterator[Block]:
    """Read the records of a span in blocks.

    Args:
        path: path or URL of the file.
        span: records to read.
        cut: takes bytes that start with a record; returns where the last whole record in them ends, 0 if there is
            none, and whether a field contains a line end.
        block_bytes: approximate size of a block; default: 8 MiB.
        reader: reads the file as UTF-8; None where it is UTF-8.

    Raises:
        SourceError: a record is longer than `LINE_BYTES`, the compressed data is damaged, or it is compressed twice.
    """
    block_bytes = block_bytes or _BLOCK_BYTES
    start, line, rest = span.start, span.line, b""
    with _open(path, start, reader) as file:
        while True:
            got = start + len(rest)
            data = file.read(block_bytes if span.stop is None else min(block_bytes, span.stop - got))
            if not got:
                _check_plain(path, data)
            if not got and data.startswith(BOM_UTF8):
                data, start = data[len(BOM_UTF8) :], len(BOM_UTF8)
            rest = rest + data if rest else data
            end, multiline = cut(rest)
            end = end if data else len(rest)
            if end:
                whole, rest = rest[:end], rest[end:]
                yield Block(data=whole, start=start, line=line, final=not data, multiline=multiline)
                line += count_lines(whole)
                start += end
            if not data:
                return
            if len(rest) > LINE_BYTES:
                raise SourceError(
                    f"{path}: the record that starts in line {line} is longer than {LINE_BYTES >> 20} MiB; "
                    "check for a missing quote or line end, or split the record"
                )


def _check_plain(path: str, data: bytes) -> None:
    for magic, (ending, name) in _MAGICS.items():
        if not data.startswith(magic):
            continue
        if compression_of(path) is None:
            raise SourceError(f"{path}: it is compressed ({name}); decompress it, or let its name end in {ending}")
        raise SourceError(
            f"{path}: it is compressed twice ({name}); decompress it once, or if its web server compresses files "
            "(Content-Encoding), have it send them as they are"
        )


@contextmanager
def _open(path: str, start: int, reader: Reader | None) -> Iterator[IO[bytes]]:
    """Open a file, as its reader reads it, at an offset."""
    with open_file(path) as file:
        text = file if reader is None else reader(file, path)
        if start and text is file and compression_of(path) is None:
            file.seek(start)
            start = 0
        while start and (data := text.read(min(start, 1 << 20))):
            start -= len(data)
        yield text


def count_lines(data: bytes) -> int:
    r"""Count line ends, whether ``\n``, ``\r\n`` or ``\r``.

    >>> count_lines(b"a\nb\r\nc\rd")
    3
    """
    letters = np.frombuffer(data, np.uint8)
    lone = data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else 0
    return int(np.count_nonzero(letters == 0x0A)) + lone


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A block as it was read when the source was opened; the pieces of a part are marks."""

    span: Span  # bytes of the block
    multiline: bool  # whether a field contains a line end
    records: int  # number of records that could be read
    clean: bool  # whether no record was rejected

    @classmethod
    def of(cls, block: Block, records: int, *, clean: bool) -> Mark:
        """Return the mark of a block."""
        span = Span(start=block.start, stop=block.start + len(block.data), line=block.line)
        return cls(span=span, multiline=block.multiline, records=records, clean=clean)


def span_of(part: Part) -> Span:
    """Return the span of a part whose pieces are marks."""
    first, last = part.pieces[0].span, part.pieces[-1].span
    return Span(start=first.start, stop=last.stop, line=first.line)


def read_marked(path: str, marks: Sequence[Mark], reader: Reader | None = None) -> Iterator[Block]:
    """Read the blocks of a part again, without searching for the ends of records.

    Raises:
        SourceError: the file has become shorter, or its compressed data is damaged.
    """
    with _open(path, marks[0].span.start if marks else 0, reader) as file:
        for mark in marks:
            size = (mark.span.stop or 0) - mark.span.start
            data = file.read(size)
            while len(data) < size and (more := file.read(size - len(data))):
                data += more
            if len(data) < size:
                raise SourceError(f"{path}: the file changed while it was read; build again")
            yield Block(data=data, start=mark.span.start, line=mark.span.line, final=False, multiline=mark.multiline)


def cut_parts(
    file: SourceFile, marks: Sequence[Mark], part_bytes: int | None = None, reader: Reader | None = None
) -> list[Part]:
    """Cut a file into parts of about `part_bytes`, by default 64 MiB; into one where offsets cannot be sought.

    That is so in a file that is compressed or has a reader, and in a store that cannot seek.
    """
    part_bytes = part_bytes or _PART_BYTES
    whole = compression_of(file.url) is not None or reader is not None or not file.bytes
    if not whole and file.bytes > part_bytes:
        with open_file(file.url) as opened:
            whole = size_if_seekable(opened) is None
    parts: list[Part] = []
    pieces: list[Mark] = []
    records = 0
    for mark in marks:
        pieces.append(mark)
        if mark is marks[-1] or (not whole and (mark.span.stop or 0) - pieces[0].span.start >= part_bytes):
            parts.append(Part(path=file.url, pieces=tuple(pieces), first_record=records))
            records += sum(piece.records for piece in pieces)
            pieces = []
    return parts


def not_utf8_record(
    path: str,
    line: int,
    error: UnicodeDecodeError,
    remedy: str = "convert the file first, for example with: iconv -f {encoding} -t utf-8",
) -> BadRecord:
    """Return the bad record that starts in a line and is not UTF-8; `remedy` may name a likely ``{encoding}``."""
    before = error.object[: error.start]
    line += count_lines(before)
    encoding = "utf-16" if line == 1 and error.object.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "windows-1252"
    column = error.start - max(before.rfind(b"\n"), before.rfind(b"\r"))
    return BadRecord(
        path=path, place=f"line {line}", reason=f"byte {column} is not UTF-8", remedy=remedy.format(encoding=encoding)
    )

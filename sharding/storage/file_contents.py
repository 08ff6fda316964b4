"""Reads files of any size: in blocks, as a size and checksum, or decompressed into one mapped buffer.

Only one block per file is held in memory.
Tested in tests/sharding/storage/test_http.py.
"""

from __future__ import annotations

import mmap
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from ringfeed.sharding.common.checksums import Checksum

from .storage import Storage

_BLOCK_BYTES = 8 << 20
_INFLATE_BYTES = 1 << 12  # decompressed at a time, and byte by byte up to a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """Size and checksum of a file.

    >>> from ringfeed.sharding import open_dataset
    >>> files = open_dataset("flights").manifest.files
    >>> all(isinstance(file, FileInfo) for file in files.values())
    True
    """

    bytes: int
    checksum: str


def iterate_blocks(
    storage: Storage, path: str, size: int | None = None, block_bytes: int | None = None
) -> Iterator[memoryview]:
    """Yield the bytes of a file in blocks.

    Args:
        size: bytes of the file, if known; up to one block is read in one request.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    block_bytes = block_bytes or _BLOCK_BYTES
    if storage.local_path is not None:
        whole = memoryview(storage.map(path))
        yield from (whole[start : start + block_bytes] for start in range(0, len(whole), block_bytes))
        return
    if size is not None and size <= block_bytes:
        yield memoryview(storage.map(path))
        return
    with storage.open_input(path, read_ahead=False) as file:
        while block := file.read(block_bytes):
            yield memoryview(block)


def digest_file(
    storage: Storage,
    path: str,
    size: int | None = None,
    *,
    most: int | None = None,
    block_bytes: int | None = None,
) -> FileInfo | None:
    """Return size and checksum of a file, or None if it does not exist.

    Args:
        most: stop after the block in which more than so many bytes are read; None: read to the end.
    """
    digest, read = Checksum(), 0
    try:
        for block in iterate_blocks(storage, path, size, block_bytes):
            digest.update(block)
            read += len(block)
            if most is not None and read > most:
                break
    except FileNotFoundError:
        return None
    return FileInfo(bytes=read, checksum=digest.text)


@contextmanager
def open_decompressed(
    storage: Storage, path: str, compression: str = "none", *, size: int | None = None
) -> Iterator[pa.Buffer]:
    """Yield the content of a file, decompressed up to the first fault, as a mapped buffer.

    Remote and compressed files are first written to a temporary file.

    Args:
        compression: compression of the whole file, as by `formats.tfrecord.compress`.
        size: stored bytes of the file, if known.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    if storage.local_path is not None and compression == "none":
        yield storage.map(path)
        return
    blocks: Iterator[bytes | memoryview] = iterate_blocks(storage, path, size)
    with tempfile.TemporaryFile() as copy:  # nameless, so that a killed process leaves nothing
        for block in blocks if compression == "none" else _inflate(blocks):
            copy.write(block)
        copy.flush()
        yield pa.py_buffer(mmap.mmap(copy.fileno(), 0, prot=mmap.PROT_READ) if copy.tell() else b"")


def _inflate(blocks: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    """Decompress gzip or zlib data up to its first fault."""
    stream = zlib.decompressobj(wbits=47)
    for block in blocks:
        for start in range(0, len(block), _INFLATE_BYTES):
            piece = bytes(block[start : start + _INFLATE_BYTES])
            before = stream.copy()
            try:
                yield stream.decompress(piece)
            except zlib.error:
                yield from _inflate_bytewise(before, piece)
                return


def _inflate_bytewise(stream: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    for position in range(len(piece)):
        try:
            yield stream.decompress(piece[position : position + 1])
        except zlib.error:
            return

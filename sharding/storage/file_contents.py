"""Files of a dataset read as streams: hashed block by block, or at hand as one mapped buffer, whatever their size.

What is held in memory is a block a file. Not here: what the bytes mean.
"""

from __future__ import annotations

import mmap
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from ..common.checksums import Checksum
from .storage import Storage

__all__ = ["FileInfo", "digest_file", "iterate_blocks", "open_decompressed"]

_BLOCK_BYTES = 8 << 20
_INFLATE_BYTES = 1 << 12  # compressed bytes that a fault may cost: what comes before is decompressed byte by byte


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """What a file holds, in short."""

    bytes: int
    checksum: str


def iterate_blocks(storage: Storage, path: str, size: int | None = None) -> Iterator[memoryview]:
    """The bytes of a file, some MiB at a time.

    Args:
        storage: that holds it.
        path: of the file.
        size: of the file, if it is known: one of a block or less is had by one request.

    Raises:
        FileNotFoundError: there is none.
        StorageError: the store refuses.
    """
    if storage.local_path is not None:
        whole = memoryview(storage.map(path))
        yield from (whole[start : start + _BLOCK_BYTES] for start in range(0, len(whole), _BLOCK_BYTES))
        return
    if size is not None and size <= _BLOCK_BYTES:
        yield memoryview(storage.map(path))
        return
    with storage.open_input(path, read_ahead=False) as file:
        while block := file.read(_BLOCK_BYTES):
            yield memoryview(block)


def digest_file(storage: Storage, path: str, size: int | None = None) -> FileInfo | None:
    """Size and checksum of a file, or None if there is none.

    Args:
        storage: that holds it.
        path: of the file.
        size: of the file, if it was listed.

    Raises:
        StorageError: the store refuses.
    """
    digest, read = Checksum(), 0
    try:
        for block in iterate_blocks(storage, path, size):
            digest.update(block)
            read += len(block)
    except FileNotFoundError:
        return None
    return FileInfo(bytes=read, checksum=digest.text)


@contextmanager
def open_decompressed(
    storage: Storage, path: str, compression: str = "none", *, size: int | None = None
) -> Iterator[pa.Buffer]:
    """The whole of a file, decompressed as far as it can be: a mapped file of this machine, a temporary one if need be.

    Args:
        storage: that holds it.
        path: of the file.
        compression: of the whole file, as `formats.tfrecord.compress` did it.
        size: of the file as it is stored, if it is known.

    Raises:
        FileNotFoundError: there is none.
        StorageError: the store refuses.
    """
    if storage.local_path is not None and compression == "none":
        yield storage.map(path)
        return
    blocks: Iterator[bytes | memoryview] = iterate_blocks(storage, path, size)
    with tempfile.TemporaryFile() as copy:  # it has no name to be left behind by one who is killed
        for block in blocks if compression == "none" else _inflate(blocks):
            copy.write(block)
        copy.flush()
        yield pa.py_buffer(mmap.mmap(copy.fileno(), 0, prot=mmap.PROT_READ) if copy.tell() else b"")


def _inflate(blocks: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    """What gzip or zlib data decompresses to, up to the first fault in it."""
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

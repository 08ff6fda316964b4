"""Checksums of a file's blocks, so that a part of the file can be read and checked without the rest."""

from __future__ import annotations

from typing import Any

import xxhash

BLOCK_BYTES = 64 << 10
_SUM_BYTES = 8


class BlockSums:
    """XXH3-64 of each block of a file that is written in pieces; the last block may be shorter."""

    def __init__(self) -> None:
        self._sums: list[bytes] = []
        self._block = xxhash.xxh3_64()
        self._room = BLOCK_BYTES

    def update(self, data: Any) -> None:
        """Add the next bytes of the file, any buffer."""
        rest = memoryview(data).cast("B")
        while len(rest):
            piece, rest = rest[: self._room], rest[self._room :]
            self._block.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._end_block()

    def finish(self) -> bytes:
        """The checksums of all blocks, 8 bytes each."""
        if self._room < BLOCK_BYTES:
            self._end_block()
        return b"".join(self._sums)

    def _end_block(self) -> None:
        self._sums.append(self._block.digest())
        self._block = xxhash.xxh3_64()
        self._room = BLOCK_BYTES


def block_sums(data: Any) -> bytes:
    """The checksums of the blocks of a file, or of consecutive blocks of it.

    >>> len(block_sums(bytes(BLOCK_BYTES + 1)))
    16
    """
    sums = BlockSums()
    sums.update(data)
    return sums.finish()


def blocks_match(data: Any, first: int, sums: bytes) -> bool:
    """Whether consecutive blocks match the file's checksums.

    Args:
        data: bytes of the blocks, up to the end of a block or of the file.

    >>> file = bytes(range(256)) * 512
    >>> sums = block_sums(file)
    >>> blocks_match(file[BLOCK_BYTES:], 1, sums), blocks_match(file[BLOCK_BYTES:-1], 1, sums)
    (True, False)
    """
    actual = block_sums(data)
    return actual == sums[first * _SUM_BYTES : first * _SUM_BYTES + len(actual)]

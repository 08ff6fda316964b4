"""Parquet shards of which a few columns or rows are wanted: the blocks of the file that hold them, checked, alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import pyarrow as pa

from ...sharding.formats.block_checksums import BLOCK_BYTES
from ...sharding.formats.parquet import LENGTH_BYTES, column_spans, footer_bytes

__all__ = ["PartTooLarge", "ReadBlocks", "read_blocks"]

ReadBlocks = Callable[[int, int], pa.Buffer | None]
_WORTHWHILE = 0.7  # of a file: more columns are better read with all others; rows lie together


class PartTooLarge(Exception):
    """What is wanted is most of the file."""


def read_blocks(
    read: ReadBlocks, size: int, columns: Collection[str], gap_bytes: int, rows: tuple[int, int] | None = None
) -> int | None:
    """Read the footer of a file, and the chunks of some columns, and of the row groups that hold some rows.

    Args:
        read: brings the bytes ``[start, stop)``, which are whole blocks, to where they belong, and returns them; None
            if they are not to be had as they were written.
        size: of the file.
        columns: names of them.
        gap_bytes: that are read, if so few lie between, rather than asked around.
        rows: ``[start, stop)``; None for all.

    Returns:
        How many bytes were read, or None if some are not to be had.

    Raises:
        PartTooLarge: they are most of the file; of them nothing was read.
    """
    end = _block_start(size - LENGTH_BYTES)
    tail = read(end, size)
    if tail is not None and footer_bytes(tail) > tail.size:
        end = _block_start(size - footer_bytes(tail))
        tail = read(end, size)
    if tail is None:
        return None
    spans = list(_in_blocks(column_spans(tail, columns, rows), end, gap_bytes))
    wanted = sum(stop - start for start, stop in spans) + tail.size
    if wanted > (_WORTHWHILE if rows is None else 1) * size:
        raise PartTooLarge
    return wanted if all(read(start, stop) is not None for start, stop in spans) else None


def _block_start(position: int) -> int:
    return position // BLOCK_BYTES * BLOCK_BYTES


def _in_blocks(spans: Iterable[tuple[int, int]], end: int, gap_bytes: int) -> Iterator[tuple[int, int]]:
    """Spans widened to whole blocks, and joined where they nearly meet; nothing from `end` on, where a block starts."""
    held: tuple[int, int] | None = None
    for start, stop in sorted(spans):
        start, stop = _block_start(start), min(_block_start(stop - 1) + BLOCK_BYTES, end)
        if held is not None and start > held[1] + gap_bytes:
            yield held
            held = None
        if start < stop:
            held = (start, stop) if held is None else (held[0], max(held[1], stop))
    if held is not None:
        yield held

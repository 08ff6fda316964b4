"""Read only the blocks of a Parquet shard that hold the needed columns and rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import pyarrow as pa

from ringfeed.sharding.formats.block_checksums import BLOCK_BYTES
from ringfeed.sharding.formats.parquet import LENGTH_BYTES, column_spans, footer_bytes

ReadBlocks = Callable[[int, int], pa.Buffer | None]
_MAX_SHARE = 0.7  # share of a file above which columns are faster read with the whole file; rows are contiguous


class PartTooLarge(Exception):
    """The needed blocks are most of the file, so reading all of it is faster."""


def read_blocks(
    read: ReadBlocks, size: int, columns: Collection[str], gap_bytes: int, rows: tuple[int, int] | None = None
) -> int | None:
    """Read the footer of a Parquet file, and the chunks of some columns in the row groups that hold some rows.

    Args:
        read: reads the bytes ``[start, stop)``, which are whole blocks, into place and returns them; None if they
            cannot be read intact.
        size: size of the file, in bytes.
        columns: names of the columns.
        gap_bytes: largest gap between two spans that is read with them, to save a request.
        rows: rows ``[start, stop)``; None for all.

    Returns:
        Number of bytes read; None if some cannot be read intact.

    Raises:
        PartTooLarge: the spans are most of the file; only the footer was read.
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
    if wanted > (_MAX_SHARE if rows is None else 1) * size:
        raise PartTooLarge
    return wanted if all(read(start, stop) is not None for start, stop in spans) else None


def _block_start(position: int) -> int:
    return position // BLOCK_BYTES * BLOCK_BYTES


def _in_blocks(spans: Iterable[tuple[int, int]], end: int, gap_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield spans widened to whole blocks and joined across small gaps, up to the block that starts at `end`."""
    joined: tuple[int, int] | None = None
    for start, stop in sorted(spans):
        start, stop = _block_start(start), min(_block_start(stop - 1) + BLOCK_BYTES, end)
        if joined is not None and start > joined[1] + gap_bytes:
            yield joined
            joined = None
        if start < stop:
            joined = (start, stop) if joined is None else (joined[0], max(joined[1], stop))
    if joined is not None:
        yield joined

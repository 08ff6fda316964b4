"""Cut record batches to a number of rows and bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "sliced"]

BATCH_ROWS = 1 << 16  # a source's batches hold at most so many records,


BATCH_BYTES = 16 << 20  # and about so many bytes at most: what a build holds in memory is counted in them


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of at most `BATCH_ROWS` records and about `BATCH_BYTES` bytes; no byte is copied."""
    if not batch.num_rows:
        return
    pieces = max(-(-batch.num_rows // BATCH_ROWS), sum(map(_column_bytes, batch.columns)) // BATCH_BYTES)
    rows = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _column_bytes(column: pa.Array) -> int:
    """Bytes of a column; of a dictionary's, about what it will have when each index is replaced by its value."""
    if isinstance(column, pa.DictionaryArray) and len(column.dictionary):
        return len(column) * int(column.dictionary.nbytes) // len(column.dictionary)
    size: int = column.nbytes
    return size

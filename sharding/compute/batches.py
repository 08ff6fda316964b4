"""Cuts record batches to the sizes that the package works on."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_binary, is_large_binary, is_large_string, is_string

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "copy_batch", "slice_batch"]

BATCH_ROWS = 1 << 16  # at most, in a source's batches
BATCH_BYTES = 16 << 20  # at most, about; the memory of a build is planned in this unit


def slice_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most `BATCH_ROWS` records and about `BATCH_BYTES` bytes, without copying."""
    if not batch.num_rows:
        return
    pieces = max(-(-batch.num_rows // BATCH_ROWS), sum(map(_column_bytes, batch.columns)) // BATCH_BYTES)
    rows = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def copy_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch of a user's function, which may write its next values to the same buffers."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_next_batch()


def _column_bytes(column: pa.Array) -> int:
    """Size of a column in bytes; for a dictionary-encoded one, about its size after decoding."""
    if isinstance(column, pa.DictionaryArray) and len(column.dictionary):
        kind = column.dictionary.type
        if is_binary(kind) or is_string(kind) or is_large_binary(kind) or is_large_string(kind):
            return int(pc.sum(pc.binary_length(column.dictionary).cast(pa.int64()).take(column.indices)).as_py() or 0)
        return len(column) * int(column.dictionary.nbytes) // len(column.dictionary)
    size: int = column.nbytes
    return size

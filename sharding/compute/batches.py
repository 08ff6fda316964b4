"""Cuts record batches to the sizes that the package works on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from .arrays import Int64
from .decoded_bytes import decoded_bytes, shares_values

BATCH_ROWS = 1 << 16  # at most, in a source's batches
BATCH_BYTES = 16 << 20  # at most, about; the memory of a build is planned in this unit
_MOST_ROW_BYTES = 1 << 30  # more is no record, but a file made to fill memory


def slice_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most `BATCH_ROWS` records and about `BATCH_BYTES` bytes when decoded, without copying.

    Raises:
        pa.ArrowInvalid: values that records share make one larger than 1 GiB when it is decoded.
    """
    if not batch.num_rows:
        return
    shared = [column for column in batch.columns if shares_values(column.type)]
    plain_bytes = sum(column.nbytes for column in batch.columns if not shares_values(column.type))
    if shared:
        yield from _slice_shared(batch, sum(map(decoded_bytes, shared)) + plain_bytes // batch.num_rows)
        return
    pieces = max(-(-batch.num_rows // BATCH_ROWS), plain_bytes // BATCH_BYTES)
    rows = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _slice_shared(batch: pa.RecordBatch, row_bytes: Int64) -> Iterator[pa.RecordBatch]:
    """Slice where the sum of the rows' bytes passes a multiple of `BATCH_BYTES`; `row_bytes` is int64 [rows]."""
    if row_bytes.max() > _MOST_ROW_BYTES:
        raise pa.ArrowInvalid(
            f"a record takes {row_bytes.max():,} bytes when the values that it repeats are written out"
        )
    slices = (np.cumsum(row_bytes) - row_bytes) // BATCH_BYTES
    firsts = np.flatnonzero(np.diff(slices, prepend=-1)).tolist()
    for first, stop in pairwise([*firsts, batch.num_rows]):
        for start in range(first, stop, BATCH_ROWS):
            yield batch.slice(start, min(BATCH_ROWS, stop - start))


def copy_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch of a user's function, which may write its next values to the same buffers."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_next_batch()

"""Parquet in memory: one shard's rows to the bytes of its file, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["iterate_parquet", "read_parquet", "write_parquet"]

_ROW_GROUP_ROWS = 1 << 16


def write_parquet(batch: pa.RecordBatch, compression: str) -> pa.Buffer:
    """Write rows, in their order, as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_batches([batch]), sink, compression=compression, row_group_size=_ROW_GROUP_ROWS, version="2.6"
    )
    return sink.getvalue()


def read_parquet(data: bytes | pa.Buffer, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a Parquet file, or some of its columns."""
    return _open(data).read(columns=None if columns is None else list(columns), use_threads=False)


def iterate_parquet(data: bytes | pa.Buffer, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, so many at a time."""
    yield from _open(data).iter_batches(batch_rows, use_threads=False)


def _open(data: bytes | pa.Buffer) -> pq.ParquetFile:
    """With none of Arrow's own threads, as in the reads above: one that lets go of a Python buffer while the
    interpreter shuts down aborts the process (12 of 60 short programs, pyarrow 26.0.1, 2026-11-21).
    """
    return pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)

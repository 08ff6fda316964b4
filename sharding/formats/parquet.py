"""Parquet in memory: one shard's rows to the bytes of its file, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["iterate_parquet", "read_parquet", "rows_within", "write_parquet"]

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


def iterate_parquet(
    data: bytes | pa.Buffer, batch_rows: int, columns: Sequence[str] | None = None, batch_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, or some of its columns, so many at a time and about so many bytes at most."""
    file = _open(data)
    names = file.schema_arrow.names if columns is None else list(columns)
    if batch_bytes is not None:
        batch_rows = rows_within(file, range(file.metadata.num_row_groups), names, batch_rows, batch_bytes)
    yield from file.iter_batches(batch_rows, columns=names, use_threads=False)


def rows_within(
    file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str], batch_rows: int, batch_bytes: int
) -> int:
    """How many rows of some row groups make a batch of at most `batch_rows` rows and about `batch_bytes` bytes.

    From types and metadata alone. Values of fixed width have that width. Others are taken to have, together, the size
    of all that a row group holds as it is encoded: more than theirs, but less than in memory where long strings repeat.
    Sizes of single columns are not asked for: pyarrow 26.0.1 aborts the process where they are damaged.
    """
    widths = [_fixed_bytes(file.schema_arrow.field(name).type) for name in columns]
    row_bytes = sum(widths, 0.0)
    if 0.0 in widths:
        sizes = [file.metadata.row_group(group) for group in groups]
        row_bytes += max((group.total_byte_size / max(group.num_rows, 1) for group in sizes), default=0.0)
    return min(batch_rows, max(1, int(batch_bytes / max(row_bytes, 1.0))))


def _fixed_bytes(kind: pa.DataType) -> float:
    """Size of a value, or 0 if values of its type differ in size."""
    if isinstance(kind, pa.BaseExtensionType):
        return _fixed_bytes(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _fixed_bytes(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return float(kind.list_size) * _fixed_bytes(kind.value_type)
    fixed = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
    return float(kind.bit_width) / 8 if fixed else 0.0


def _open(data: bytes | pa.Buffer) -> pq.ParquetFile:
    """With none of Arrow's own threads, as in the reads above: one that lets go of a Python buffer while the
    interpreter shuts down aborts the process (12 of 60 short programs, pyarrow 26.0.1, 2026-11-21).
    """
    return pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)

"""Which records of one shard a filter lets through, by reading as little of it as will tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from .where_expression import RowFilter

__all__ = ["FilteredRows", "filter_parquet", "filter_records"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredRows:
    """The records of a shard that are let through, and what it took to know.

    Attributes:
        rows: their numbers in the shard, ascending.
        rows_in_groups: their numbers in the row groups below, end to end.
        groups: the row groups that statistics do not rule out; None where there are none, or nothing was looked at.
        row_groups: of the shard.
        bytes_read: of the shard.
        bytes_skipped: of the filter's columns, in row groups that were ruled out.
    """

    rows: Int64
    rows_in_groups: Int64
    groups: tuple[int, ...] | None = None
    row_groups: int = 0
    bytes_read: int = 0
    bytes_skipped: int = 0


def filter_records(batches: Iterable[pa.RecordBatch], row_filter: RowFilter, bytes_read: int) -> FilteredRows:
    """Of all records of a shard, with the filter's columns at least."""
    found, first = [np.empty(0, np.int64)], 0
    for batch in batches:
        found.append(first + row_filter.rows({name: batch.column(name) for name in row_filter.columns}))
        first += batch.num_rows
    rows = np.concatenate(found)
    return FilteredRows(rows=rows, rows_in_groups=rows, bytes_read=bytes_read)


def filter_parquet(file: IO[bytes] | pa.NativeFile, row_filter: RowFilter, *, check_pages: bool) -> FilteredRows:
    """Of a Parquet file: the footer, and the filter's columns of row groups that their statistics do not rule out.

    Args:
        file: to seek and read in.
        row_filter: of the records.
        check_pages: hold each page against its checksum; not needed where the file is known to be whole.

    Raises:
        OSError: a page is damaged.
    """
    fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(file)
    chosen = tuple(group.id for group in fragment.subset(filter=row_filter.implied).row_groups)
    metadata = fragment.metadata
    names = fragment.physical_schema.names
    wanted = [leaf for leaf, name in enumerate(names) if name in row_filter.columns]  # one a feature, none is nested
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [sum(group.column(leaf).total_compressed_size for leaf in wanted) for group in groups]
    reader = pq.ParquetFile(file, metadata=metadata, pre_buffer=False, page_checksum_verification=check_pages)
    first = np.cumsum([0, *(group.num_rows for group in groups)])
    rows, rows_in_groups, passed = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for number in chosen:
        table = reader.read_row_group(number, columns=sorted(row_filter.columns), use_threads=False)
        found = row_filter.rows({name: _one(table.column(name)) for name in row_filter.columns})
        rows.append(first[number] + found)
        rows_in_groups.append(passed + found)
        passed += table.num_rows
    read = sum(sizes[number] for number in chosen)
    return FilteredRows(
        rows=np.concatenate(rows),
        rows_in_groups=np.concatenate(rows_in_groups),
        groups=chosen,
        row_groups=len(sizes),
        bytes_read=read + metadata.serialized_size,
        bytes_skipped=sum(sizes) - read,
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array

"""Filter the records of one shard, reading as little of it as possible.

Tested in tests/pipeline/select/test_where_expression.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from ringfeed.sharding.formats.parquet_types import plain_columns

from .where_expression import RowFilter

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredRows:
    """The records of a shard that pass a filter, and the cost of finding them."""

    rows: Int64  # numbers of the records in the shard, ascending
    rows_in_groups: Int64  # numbers of the records within `groups`, end to end
    # Row groups that statistics do not rule out; None for TFRecord, or if the shard was not read
    groups: tuple[int, ...] | None = None
    row_groups: int = 0  # row groups of the shard
    bytes_read: int = 0  # bytes read of the shard
    bytes_skipped: int = 0  # bytes of the filter's columns in other row groups


def filter_records(batches: Iterable[pa.RecordBatch], row_filter: RowFilter, bytes_read: int) -> FilteredRows:
    """Filter all records of a shard. The batches must have the filter's columns."""
    kept, first = [np.empty(0, np.int64)], 0
    for batch in batches:
        kept.append(first + row_filter.rows({name: batch.column(name) for name in row_filter.columns}))
        first += batch.num_rows
    rows = np.concatenate(kept)
    return FilteredRows(rows=rows, rows_in_groups=rows, bytes_read=bytes_read)


def filter_parquet(file: IO[bytes] | pa.NativeFile, row_filter: RowFilter, *, check_pages: bool) -> FilteredRows:
    """Filter a Parquet file: read its footer, and the filter's columns in row groups not ruled out by statistics.

    Args:
        file: seekable file.
        row_filter: filter.
        check_pages: whether to verify the checksum of each page; not needed if the file has been verified.

    Raises:
        OSError: a page is damaged.
    """
    fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(file)
    try:
        chosen = tuple(group.id for group in fragment.subset(filter=row_filter.implied).row_groups)
    except pa.ArrowNotImplementedError:  # it compares a time, which the file declares, with an integer
        chosen = tuple(range(fragment.num_row_groups))
    metadata = fragment.metadata
    names = fragment.physical_schema.names
    wanted = [
        leaf for leaf, name in enumerate(names) if name in row_filter.columns
    ]  # one leaf for each feature: none is nested
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [sum(group.column(leaf).total_compressed_size for leaf in wanted) for group in groups]
    reader = pq.ParquetFile(file, metadata=metadata, pre_buffer=False, page_checksum_verification=check_pages)
    first = np.cumsum([0, *(group.num_rows for group in groups)])
    rows, rows_in_groups, passed = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for number in chosen:
        table = plain_columns(reader.read_row_group(number, columns=sorted(row_filter.columns), use_threads=False))
        kept = row_filter.rows({name: _one(table.column(name)) for name in row_filter.columns})
        rows.append(first[number] + kept)
        rows_in_groups.append(passed + kept)
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

"""Reads row groups of Parquet files in batches of bounded memory, however often a long value repeats in them.

A page holds a number for a repeated value, and the dictionary of its column holds the value once: the size of a row
group says little about the size of its rows. So the dictionary of each column is read first, and its longest value
tells how many rows fit into memory.
Tested in tests/sharding/sources/tables/test_parquet_batches.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from ringfeed.sharding.compute.batches import BATCH_BYTES, slice_batch
from ringfeed.sharding.compute.decoded_bytes import decoded_bytes, shares_values
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.sources.files.inflation import bounded_memory

from .plain_arrays import plain_batch

Open = Callable[[Sequence[str]], pq.ParquetFile]  # takes the paths of the leaves to read as dictionaries

_MOST_BYTES = 8 * BATCH_BYTES  # of a batch, if all its texts were the longest ones
_FEWER = 64  # times fewer rows are tried after a batch that took too much memory
_LONG_BYTES = 1 << 20  # longer texts of lists are read as dictionaries, as the lengths of lists are not known before


def read_row_groups(
    opened: Open, path: str, file_bytes: int, groups: Sequence[int], columns: Sequence[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of some row groups.

    Args:
        opened: opens the file.
        path: its path or URL.
        file_bytes: its size.
        groups: numbers of the row groups.
        columns: names of the columns, dotted for fields of structs.
        batch_rows: most rows of a batch.

    Raises:
        pa.ArrowInvalid: a row group is damaged, or a record takes more than 1 GiB.
        SourceError: a record takes far more memory than the bytes of its row group.
    """
    file = opened([])
    every = [file.schema.column(number) for number in range(len(file.schema))]
    leaves = [leaf for leaf in every if leaf.physical_type == "BYTE_ARRAY" and _is_in(leaf.path, columns)]
    texts = opened([leaf.path for leaf in leaves]) if leaves else file
    nested = any(leaf.max_repetition_level for leaf in leaves)
    inner = _has_inner_dictionary(file.schema_arrow)

    def stored_bytes(groups: Sequence[int]) -> int:
        return min(file_bytes, sum(int(file.metadata.row_group(group).total_byte_size) for group in groups))

    def plan(group: int) -> tuple[int, bool, int]:
        """The rows of a batch, whether to read dictionaries, and the number of the batches' run of row groups."""
        metadata = file.metadata.row_group(group)
        rows, longest = min(batch_rows, metadata.num_rows), 0
        if leaves and rows * metadata.total_byte_size > _MOST_BYTES:
            with bounded_memory(path, "row group", stored_bytes([group])):
                longest = _longest_row(texts, group, [leaf.path for leaf in leaves])
        if rows * longest <= _MOST_BYTES:
            return batch_rows, False, group if inner else -1
        shared = nested and longest > _LONG_BYTES
        return batch_rows if shared else max(1, _MOST_BYTES // longest), shared, group

    for (rows, shared, _), run in groupby(groups, plan):
        reader, numbers = texts if shared else file, list(run)
        for batch in _bounded_batches(reader, path, stored_bytes(numbers), numbers, columns, rows):
            pieces = slice_batch(batch) if shared or inner else [batch]
            yield from (plain_batch(piece, texts=shared) for piece in pieces)


def _bounded_batches(
    file: pq.ParquetFile, path: str, stored_bytes: int, groups: Sequence[int], columns: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of `rows` rows, or of fewer where those take too much memory, as lists may have any length."""
    rows = min(rows, max(1, sum(file.metadata.row_group(group).num_rows for group in groups)))
    done = 0
    while True:
        batches, ahead = file.iter_batches(rows, row_groups=groups, columns=list(columns)), done
        try:
            while True:
                with bounded_memory(path, "row group", stored_bytes):
                    batch = next(batches, None)
                if batch is None:
                    return
                new = batch.slice(ahead)
                ahead -= min(ahead, batch.num_rows)
                done += new.num_rows
                if new.num_rows:
                    yield new
        except SourceError:
            if rows == 1:
                raise
            rows = max(1, rows // _FEWER)


def _is_in(path: str, columns: Sequence[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in columns)


def _longest_row(texts: pq.ParquetFile, group: int, paths: Sequence[str]) -> int:
    """The sum of the longest values in the dictionaries of a row group, in bytes."""
    row = next(texts.iter_batches(1, row_groups=[group], columns=list(paths)), None)
    dictionaries = [] if row is None else [values for column in row.columns for values in _dictionaries(column)]
    return sum(int(decoded_bytes(values).max(initial=0)) for values in dictionaries)


def _dictionaries(column: pa.Array) -> Iterator[pa.Array]:
    if types.is_dictionary(column.type):
        yield column.dictionary
    elif types.is_struct(column.type):
        for number in range(column.type.num_fields):
            yield from _dictionaries(column.field(number))
    elif types.is_nested(column.type):
        yield from _dictionaries(column.values)


def _has_inner_dictionary(schema: pa.Schema) -> bool:
    """Whether structs or lists contain dictionaries, which Arrow can read from only one row group at a time."""
    return any(not types.is_dictionary(kind) and shares_values(kind) for kind in schema.types)

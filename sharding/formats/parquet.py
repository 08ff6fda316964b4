"""Reads and writes Parquet files in memory: shards, single columns and row groups, and damaged files."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.types import is_binary, is_dictionary, is_fixed_size_list, is_large_list, is_list, is_string

from ringfeed.sharding.messages import brief

from .footer_trial import has_readable_columns
from .parquet_pages import FileVectors, read_vectors
from .parquet_types import is_rescaled, plain_columns, plain_types

LENGTH_BYTES = 8  # at the end of a file: the footer's length and PAR1
_SAMPLE_VALUES = 1 << 13
_SAMPLE_BYTES = 1 << 15
_BATCH_BYTES = 1 << 28  # lists that do not fit into one array are read in such batches
_WORTHWHILE = 0.95  # of the plain size: compression must save more than a twentieth
_LONG_BYTES = 256  # per value; longer ones rarely recur, and are slow to compare


def open_writer(sink: IO[bytes], schema: pa.Schema, first: pa.RecordBatch, compression: str) -> pq.ParquetWriter:
    """Open a writer of row groups, which the caller closes.

    Args:
        first: rows of the first group, by which dictionaries and compression are chosen for each column.
        compression: codec of the pages, for columns that it makes smaller.
    """
    leaves = [_leaf(name, column) for name, column in zip(first.schema.names, first.columns, strict=True)]
    recurring = {path for path, values in leaves if is_dictionary(values.type) or _recurs(values)}
    plain = {path for path, values in leaves if path not in recurring and not _shrinks(values, compression)}
    return pq.ParquetWriter(
        sink,
        schema,
        compression={path: "none" if path in plain else compression for path, _ in leaves},
        version="2.6",
        use_dictionary=sorted(recurring),
        write_page_checksum=True,  # without it, a flipped bit in a plain page goes unnoticed
    )


def _leaf(name: str, column: pa.Array) -> tuple[str, pa.Array]:
    """The path of a column in the file, and its values, for lists only the first."""
    values = column.storage if isinstance(column, pa.ExtensionArray) else column
    if is_list(values.type) or is_large_list(values.type) or is_fixed_size_list(values.type):
        return f"{name}.list.element", values.slice(0, _SAMPLE_VALUES).flatten()
    return name, values


def _recurs(values: pa.Array) -> bool:
    """Whether values recur, judged by the first of them.

    A dictionary of values that do not takes three times as long and a seventh more space (500,000 rows of 32 random
    float32, 2026-11-21).
    """
    values = values.slice(0, _SAMPLE_VALUES)
    return bool(values.nbytes <= _LONG_BYTES * len(values) and 2 * pc.count_distinct(values).as_py() <= len(values))


def _shrinks(values: pa.Array, compression: str) -> bool:
    """Whether compression saves space, judged by values from the beginning, the middle and the end.

    Noise and photographs do not shrink, and would be copied for nothing at every read.
    """
    if compression == "none" or not len(values):
        return True
    last = max(0, len(values) - _SAMPLE_VALUES)
    samples = [_content(values.slice(start, _SAMPLE_VALUES)) for start in (0, last // 2, last)]
    stored = sum(pa.compress(sample, compression, asbytes=False).size for sample in samples)
    return bool(stored < _WORTHWHILE * sum(sample.size for sample in samples))


def _content(values: pa.Array) -> pa.Buffer:
    """The first bytes of values, as they lie in memory."""
    data, start, stop = values.buffers()[-1] or pa.py_buffer(b""), values.offset, values.offset + len(values)
    if is_string(values.type) or is_binary(values.type):
        start, stop = np.frombuffer(values.buffers()[1] or bytes(4), np.int32)[[start, stop]].tolist()
    else:
        start, stop = (place * values.type.bit_width // 8 for place in (start, stop))
    return data.slice(start, min(stop - start, _SAMPLE_BYTES))


def write_parquet(batch: pa.RecordBatch, compression: str, group_rows: int) -> pa.Buffer:
    """Write a batch as a Parquet file with `group_rows` rows per row group."""
    sink = pa.BufferOutputStream()
    with open_writer(sink, batch.schema, batch.slice(0, group_rows), compression) as writer:
        writer.write_batch(batch, row_group_size=group_rows)
    return sink.getvalue()


def read_parquet(data: bytes | pa.Buffer, columns: Sequence[str] | None = None) -> pa.Table:
    """Read all rows of a Parquet file, all columns or some."""
    return plain_columns(_open(data).read(columns=None if columns is None else list(columns), use_threads=False))


def read_columns(
    data: pa.Buffer,
    vectors: Mapping[str, tuple[npt.DTypeLike, int]],
    others: Sequence[str],
    groups: Sequence[int] | None,
    expected: pa.Schema | None = None,
) -> tuple[dict[str, FileVectors | npt.NDArray[Any]], pa.Table]:
    """Read columns of a verified file; vectors bypass Arrow where their pages allow it.

    Args:
        data: bytes of the whole file, already checked.
        vectors: columns of fixed-size lists: dtype and number of elements, by name.
        groups: numbers of the row groups to read; None: all.
        expected: types to check the columns against; None: no check.

    Returns:
        The vectors that bypass Arrow, [rows, elements], by name; and a table of all other columns.

    Raises:
        ValueError: a column is missing or has another type than expected.
    """
    file = _open(data)
    metadata, stored = file.metadata, file.schema_arrow
    schema = plain_types(stored)
    if expected is not None:
        check_columns(schema, expected)
    chosen = range(metadata.num_row_groups) if groups is None else groups
    vectors_by_name: dict[str, FileVectors | npt.NDArray[Any]] = {}
    for leaf, name in enumerate(schema.names):  # a feature is one leaf: none is nested deeper
        dtype, elements = vectors.get(name, ("V1", 0))
        if elements and _list_size(schema.field(leaf).type) == elements and not is_rescaled(stored.field(leaf)):
            values = read_vectors(data, metadata, chosen, leaf, dtype, elements)
            if values is not None:
                vectors_by_name[name] = values
    rest = [name for name in (*vectors, *others) if name not in vectors_by_name]
    if not rest:
        return vectors_by_name, pa.table({})
    return vectors_by_name, plain_columns(_read_groups(file, list(chosen), rest))


def _read_groups(file: pq.ParquetFile, groups: list[int], columns: list[str]) -> pa.Table:
    """Read columns of row groups: all rows at once, or in batches where lists of strings hold more than 2 GiB."""
    try:
        return file.read_row_groups(groups, columns=columns, use_threads=False)
    except pa.ArrowNotImplementedError:  # pyarrow cannot return lists of strings in several chunks
        rows = batch_rows_within(file, groups, columns, sys.maxsize, _BATCH_BYTES)
        batches = file.iter_batches(rows, row_groups=groups, columns=columns, use_threads=False)
        return pa.Table.from_batches(batches)


def check_columns(stored: pa.Schema, expected: pa.Schema) -> None:
    """Refuse a file that lacks an expected column, or has it in another type (a ValueError)."""
    for field in expected:
        place = stored.get_field_index(field.name)
        if place < 0 or stored.field(place).type != field.type:
            raise ValueError(f"it has no column {field.name!r} of type {field.type}")


def footer_bytes(tail: pa.Buffer) -> int:
    """Size of a file's footer up to the end of the file, from the last `LENGTH_BYTES` or more of the file."""
    return int.from_bytes(tail[-LENGTH_BYTES:-4].to_pybytes(), "little") + LENGTH_BYTES


def column_spans(
    tail: pa.Buffer, columns: Collection[str], rows: tuple[int, int] | None = None
) -> list[tuple[int, int]]:
    """The byte ranges ``[start, stop)`` of some columns in a file, one for each column chunk.

    Args:
        tail: end of the file with the whole footer, already checked.
        rows: range of rows ``[start, stop)``; other row groups are left out. Default: all rows.
    """
    metadata = _metadata_of(tail)
    names = metadata.schema.to_arrow_schema().names
    leaves = [
        leaf for leaf, name in enumerate(names) if name in columns
    ]  # a feature is one leaf: none is nested deeper
    numbers = range(metadata.num_row_groups) if rows is None else groups_of_rows(tail, rows)[0]
    return [_extent(group.column(leaf)) for group in map(metadata.row_group, numbers) for leaf in leaves]


def groups_of_rows(tail: pa.Buffer, rows: tuple[int, int]) -> tuple[range, range]:
    """The row groups of a file that hold some rows, and all rows of these groups.

    Args:
        tail: end of the file with the whole footer, already checked.
        rows: non-empty range of rows ``[start, stop)``.
    """
    metadata = _metadata_of(tail)
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    first, last = (int(group) - 1 for group in np.searchsorted(firsts, [rows[0], rows[1] - 1], side="right"))
    return range(first, last + 1), range(int(firsts[first]), int(firsts[last + 1]))


def _metadata_of(tail: pa.Buffer) -> pq.FileMetaData:
    footer = tail[tail.size - footer_bytes(tail) :]
    return pq.read_metadata(pa.BufferReader(b"PAR1" + footer.to_pybytes()))


def iterate_parquet(
    data: bytes | pa.Buffer, batch_rows: int, columns: Sequence[str] | None = None, batch_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches of limited rows and, about, bytes; all columns or some."""
    file = _open(data)
    names = file.schema_arrow.names if columns is None else list(columns)
    if batch_bytes is not None:
        batch_rows = batch_rows_within(file, range(file.metadata.num_row_groups), names, batch_rows, batch_bytes)
    yield from map(plain_columns, file.iter_batches(batch_rows, columns=names, use_threads=False))


def row_group_sizes(data: bytes | pa.Buffer) -> list[int]:
    """Number of rows in each row group of a Parquet file."""
    metadata = _open(data).metadata
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def read_row_group(
    data: bytes | pa.Buffer, group: int, columns: Sequence[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of some columns of one row group of a Parquet file."""
    yield from _open(data).iter_batches(batch_rows, row_groups=[group], columns=list(columns), use_threads=False)


def batch_rows_within(
    file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str], batch_rows: int, batch_bytes: int
) -> int:
    """The number of rows for a batch of at most `batch_rows` rows and about `batch_bytes` bytes.

    It is estimated from types and metadata alone. Values of variable width are taken to have, together, the encoded
    size of the whole row group: too much, except where long strings repeat. The sizes of single columns are not used,
    as pyarrow 26.0.1 aborts the process if they are damaged.
    """
    schema = file.schema_arrow  # the property makes a new one each time
    widths = [_fixed_bytes(schema.field(name).type) if name in schema.names else 0.0 for name in columns]
    row_bytes = sum(widths, 0.0)
    if 0.0 in widths:
        sizes = [file.metadata.row_group(group) for group in groups]
        row_bytes += max((group.total_byte_size / max(group.num_rows, 1) for group in sizes), default=0.0)
    return min(batch_rows, max(1, int(batch_bytes / max(row_bytes, 1.0))))


def _fixed_bytes(kind: pa.DataType) -> float:
    """Size of a value in bytes, or 0 if it varies."""
    if isinstance(kind, pa.BaseExtensionType):
        return _fixed_bytes(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _fixed_bytes(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return float(kind.list_size) * _fixed_bytes(kind.value_type)
    fixed = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
    return float(kind.bit_width) / 8 if fixed else 0.0


def _list_size(kind: pa.DataType) -> int | None:
    """Number of values in each list of a type, or None if it varies or the type holds no lists."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return kind.list_size if is_fixed_size_list(kind) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """A row group of a file that may be damaged."""

    number: int  # number of the row group
    first_record: int  # number of its first row
    records: int  # number of its rows
    columns: dict[str, tuple[int, int]]  # byte range ``[offset, stop)`` of each column in the file, by name
    damaged: tuple[str, ...]  # names of the columns that cannot be read or fail a page checksum


def scan_row_groups(data: pa.Buffer) -> Iterator[RowGroup]:
    """Read all columns of all row groups and verify each page's checksum; a ValueError if the footer is damaged."""
    try:
        file = _open(data, check_pages=True)
        names, metadata = file.schema_arrow.names, file.metadata
        if not has_readable_columns(b"PAR1" + data[-footer_bytes(data) :].to_pybytes()):
            raise ValueError("the metadata of its columns cannot be read")
    except Exception as error:  # damaged bytes can make a reader raise anything
        raise ValueError(f"the footer is damaged: {brief(error)}") from error
    first = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        leaves = [
            group.column(leaf) for leaf in range(group.num_columns)
        ]  # a feature is one leaf: none is nested deeper
        columns = {name: _extent(leaf) for name, leaf in zip(names, leaves, strict=False)}
        damaged = [
            name
            for name, leaf in zip(names, leaves, strict=False)
            if not _readable(file, number, leaf.path_in_schema, group.num_rows)
        ]
        yield RowGroup(
            number=number, first_record=first, records=group.num_rows, columns=columns, damaged=tuple(damaged)
        )
        first += group.num_rows


def read_row_groups(data: pa.Buffer, numbers: Sequence[int]) -> pa.Table:
    """Read some row groups and verify each page's checksum."""
    return plain_columns(_open(data, check_pages=True).read_row_groups(list(numbers), use_threads=False))


def _extent(leaf: pq.ColumnChunkMetaData) -> tuple[int, int]:
    start = leaf.data_page_offset
    if leaf.has_dictionary_page and leaf.dictionary_page_offset is not None:
        start = min(start, leaf.dictionary_page_offset)
    return start, start + leaf.total_compressed_size


def _readable(file: pq.ParquetFile, number: int, column: str, rows: int) -> bool:
    try:
        table = file.read_row_group(number, columns=[column], use_threads=False)
        table.validate(full=True)
    except Exception:  # damaged bytes can make a reader raise anything
        return False
    return bool(table.num_rows == rows)


def _open(data: bytes | pa.Buffer, *, check_pages: bool = False) -> pq.ParquetFile:
    """Open a file without pre-buffering: no Arrow threads here or in the reads above.

    An Arrow thread that releases a Python buffer while the interpreter shuts down aborts the process (12 of 60 short
    programs, pyarrow 26.0.1, 2026-11-21).
    """
    return pq.ParquetFile(pa.BufferReader(data), pre_buffer=False, page_checksum_verification=check_pages)

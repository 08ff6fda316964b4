"""Vectors of a Parquet file, taken from its pages as they lie there.

Arrow finds the values of lists by the levels that tell where each begins and what is missing: 5 ns a value, longer than
all the rest of reading. Where metadata say that nothing is missing, and all lists have one length, the values of a page
are simply those that follow its levels. Page headers are Thrift structs in the compact protocol
(https://github.com/apache/parquet-format, parquet.thrift).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["read_vectors"]

_PHYSICAL = {"INT32": "<i4", "INT64": "<i8", "FLOAT": "<f4", "DOUBLE": "<f8"}
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3
_SIZE, _STORED_SIZE, _DATA_HEADER = 2, 3, 5  # fields of a PageHeader
_VALUES, _ENCODING, _DEFINITION_LEVELS, _REPETITION_LEVELS = 1, 2, 3, 4  # and of a DataPageHeader


class _Otherwise(Exception):
    """The values do not lie as is expected here."""


def read_vectors(
    data: pa.Buffer, metadata: pq.FileMetaData, groups: Sequence[int], leaf: int, dtype: npt.DTypeLike, elements: int
) -> npt.NDArray[Any] | None:
    """The lists of one column, if none is missing, nor any value, and the values are numbers as they lie in memory.

    Args:
        data: of a whole file, known to be as it was written.
        metadata: of the file.
        groups: row groups to read.
        leaf: number of the column.
        dtype: of the values.
        elements: values in each list, of which all have as many; 2 at least.

    Returns:
        [rows, elements]; or None, where Arrow has to read them.
    """
    rows = sum(metadata.row_group(group).num_rows for group in groups)
    size = rows * elements * np.dtype(dtype).itemsize
    result = np.frombuffer(pa.allocate_buffer(size), dtype).reshape(rows, elements)  # of the pool that pages go to
    flat, filled = result.reshape(-1), 0
    try:
        for group in groups:
            for values in _pages(data, metadata, group, leaf, result.dtype, elements):
                flat[filled : filled + len(values)] = values
                filled += len(values)
    except (_Otherwise, IndexError, KeyError, ValueError, OSError, pa.ArrowException):
        return None
    return result if filled == flat.size else None


def _pages(
    data: pa.Buffer, metadata: pq.FileMetaData, group: int, leaf: int, dtype: np.dtype[Any], elements: int
) -> Iterator[npt.NDArray[Any]]:
    """The values of each page of a column chunk."""
    chunk, column = metadata.row_group(group).column(leaf), metadata.schema.column(leaf)
    known = chunk.statistics
    whole = known is not None and known.has_null_count and known.null_count == 0
    stored = np.dtype(_PHYSICAL.get(chunk.physical_type, "V1"))
    if (
        not whole
        or chunk.num_values != metadata.row_group(group).num_rows * elements
        or stored.itemsize != dtype.itemsize
        or (stored.kind == "f") != (dtype.kind == "f")
    ):
        raise _Otherwise
    name = {"UNCOMPRESSED": None, "LZ4": "lz4_raw"}.get(chunk.compression, chunk.compression.lower())
    codec = None if name is None else pa.Codec(name)
    levels = (column.max_repetition_level > 0) + (column.max_definition_level > 0)
    at, content = chunk.data_page_offset, memoryview(data).cast("B")
    stop = at + chunk.total_compressed_size
    while at < stop:
        header, at = _read_struct(content, at)
        page, at = data.slice(at, header[_STORED_SIZE]), at + header[_STORED_SIZE]
        if header[1] != _DATA_PAGE:
            raise _Otherwise
        about = header[_DATA_HEADER]
        if (about[_ENCODING], about[_DEFINITION_LEVELS], about[_REPETITION_LEVELS]) != (_PLAIN, _RLE, _RLE):
            raise _Otherwise
        body = page if codec is None else codec.decompress(page, header[_SIZE])
        start = 0
        for _ in range(levels):
            start += 4 + int.from_bytes(body[start : start + 4].to_pybytes(), "little")
        yield np.frombuffer(body, dtype, about[_VALUES], start)


# --- Thrift ----------------------------------------------------------------------------------------------------


def _read_struct(content: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """Fields by number, and where the struct ends; byte strings are passed over."""
    fields: dict[int, Any] = {}
    number = 0
    while kind := content[at]:
        at += 1
        if kind >> 4:
            number += kind >> 4
        else:
            number, at = _read_integer(content, at)
        kind &= 15
        if kind in (1, 2):
            fields[number] = kind == 1
        elif kind in (4, 5, 6):
            fields[number], at = _read_integer(content, at)
        elif kind == 8:
            length, at = _read_varint(content, at)
            at += length
        elif kind == 12:
            fields[number], at = _read_struct(content, at)
        else:
            raise _Otherwise
    return fields, at + 1


def _read_integer(content: memoryview, at: int) -> tuple[int, int]:
    value, at = _read_varint(content, at)
    return (value >> 1) ^ -(value & 1), at


def _read_varint(content: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = content[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at

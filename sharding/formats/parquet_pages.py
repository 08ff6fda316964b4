"""Reads fixed-size lists of numbers straight from the pages of a Parquet file, without Arrow.

Arrow decodes the levels that say where each list begins and which values are missing; this takes 5 ns per value, longer
than the rest of reading. If the metadata say that nothing is missing, and all lists have one length, the values of a
page simply follow its levels. Values of uncompressed pages are not copied until they are gathered. Page headers are
Thrift structs in the compact protocol (https://github.com/apache/parquet-format, parquet.thrift).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ringfeed.sharding.compute import kernels
from ringfeed.sharding.compute.arrays import Int64

from .protobuf_wire import read_varint

_PHYSICAL = {"INT32": "<i4", "INT64": "<i8", "FLOAT": "<f4", "DOUBLE": "<f8"}
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3
_SIZE, _STORED_SIZE, _DATA_HEADER = 2, 3, 5  # fields of a PageHeader
_VALUES, _ENCODING, _DEFINITION_LEVELS, _REPETITION_LEVELS = 1, 2, 3, 4  # and of a DataPageHeader

Page = tuple[pa.Buffer, int, int]  # buffer, start and number of its values, which are contiguous
Run = tuple[int, int]  # start and number of contiguous vectors


class _UnsupportedPage(Exception):
    """A page has another form than is read here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVectors:
    """Vectors in the bytes of a file, copied only when they are gathered."""

    data: pa.Buffer  # bytes of the file
    starts: Int64  # start of each vector, int64 [rows]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of_runs(cls, data: pa.Buffer, runs: Iterable[Run], dtype: np.dtype[Any], shape: tuple[int, ...]) -> FileVectors:
        """The vectors of some runs, in order."""
        width = prod(shape) * dtype.itemsize
        starts = [np.arange(start, start + count * width, width) for start, count in runs]
        return cls(data=data, starts=np.concatenate([np.empty(0, np.int64), *starts]), dtype=dtype, shape=shape)

    def __len__(self) -> int:
        return len(self.starts)

    def runs(self) -> list[Run]:
        """The runs from which `of_runs` makes these vectors."""
        jumps = np.flatnonzero(np.diff(self.starts) != prod(self.shape) * self.dtype.itemsize) + 1
        firsts = np.concatenate([[0], jumps]) if len(self) else np.empty(0, np.int64)
        return list(zip(self.starts[firsts].tolist(), np.diff(firsts, append=len(self)).tolist(), strict=True))

    def take(self, rows: Int64, axis: Literal[0] = 0, mode: Literal["raise", "clip"] = "raise") -> npt.NDArray[Any]:
        """Gather the vectors of some rows, [rows, *shape]; the arguments are those of `numpy.take`."""
        starts, width = self.starts.take(rows, mode=mode), prod(self.shape) * self.dtype.itemsize
        content = np.frombuffer(self.data, np.uint8)
        if kernels.are_compiled():
            pieces = kernels.gather(content, starts, width)
        else:
            pieces = np.lib.stride_tricks.sliding_window_view(content, width)[starts]
        return pieces.reshape(-1).view(self.dtype).reshape(-1, *self.shape)

    def slice(self, start: int, length: int) -> FileVectors:
        """A range of rows, not copied."""
        return replace(self, starts=self.starts[start : start + length])


def read_vectors(
    data: pa.Buffer, metadata: pq.FileMetaData, groups: Sequence[int], leaf: int, dtype: npt.DTypeLike, elements: int
) -> FileVectors | npt.NDArray[Any] | None:
    """Read one column of fixed-size lists, without missing lists or values, of plainly encoded numbers.

    Args:
        data: bytes of the whole file, already checked.
        elements: number of values in each list, at least 2.

    Returns:
        The lists, [rows, elements]; not copied if pages are uncompressed and hold whole lists. None if Arrow must read
        the column.
    """
    kind, rows = np.dtype(dtype), sum(metadata.row_group(group).num_rows for group in groups)
    chunks = [metadata.row_group(group).column(leaf) for group in groups]
    pages: Iterable[Page] = (page for group in groups for page in _pages(data, metadata, group, leaf, kind, elements))
    try:
        if all(chunk.compression == "UNCOMPRESSED" for chunk in chunks):
            pages = list(pages)
            if all(count % elements == 0 for _, _, count in pages):
                return _in_place(data, pages, rows, kind, elements)
        return _copied(pages, rows, kind, elements)
    except (_UnsupportedPage, IndexError, KeyError, ValueError, OSError, pa.ArrowException):
        return None


def _in_place(
    data: pa.Buffer, pages: Iterable[Page], rows: int, dtype: np.dtype[Any], elements: int
) -> FileVectors | None:
    vectors = FileVectors.of_runs(data, ((start, count // elements) for _, start, count in pages), dtype, (elements,))
    return vectors if len(vectors) == rows else None


def _copied(pages: Iterable[Page], rows: int, dtype: np.dtype[Any], elements: int) -> npt.NDArray[Any] | None:
    size = rows * elements
    values = np.frombuffer(pa.allocate_buffer(size * dtype.itemsize), dtype)  # from the memory pool of the pages
    filled = 0
    for page, start, count in pages:
        values[filled : filled + count] = np.frombuffer(page, dtype, count, start)
        filled += count
    return values.reshape(rows, elements) if filled == size else None


def _pages(
    data: pa.Buffer, metadata: pq.FileMetaData, group: int, leaf: int, dtype: np.dtype[Any], elements: int
) -> Iterator[Page]:
    """Yield the pages of a column chunk, as parts of the data itself if it is not compressed."""
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
        raise _UnsupportedPage
    name = {"UNCOMPRESSED": None, "LZ4": "lz4_raw"}.get(chunk.compression, chunk.compression.lower())
    codec = None if name is None else pa.Codec(name)
    levels = (column.max_repetition_level > 0) + (column.max_definition_level > 0)
    at, content = chunk.data_page_offset, memoryview(data).cast("B")
    end = at + chunk.total_compressed_size
    while at < end:
        header, at = _read_struct(content, at)
        if header[1] != _DATA_PAGE:
            raise _UnsupportedPage
        about = header[_DATA_HEADER]
        if (about[_ENCODING], about[_DEFINITION_LEVELS], about[_REPETITION_LEVELS]) != (_PLAIN, _RLE, _RLE):
            raise _UnsupportedPage
        stored_bytes, values = header[_STORED_SIZE], about[_VALUES]
        page, start, stop = data, at, at + stored_bytes
        if codec is not None:
            page, start, stop = codec.decompress(data.slice(at, stored_bytes), header[_SIZE]), 0, header[_SIZE]
        for _ in range(levels):
            start += 4 + int.from_bytes(page[start : start + 4].to_pybytes(), "little")
        if start + values * dtype.itemsize > stop:
            raise _UnsupportedPage
        yield page, start, values
        at += stored_bytes


# --- Thrift ----------------------------------------------------------------------------------------------------


def _read_struct(content: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """Read the fields of a struct by number, without byte strings; and the position after it."""
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
            length, at = read_varint(content, at, len(content))
            at += length
        elif kind == 12:
            fields[number], at = _read_struct(content, at)
        else:
            raise _UnsupportedPage
    return fields, at + 1


def _read_integer(content: memoryview, at: int) -> tuple[int, int]:
    value, at = read_varint(content, at, len(content))
    return (value >> 1) ^ -(value & 1), at

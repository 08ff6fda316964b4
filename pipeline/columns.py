"""The columns of an opened shard, in memory: arrays from which samples are gathered by number.

Three kinds, behind one protocol: NumPy arrays for whatever has a fixed shape, Arrow arrays for strings and lists,
and whole `tf.train.Example` messages where only TensorFlow's parser can tell the columns apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..sharding.formats.example import RecordLayout
from ..sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ..sharding.schema import Feature, Schema

__all__ = [
    "EXAMPLES",
    "Column",
    "Columns",
    "concat_columns",
    "empty_aligned",
    "open_parquet",
    "open_tfrecord",
    "slice_columns",
    "take_columns",
]

_ALIGNMENT = 64
EXAMPLES = "\0examples"  # the column of framed, undecoded records

Column: TypeAlias = npt.NDArray[Any] | Any  # the rest are Arrow arrays, which carry no type information
Columns: TypeAlias = Mapping[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frames:
    """A TFRecord file's bytes, and where its records lie."""

    data: pa.Buffer
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]


def open_tfrecord(data: pa.Buffer, index: pa.RecordBatch, schema: Schema, layout: RecordLayout | None) -> Columns:
    """Columns of a whole, decompressed TFRecord shard.

    Args:
        data: of the file.
        index: its index, with offset and length.
        schema: of the dataset.
        layout: of its records; if None, they stay undecoded in the column `EXAMPLES`.
    """
    frames = _Frames(data=data, offsets=index.column("offset").to_numpy(), lengths=index.column("length").to_numpy())
    if layout is None:
        return {EXAMPLES: _frame_array(frames)}
    frame_bytes = HEADER_BYTES + layout.example_bytes + FOOTER_BYTES
    matrix = np.frombuffer(data, np.uint8).reshape(-1, frame_bytes)[:, HEADER_BYTES:-FOOTER_BYTES]
    return {
        feature.name: _decode_column(matrix, feature, place.offset, place.item_bytes)
        for feature, place in zip(schema.features, layout.columns, strict=True)
    }


def _frame_array(frames: _Frames) -> pa.Array:
    """One binary value a record, frame included: without a gap between them, no byte is copied."""
    end = frames.offsets[-1] + frames.lengths[-1] if len(frames.offsets) else 0
    buffers = [None, pa.py_buffer(np.append(frames.offsets, end)), frames.data]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(frames.offsets), buffers)


def _decode_column(matrix: npt.NDArray[np.uint8], feature: Feature, offset: int, item_bytes: int) -> npt.NDArray[Any]:
    shape = feature.fixed_shape or ()
    width = item_bytes * (feature.elements or 0 if shape else 1)
    values = matrix[:, offset : offset + width]
    if feature.example_kind == "int64":
        numbers = _decode_varints(values.reshape(len(matrix), -1, item_bytes))
        return _narrow(numbers, feature).reshape(len(matrix), *shape)
    stored = np.float32 if feature.example_kind == "float" else np.dtype(feature.dtype).newbyteorder("<")
    decoded = np.ascontiguousarray(values).view(stored).reshape(len(matrix), *shape)
    return decoded.astype(feature.dtype, copy=False)


def _decode_varints(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Padded varints [..., width] to numbers [...]."""
    result = (digits[..., 0] & 0x7F).astype(np.uint64)
    for place in range(1, digits.shape[-1]):
        result |= (digits[..., place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return result


def _narrow(numbers: npt.NDArray[np.uint64], feature: Feature) -> npt.NDArray[Any]:
    return numbers.view(np.int64).astype(feature.dtype) if feature.dtype != "uint64" else numbers


def open_parquet(data: pa.Buffer, schema: Schema, fill: Mapping[str, Any]) -> Columns:
    """Columns of a whole Parquet shard.

    Args:
        data: of the file.
        schema: of the dataset.
        fill: for each feature, what stands for a missing value. Floats need none: it is NaN.
    """
    table = pq.read_table(pa.BufferReader(data), columns=list(schema.names))
    return {feature.name: _parquet_column(table.column(feature.name), feature, fill) for feature in schema.features}


def _parquet_column(column: pa.ChunkedArray, feature: Feature, fill: Mapping[str, Any]) -> Column:
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    if array.null_count:
        array = _fill_nulls(array, feature, fill)
    if not feature.numeric or feature.elements is None:
        return array
    if feature.shape == ():
        return array.to_numpy(zero_copy_only=False)
    values = array.values.slice(array.offset * feature.elements, len(array) * feature.elements)
    return values.to_numpy(zero_copy_only=False).reshape(len(array), *(feature.fixed_shape or ()))


def _fill_nulls(array: pa.Array, feature: Feature, fill: Mapping[str, Any]) -> pa.Array:
    value = fill.get(feature.name, float("nan") if feature.dtype.startswith("float") else None)
    if feature.shape == ():
        return pc.fill_null(array, pa.scalar(value, array.type))
    values = [] if feature.elements is None else [value] * feature.elements
    return pc.if_else(array.is_valid(), array, pa.scalar(values, array.type))


def take_columns(columns: Columns, rows: npt.NDArray[np.int64]) -> dict[str, Column]:
    """The given rows of each column, in that order."""
    picked = pa.array(rows)
    return {
        name: values.take(rows, axis=0) if isinstance(values, np.ndarray) else values.take(picked)
        for name, values in columns.items()
    }


def concat_columns(parts: Sequence[Columns]) -> dict[str, Column]:
    """The rows of all parts, one after the other."""
    if len(parts) == 1:
        return dict(parts[0])
    result: dict[str, Column] = {}
    for name, first in parts[0].items():
        arrays = [part[name] for part in parts]
        result[name] = np.concatenate(arrays) if isinstance(first, np.ndarray) else pa.concat_arrays(arrays)
    return result


def empty_aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array that TensorFlow takes over without a copy: its buffers begin at multiples of 64 bytes."""
    size = prod(shape) * np.dtype(dtype).itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def slice_columns(columns: Columns, start: int, stop: int) -> dict[str, Column]:
    """Rows ``[start, stop)`` of each column; nothing is copied."""
    return {
        name: values[start:stop] if isinstance(values, np.ndarray) else values.slice(start, stop - start)
        for name, values in columns.items()
    }

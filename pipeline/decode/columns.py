"""The columns of opened shards, from which samples are gathered by row number.

Values of a fixed shape are NumPy arrays, strings and lists Arrow arrays. TFRecord frames (`tfrecord_frames.py`) and
vectors of Parquet shards (`FileVectors`) are not decoded before they are gathered.
Tested in tests/pipeline/deliver/test_to_tensorflow.py and tests/pipeline/decode/test_tfrecord_values.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.pipeline.select.sample_columns import mask_name
from ringfeed.sharding.compute import kernels
from ringfeed.sharding.compute.grouping import stable_order
from ringfeed.sharding.compute.kernels import INLINE_AT, INLINE_BYTES, VIEW
from ringfeed.sharding.formats.parquet import read_columns
from ringfeed.sharding.formats.parquet_pages import FileVectors
from ringfeed.sharding.schema import Feature, Schema

from .row_views import RowViews, has_viewable_rows, view_rows

VIEW_SPAN = 1 << 30
_NUMPY_LIKE = (np.ndarray, FileVectors)  # have the `take` of NumPy

Column: TypeAlias = npt.NDArray[Any] | Any  # or `FileVectors` in shards, `RowViews` once gathered, Arrow arrays
Columns: TypeAlias = Mapping[str, Column]


def open_parquet(
    data: pa.Buffer,
    schema: Schema,
    fill: Mapping[str, Any],
    groups: Sequence[int] | None = None,
    masks: Sequence[str] = (),
) -> Columns:
    """The columns of a Parquet shard.

    Args:
        data: content of the file.
        schema: the features to read.
        fill: value for missing values, by feature; missing floats are NaN by default.
        groups: numbers of the row groups to read; None for all.
        masks: features whose missing values are marked.
    """
    lengths = {feature.name: feature.elements or 0 for feature in schema.features if feature.numeric}
    vectors = {name: (schema[name].dtype, length) for name, length in lengths.items() if length > 1}
    others = [name for name in schema.names if name not in vectors]
    arrays, table = read_columns(data, vectors, others, groups, schema.arrow)
    rest = Schema(features=tuple(feature for feature in schema.features if feature.name not in arrays))
    columns: dict[str, Column] = {}
    for name, values in arrays.items():
        shape = schema[name].fixed_shape or ()
        columns[name] = replace(values, shape=shape) if isinstance(values, FileVectors) else values.reshape(-1, *shape)
    columns |= filled_columns(table, rest, fill, masks)
    ordered = {name: columns[name] for name in schema.names}
    return {**ordered, **{name: columns.get(name, _no_mask(ordered)) for name in map(mask_name, masks)}}


def _no_mask(columns: Columns) -> npt.NDArray[np.bool_]:
    """The mask of a feature that has no missing values."""
    return np.zeros(len(next(iter(columns.values()))), np.bool_)


def filled_columns(table: pa.Table, schema: Schema, fill: Mapping[str, Any], masks: Sequence[str] = ()) -> Columns:
    """The columns of a table, with missing values filled, and the masks of those that the schema has.

    Args:
        table: a table of the schema's Arrow types, or of `Feature.wide_type`s, perhaps with more columns.
        schema: the features to take.
        fill, masks: as for `open_parquet`.

    Returns:
        NumPy arrays, and Arrow arrays of `Feature.wide_type`, so that no column has a limit of 2 GiB.
    """
    columns = {feature.name: _filled(table.column(feature.name), feature, fill) for feature in schema.features}
    marked = [name for name in masks if name in schema.names]
    return {**columns, **{mask_name(name): table.column(name).is_null().to_numpy() for name in marked}}


def _filled(column: pa.ChunkedArray, feature: Feature, fill: Mapping[str, Any]) -> Column:
    chunks = [chunk.cast(feature.wide_type) for chunk in column.chunks] or [pa.array([], feature.wide_type)]
    array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    if array.null_count:
        array = _fill_nulls(array, feature, fill)
    if not feature.numeric or feature.elements is None:
        return array
    if feature.shape == ():
        return array.to_numpy(zero_copy_only=False)
    values = array.values.slice(array.offset * feature.elements, len(array) * feature.elements)
    return values.to_numpy(zero_copy_only=False).reshape(len(array), *(feature.fixed_shape or ()))


def _fill_nulls(array: pa.Array, feature: Feature, fill: Mapping[str, Any]) -> pa.Array:
    value = fill_value(feature, fill)
    if value is None and feature.elements is not None:
        raise ValueError(f"feature {feature.name!r} has missing values, although its statistics count none")
    if feature.shape == ():
        return pc.fill_null(array, pa.scalar(value, array.type))
    values = [] if feature.elements is None else [value] * feature.elements
    return pc.if_else(array.is_valid(), array, pa.scalar(values, array.type))


def fill_value(feature: Feature, fill: Mapping[str, Any]) -> Any:
    """The value for missing values of a feature: as given, else NaN for floats and None for others."""
    return fill.get(feature.name, float("nan") if feature.dtype.startswith("float") else None)


def take_columns(columns: Columns, rows: npt.NDArray[np.int64]) -> dict[str, Column]:
    """The given rows of each column, in that order."""
    return {name: _take(values, rows) for name, values in columns.items()}


def _take(values: Column, rows: npt.NDArray[np.int64]) -> Column:
    return values.take(rows, axis=0) if isinstance(values, _NUMPY_LIKE) else _take_arrow(values, rows)


def take_from_segments(
    segments: Sequence[Columns], starts: Sequence[int], rows: npt.NDArray[np.int64]
) -> dict[str, Column]:
    """The given rows of several segments, numbered through, without concatenating the segments.

    Rows of more than one number each become `RowViews`, which copy nothing and keep the memory of the segments.

    Args:
        segments: one or more segments with the same columns.
        starts: number of the first row of each segment; from 0, ascending.
        rows: row numbers.
    """
    if len(segments) == 1:
        return {
            n: view_rows(v, rows, {}, [v]) if has_viewable_rows(v) else _take(v, rows) for n, v in segments[0].items()
        }
    which = np.searchsorted(np.asarray(starts), rows, side="right") - 1
    # Nearly all rows come from one segment: take all from it, then overwrite those of the others.
    main = int(np.bincount(which).argmax()) if len(rows) else 0
    from_main = rows - starts[main]
    places = {k: np.flatnonzero(which == k) for k in range(len(segments)) if k != main}
    others = {k: (at, rows[at] - starts[k]) for k, at in places.items() if len(at)}
    result: dict[str, Column] = {}
    for name, first in segments[main].items():
        column = [segment[name] for segment in segments]
        if all(map(has_viewable_rows, column)):
            result[name] = view_rows(first, from_main, others, column)
            continue
        if not isinstance(first, _NUMPY_LIKE):
            parts = [_take_arrow(values, rows[which == k] - starts[k]) for k, values in enumerate(column)]
            result[name] = _take_arrow(pa.concat_arrays(parts), _inverse(stable_order(which)))
            continue
        result[name] = taken = first.take(from_main, axis=0, mode="clip")
        for k, (at, own) in others.items():
            taken[at] = column[k].take(own, axis=0)
    return result


def _take_arrow(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    """The given rows of an Arrow array. Views, which Arrow cannot take, are taken without their bytes."""
    if not pa.types.is_binary_view(values.type):
        return values.take(pa.array(rows))
    views = pa.py_buffer(views_of(values).take(rows))
    return pa.Array.from_buffers(values.type, len(rows), [None, views, *values.buffers()[2:]])


def compact_columns(columns: Columns) -> Columns:
    """Columns taken from shards, with the bytes of views copied, so that they keep no shard in memory."""
    return {
        name: values.cast(pa.large_binary()).cast(pa.binary_view())
        if isinstance(values, pa.Array) and pa.types.is_binary_view(values.type)
        else values
        for name, values in columns.items()
    }


def views_of(values: Any) -> npt.NDArray[Any]:
    """The views of an Arrow binary view array, not copied: `VIEW` [values]."""
    return np.frombuffer(values.buffers()[1], VIEW)[values.offset : values.offset + len(values)]


def make_views(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], span: int = VIEW_SPAN
) -> npt.NDArray[Any]:
    """Views of pieces of data for `view_array`, with the prefixes left empty: `VIEW` [pieces]."""
    views = np.zeros(len(starts), VIEW)
    views["length"], views["buffer"], views["offset"] = lengths, starts // span, starts % span
    return views


def view_array(views: npt.NDArray[Any], data: pa.Buffer, span: int = VIEW_SPAN) -> pa.Array:
    """An Arrow binary view array: gathering and interleaving its values moves 16 bytes for each, whatever its size.

    A view's offset has 31 bits, so a larger file becomes several buffers, each starting `span` bytes further on.
    """
    buffers = [data.slice(start) for start in range(0, max(data.size, 1), span)]
    return pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *buffers])


def view_bytes(
    data: pa.Buffer, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], span: int = VIEW_SPAN
) -> pa.Array:
    """Pieces of data as an Arrow binary view array.

    Args:
        data: content of a file.
        starts: offset of each piece, int64 [pieces].
        ends: offset just past each piece.
        span: bytes between two buffers of the array.
    """
    content = np.frombuffer(data, np.uint8)
    if kernels.are_compiled():
        return view_array(kernels.view_bytes(content, starts, ends, span), data, span)
    views = make_views(starts, ends - starts, span)
    cells = views.view(np.uint8).reshape(-1, VIEW.itemsize)
    short = np.flatnonzero(ends - starts <= INLINE_BYTES)
    cells[short, INLINE_AT:] = 0
    for place in range(INLINE_BYTES):
        rows = np.flatnonzero(starts + place < ends) if place < 4 else short[starts[short] + place < ends[short]]
        cells[rows, INLINE_AT + place] = content[starts[rows] + place]
    return view_array(views, data, span)


def copy_views(values: Any, *, before: int = 0, after: int = 0) -> npt.NDArray[Any]:
    """The values as `bytes` objects [values], each without its first `before` and last `after` bytes."""
    copies = np.empty(len(values), object)
    if kernels.are_compiled():
        addresses, lengths = locate_views(values, before=before, after=after)
        copies[:] = kernels.copy_values(addresses, lengths)
        return copies
    _, views, *data = values.buffers()
    buffers, cells = [memoryview(buffer) for buffer in data], memoryview(views)
    for row, (length, _, buffer, offset) in enumerate(views_of(values).tolist()):
        if length <= INLINE_BYTES:
            at = VIEW.itemsize * (values.offset + row) + INLINE_AT
            copies[row] = cells[at + before : at + length - after].tobytes()
        else:
            copies[row] = buffers[buffer][offset + before : offset + length - after].tobytes()
    return copies


def locate_views(
    values: Any, *, before: int = 0, after: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Address and length of each value of an Arrow binary view array, without its first and last bytes.

    Args:
        values: the array.
        before: bytes to skip at the start of each value.
        after: bytes to leave out at its end.
    """
    _, views, *data = values.buffers()
    cells = views_of(values)
    bases = np.array([buffer.address for buffer in data], np.int64)
    lengths = cells["length"].astype(np.int64)
    inline = views.address + VIEW.itemsize * np.arange(values.offset, values.offset + len(values)) + INLINE_AT
    short = lengths <= INLINE_BYTES
    addresses = np.where(short, inline, 0)
    addresses[~short] = bases[cells["buffer"][~short]] + cells["offset"][~short]
    return addresses + before, lengths - (before + after)


def _inverse(permutation: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse


def concat_columns(parts: Sequence[Columns]) -> dict[str, Column]:
    """The rows of all parts, one after the other."""
    if len(parts) == 1:
        return dict(parts[0])
    result: dict[str, Column] = {}
    for name, first in parts[0].items():
        arrays = [part[name] for part in parts]
        if any(isinstance(array, RowViews) for array in arrays):
            result[name] = RowViews.side_by_side(arrays, 1)
        else:
            result[name] = np.concatenate(arrays) if isinstance(first, np.ndarray) else pa.concat_arrays(arrays)
    return result


def copy_columns(columns: Columns) -> Columns:
    """A copy of columns that keeps neither shards nor gathered chunks in memory; Arrow arrays are not copied."""
    return {name: values if isinstance(values, pa.Array) else values.copy() for name, values in columns.items()}


def slice_columns(columns: Columns, start: int, stop: int) -> dict[str, Column]:
    """Rows ``[start, stop)`` of each column; nothing is copied."""
    return {
        name: values[start:stop] if isinstance(values, np.ndarray) else values.slice(start, stop - start)
        for name, values in columns.items()
    }

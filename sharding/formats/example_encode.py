"""Encodes Arrow columns as `tf.train.Example` messages, a whole batch at once, without TensorFlow.

There are two forms, which mean the same to any protobuf reader:

* If every feature has a fixed shape and no nulls, all records share one `RecordLayout`, and columns are written into
  one byte matrix. Integers are varints padded with continuation bytes to the width of the widest.
* Otherwise, varints are minimal, and Arrow joins the pieces of each record.

The wire format is that of tensorflow/core/example/{example,feature}.proto. Not here: TFRecord framing, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute import kernels
from ringfeed.sharding.compute.arrays import Int64, UInt8, UInt64
from ringfeed.sharding.schema import Feature, Schema

from .arrow_binary import binary_array, binary_rows, data_of, join_binary, offsets_of
from .protobuf_wire import write_varint

LIST_TAGS = {"bytes": 0x0A, "raw": 0x0A, "float": 0x12, "int64": 0x1A}  # the `kind` oneof of Feature
DELIMITED_1 = 0x0A  # field 1, length-delimited
_DELIMITED_2 = 0x12  # field 2, length-delimited


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """Position of a feature's values in each record of a fixed layout."""

    name: str
    offset: int  # position of the first value in the Example message, in bytes
    item_bytes: int  # size of an element: of its dtype, or of a padded varint for integers


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """The layout that all records of a dataset share."""

    example_bytes: int  # size of an Example message
    columns: tuple[ColumnLayout, ...]  # positions of the features, in the schema's order

    def to_json(self) -> dict[str, Any]:
        """The entry in `dataset.json`."""
        columns = [{"name": c.name, "offset": c.offset, "item_bytes": c.item_bytes} for c in self.columns]
        return {"example_bytes": self.example_bytes, "columns": columns}

    def holds(self, other: RecordLayout) -> bool:
        """Whether records that fit another layout of the same schema fit this one."""
        return all(mine.item_bytes >= its.item_bytes for mine, its in zip(self.columns, other.columns, strict=True))

    def select(self, names: Sequence[str]) -> RecordLayout:
        """The positions of some features, in the order of `names`, in the same records."""
        places = {place.name: place for place in self.columns}
        return replace(self, columns=tuple(places[name] for name in names))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RecordLayout:
        """The inverse of `to_json`."""
        columns = tuple(ColumnLayout(**column) for column in value["columns"])
        return cls(example_bytes=value["example_bytes"], columns=columns)


def varint_width(low: int, high: int) -> int:
    """Size in bytes of the widest varint among the int64 values in ``[low, high]`` (both included).

    >>> varint_width(0, 127), varint_width(0, 128), varint_width(-1, 0)
    (1, 2, 10)
    """
    return 10 if low < 0 else max(1, -(-int(high).bit_length() // 7))


def plan_layout(schema: Schema, int_ranges: Mapping[str, tuple[int, int]]) -> RecordLayout | None:
    """The fixed layout of records without nulls, or None if a feature's length varies.

    Args:
        int_ranges: least and greatest value of each feature of kind int64, as int64.
    """
    return _planned(schema, int_ranges)[1] if _is_fixed(schema) else None


def _is_fixed(schema: Schema) -> bool:
    return all(f.elements is not None and f.example_kind != "bytes" for f in schema.features)


def encode_examples(batch: pa.RecordBatch, schema: Schema, layout: RecordLayout | None) -> pa.LargeBinaryArray:
    """Encode each row as a `tf.train.Example`; a null becomes an absent feature.

    Args:
        layout: layout from `plan_layout`, for a batch without nulls and without wider integers; or None.

    Returns:
        One message per row.
    """
    if layout is None:
        return join_binary(encode_pieces(batch, schema))
    return binary_rows(encode_matrix(batch, schema, layout))


# --- records of a fixed layout ---------------------------------------------------------------------------------


def _item_bytes(feature: Feature, int_ranges: Mapping[str, tuple[int, int]]) -> int:
    if feature.example_kind == "int64":
        return varint_width(*int_ranges[feature.name])
    return 4 if feature.example_kind == "float" else feature.primitive.bit_width // 8


def _planned(schema: Schema, int_ranges: Mapping[str, tuple[int, int]]) -> tuple[list[bytes], RecordLayout]:
    """The bytes before the values of each feature, and the layout."""
    heads, places, stop = [], [], 0
    for feature in schema.features:
        item_bytes = _item_bytes(feature, int_ranges)
        size = item_bytes * (feature.elements or 0)
        mark = bytes([DELIMITED_1]) + write_varint(size)  # of packed numbers, or of the single value of raw bytes
        heads.append(_entry_head(feature, len(mark) + size) + mark)
        places.append((feature.name, stop + len(heads[-1]), item_bytes))
        stop = places[-1][1] + size
    head = bytes([DELIMITED_1]) + write_varint(stop)
    layout = RecordLayout(
        example_bytes=len(head) + stop,
        columns=tuple(ColumnLayout(name=n, offset=len(head) + o, item_bytes=w) for n, o, w in places),
    )
    return [head + first for first in heads[:1]] + heads[1:], layout


def _planned_as(layout: RecordLayout, schema: Schema) -> tuple[list[bytes], RecordLayout]:
    """`_planned` for integers of a layout's widths."""
    widths = {c.name: (0, (1 << (7 * c.item_bytes)) - 1) if 0 < c.item_bytes < 10 else (-1, 0) for c in layout.columns}
    return _planned(schema, widths)


def is_layout_of(layout: RecordLayout, schema: Schema) -> bool:
    """Whether a layout is valid for records of a schema.

    >>> schema = Schema(features=(Feature(name="x", dtype="int8", shape=(3,)),))
    >>> layout = plan_layout(schema, {"x": (0, 5)})
    >>> is_layout_of(layout, schema), is_layout_of(replace(layout, example_bytes=1), schema)
    (True, False)
    """
    fixed = _is_fixed(schema) and [column.name for column in layout.columns] == list(schema.names)
    return fixed and _planned_as(layout, schema)[1] == layout


def encode_matrix(
    batch: pa.RecordBatch, schema: Schema, layout: RecordLayout, *, margins: tuple[int, int] = (0, 0)
) -> UInt8:
    """Encode each row as a `tf.train.Example`, in place in a matrix.

    Args:
        batch: records, in the schema's Arrow types, without nulls and without integers wider than in `layout`.
        margins: number of zero bytes before and after each message, for a frame.

    Returns:
        The messages, uint8 [rows, margin + example_bytes + margin].

    Raises:
        ValueError: the layout belongs to another schema.
    """
    heads, planned = _planned_as(layout, schema)
    if planned != layout:
        raise ValueError(f"the layout does not fit the schema: expected {planned}, got {layout}")
    before, after = margins
    sizes = [column.item_bytes * (f.elements or 0) for f, column in zip(schema.features, layout.columns, strict=True)]
    template = b"".join(head + bytes(size) for head, size in zip(heads, sizes, strict=True))
    row = np.frombuffer(bytes(before) + template + bytes(after), np.uint8)
    matrix = np.tile(row, (batch.num_rows, 1))
    for feature, column in zip(schema.features, layout.columns, strict=True):
        values = _flat_numpy(batch.column(feature.name), feature).reshape(batch.num_rows, -1)
        target = matrix[:, before + column.offset :][:, : column.item_bytes * values.shape[1]]
        if feature.example_kind == "int64":
            target[...] = _padded_varints(values, column.item_bytes).reshape(target.shape)
        else:
            target[...] = np.ascontiguousarray(values).view(np.uint8).reshape(target.shape)
    return matrix


def _padded_varints(values: UInt64, width: int) -> UInt8:
    result = np.empty((*values.shape, width), np.uint8)
    for position in range(width):
        more = 0x80 if position < width - 1 else 0
        result[..., position] = (values >> np.uint64(7 * position)).astype(np.uint8) & 0x7F | more
    return result


# --- records of varying layout ---------------------------------------------------------------------------------


def encode_pieces(batch: pa.RecordBatch, schema: Schema) -> list[pa.LargeBinaryArray]:
    """Encode each row as a `tf.train.Example`, in pieces: a row's message is its elements of all arrays, end to end.

    The values of a scalar string or bytes feature are a piece of their own, and are not copied.

    Args:
        batch: records, in the schema's Arrow types; a null becomes an absent feature.
    """
    pieces = [piece for feature in schema.features for piece in _entry_pieces(batch.column(feature.name), feature)]
    return [_headed([bytes([DELIMITED_1])], [_total_lengths(pieces)]), *pieces]


def example_lengths(batch: pa.RecordBatch, schema: Schema) -> Int64:
    """Size in bytes of each row's message as `encode_pieces` encodes it, int64 [rows]."""
    return _total_lengths(encode_pieces(batch, schema))


def _entry_pieces(column: pa.Array, feature: Feature) -> list[pa.Array]:
    """The pieces of one entry of the feature map."""
    body = _body_pieces(column, feature)
    lengths = _total_lengths(body)
    key = delimited(DELIMITED_1, feature.name.encode()) + bytes([_DELIMITED_2])
    value_lengths = 1 + _varint_widths(lengths) + lengths
    entry_lengths = len(key) + _varint_widths(value_lengths) + value_lengths
    marks = [bytes([DELIMITED_1]), key, bytes([LIST_TAGS[feature.example_kind]])]
    pieces = [_headed(marks, [entry_lengths, value_lengths, lengths]), *body]
    if not column.null_count:
        return pieces
    empty = pa.scalar(b"", pa.large_binary())
    return [pa.compute.if_else(column.is_valid(), piece, empty) for piece in pieces]


def _body_pieces(column: pa.Array, feature: Feature) -> list[pa.Array]:
    """The serialised BytesList, FloatList or Int64List of each row."""
    mark = bytes([DELIMITED_1])
    starts = _list_offsets(column, feature)
    if feature.example_kind == "bytes":
        elements = flat_arrow(column, feature).cast(pa.large_binary())
        heads = _headed([mark], [_lengths(elements)])
        if feature.shape == ():
            return [heads, elements]
        framed = join_binary([heads, elements])
        return [binary_array(offsets_of(framed)[starts], data_of(framed))]
    values = _flat_numpy(column, feature)
    if feature.example_kind == "int64":
        packed, ends = _minimal_varints(values)
        offsets = ends[starts]
    else:
        packed = np.ascontiguousarray(values).view(np.uint8)
        offsets = starts * values.itemsize
    payload = binary_array(offsets, packed)
    heads = _headed([mark], [_lengths(payload)])
    if feature.shape == (None,) and feature.example_kind != "raw":  # an empty list has no packed field
        heads = pa.compute.if_else(pa.array(_lengths(payload) > 0), heads, pa.scalar(b"", pa.large_binary()))
    return [heads, payload]


def _headed(marks: Sequence[bytes], numbers: Sequence[Int64]) -> pa.LargeBinaryArray:
    """For each row, each mark followed by the row's number as a varint."""
    pieces: list[Any] = []
    for mark, values in zip(marks, numbers, strict=True):
        packed, offsets = _minimal_varints(values.view(np.uint64))
        pieces += [pa.scalar(mark, pa.large_binary()), binary_array(offsets, packed)]
    return join_binary(pieces)


def _minimal_varints(values: UInt64) -> tuple[UInt8, Int64]:
    """Minimal varints end to end, and their boundaries, [values + 1]."""
    if kernels.are_compiled():
        return kernels.pack_varints(np.ascontiguousarray(values))
    widths = _varint_widths(values)
    columns = np.arange(widths.max(initial=1))
    matrix = _padded_varints(values, len(columns))
    matrix[columns == widths[:, None] - 1] &= 0x7F
    offsets = np.concatenate([[0], np.cumsum(widths)])
    return matrix[columns < widths[:, None]], offsets


def _varint_widths(values: npt.NDArray[Any]) -> Int64:
    """Size of each non-negative number's varint, in bytes."""
    widths = np.ones(len(values), np.int64)
    greatest = int(values.max(initial=0))
    for position in range(1, 10):
        if greatest < 1 << (7 * position):
            break
        widths += values >= values.dtype.type(1 << (7 * position))
    return widths


def _total_lengths(pieces: Sequence[pa.Array]) -> Int64:
    total: Int64 = np.sum([_lengths(piece) for piece in pieces], axis=0, dtype=np.int64)
    return total


# --- shared by both forms --------------------------------------------------------------------------------------


def delimited(tag: int, payload: bytes) -> bytes:
    """Encode a length-delimited field: tag, length, payload."""
    return bytes([tag]) + write_varint(len(payload)) + payload


def _entry_head(feature: Feature, body_bytes: int) -> bytes:
    """The bytes before the serialised list in an entry of the feature map: the key, tags and lengths."""
    key = delimited(DELIMITED_1, feature.name.encode())
    kind = bytes([LIST_TAGS[feature.example_kind]]) + write_varint(body_bytes)
    value = bytes([_DELIMITED_2]) + write_varint(len(kind) + body_bytes) + kind
    return bytes([DELIMITED_1]) + write_varint(len(key) + len(value) + body_bytes) + key + value


def flat_arrow(column: pa.Array, feature: Feature) -> pa.Array:
    """All elements of a column; a null row has none, or placeholders if the shape is fixed."""
    if feature.shape == ():
        return column
    if feature.elements is None:
        return column.values.slice(column.offsets[0].as_py(), column.offsets[-1].as_py() - column.offsets[0].as_py())
    return column.values.slice(column.offset * feature.elements, len(column) * feature.elements)


def _flat_numpy(column: pa.Array, feature: Feature) -> npt.NDArray[Any]:
    """All elements of a column: float32 for kind float, uint64 two's complements for kind int64, else their dtype."""
    flat = flat_arrow(column, feature)
    if flat.null_count:
        flat = flat.fill_null(pa.scalar(0, pa.int8()).cast(flat.type))
    if feature.dtype == "bool":
        flat = flat.cast(pa.uint8())
    values: npt.NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    if feature.example_kind == "int64":
        return values.astype(np.int64 if feature.dtype.startswith("int") else np.uint64).view(np.uint64)
    return values.astype(np.float32, copy=False) if feature.example_kind == "float" else values


def _list_offsets(column: pa.Array, feature: Feature) -> Int64:
    """Boundaries of the rows among the elements of `flat_arrow`, [rows + 1]."""
    if feature.elements is None:
        offsets: Int64 = column.offsets.to_numpy().astype(np.int64)
        offsets -= offsets[0]
        return offsets
    return np.arange(len(column) + 1, dtype=np.int64) * feature.elements


def _lengths(array: pa.LargeBinaryArray) -> Int64:
    return np.diff(offsets_of(array))

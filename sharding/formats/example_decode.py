"""Decodes ringfeed's own `tf.train.Example` messages without TensorFlow: one to plain Python, or many to columns.

Messages of a fixed layout are decoded faster by `example_matrix`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.compute import kernels
from ringfeed.sharding.compute.arrays import Bools, Int64, UInt8
from ringfeed.sharding.schema import Feature, Schema, insert_nulls

from .arrow_binary import binary_array, data_of, offsets_of
from .example_columns import unpack_varints
from .example_encode import DELIMITED_1, LIST_TAGS, delimited
from .example_matrix import cast_integers
from .protobuf_wire import read_fields, read_varint, read_varints

_FEW = 16  # records, up to which a Python loop over elements is faster than NumPy calls


def decode_example(message: bytes, schema: Schema) -> dict[str, Any]:
    """Decode one record to values by feature name, None for an absent feature.

    Returns:
        Numbers, strings and bytes; tensors as nested lists.

    Raises:
        ValueError: the message is no Example.
    """
    bodies: dict[str, bytes] = {}
    for _, features in _fields(message):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            bodies[parts[1].decode()] = parts.get(2, b"")
    return {f.name: _value(bodies[f.name], f) if f.name in bodies else None for f in schema.features}


def _value(feature_message: bytes, feature: Feature) -> Any:
    ((_, body),) = _fields(feature_message)
    chunks = [chunk for _, chunk in _fields(body)]
    kind = feature.example_kind
    if kind == "bytes":
        values: list[Any] = [chunk.decode() if feature.dtype == "string" else chunk for chunk in chunks]
    elif kind == "int64":
        values = [_integer(number, feature) for number in read_varints(b"".join(chunks))]
    else:
        dtype = "<f4" if kind == "float" else np.dtype(feature.dtype).newbyteorder("<")
        values = np.frombuffer(b"".join(chunks), dtype).tolist()
    if feature.shape == ():
        return values[0]
    return np.reshape(np.array(values, object), feature.fixed_shape).tolist() if feature.fixed_shape else values


def _integer(number: int, feature: Feature) -> int | bool:
    if feature.dtype == "bool":
        return bool(number)
    return number - (1 << 64) if number >= 1 << 63 and not feature.dtype.startswith("u") else number


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each field, all length-delimited as in every Example that ringfeed writes."""
    for number, value in read_fields(message):
        if isinstance(value, int):
            raise ValueError(f"expected a length-delimited field, got the integer {value} in field {number}")
        yield number, value


# --- many records at once --------------------------------------------------------------------------------------


class _UnusualError(Exception):
    """A message differs from the form that ringfeed writes, though it may be a valid Example."""


def decode_examples(
    data: UInt8, starts: Int64, ends: Int64, schema: Schema, names: Sequence[str] | None = None, *, wide: bool = False
) -> pa.RecordBatch:
    """Decode many records: the inverse of `encode_examples` without a layout.

    All messages are walked in lockstep, a feature at a time, in the schema's order, as ringfeed writes them. If
    one message has another order, all are decoded one by one.

    Args:
        data: bytes that hold the messages, uint8 [bytes].
        starts: start of each message in `data`, ascending, int64 [records].
        ends: end of each message, int64 [records].
        wide: whether to return `Feature.wide_type`s, which columns of more than 2 GiB need.

    Returns:
        The records, in the schema's Arrow types unless `wide`; an absent feature is null.

    Raises:
        ValueError: a message is no Example.
    """
    wanted = Schema(features=tuple(f for f in schema.features if names is None or f.name in names))
    try:
        columns = [
            _column(*_values(data, bodies, stops, feature), rows, len(starts), feature)
            for feature, rows, bodies, stops in _walk(data, starts, ends, schema)
            if feature.name in wanted.names
        ]
    except (_UnusualError, IndexError):
        records = [decode_example(data[a:b].tobytes(), wanted) for a, b in zip(starts, ends, strict=True)]
        columns = [pa.array([_flat(r[f.name], f) for r in records], f.wide_type) for f in wanted.features]
    if wide:
        return pa.RecordBatch.from_arrays(columns, names=list(wanted.names))
    narrow = [column.cast(feature.arrow_type) for column, feature in zip(columns, wanted.features, strict=True)]
    return pa.RecordBatch.from_arrays(narrow, schema=wanted.arrow)


def _flat(value: Any, feature: Feature) -> Any:
    return np.array(value, object).reshape(-1).tolist() if value is not None and feature.fixed_shape else value


def locate_examples(
    data: UInt8, starts: Int64, ends: Int64, schema: Schema, located: Sequence[str], decoded: Sequence[str]
) -> tuple[dict[str, tuple[Int64, Int64]], pa.RecordBatch] | None:
    """Locate the values of string and bytes features without copying them, and decode other features.

    Args:
        data: bytes that hold the messages, uint8 [bytes].
        starts: start of each message in `data`, ascending, int64 [records].
        ends: end of each message, int64 [records].
        located: features to locate, of kind bytes and shape ``()``.

    Returns:
        Start and end of each located value in the data, int64 [records] each, by feature; and the decoded features as a
        batch of `Feature.wide_type`s. None if a record lacks a located value or has not the form that ringfeed writes.
    """
    wanted = Schema(features=tuple(f for f in schema.features if f.name in decoded))
    places, columns = {}, []
    try:
        for feature, rows, bodies, stops in _walk(data, starts, ends, schema):
            if feature.name in located:
                _require(len(rows) == len(starts))
                _require(bodies < stops)
                places[feature.name] = _chunks(data, bodies, stops)
            elif feature.name in decoded:
                columns.append(_column(*_values(data, bodies, stops, feature), rows, len(starts), feature))
    except (_UnusualError, IndexError):
        return None
    return places, pa.RecordBatch.from_arrays(columns, names=list(wanted.names))


def _walk(data: UInt8, starts: Int64, ends: Int64, schema: Schema) -> Iterator[tuple[Feature, Int64, Int64, Int64]]:
    """Yield each feature, the records that have it, and start and end of its serialised list in each of them."""
    if kernels.are_compiled():
        yield from _walked(data, starts, ends, schema)
        return
    _require(data[starts] == DELIMITED_1)
    lengths, at = _varints_at(data, starts + 1)
    _require(at + lengths == ends)
    for feature in schema.features:
        rows = np.flatnonzero(at < ends)
        entries, bodies, stops = _entries(data, at[rows], feature)
        rows = rows[entries]
        at[rows] = stops
        yield feature, rows, bodies, stops
    _require(at == ends)


def _walked(data: UInt8, starts: Int64, ends: Int64, schema: Schema) -> Iterator[tuple[Feature, Int64, Int64, Int64]]:
    keys, tags = [_key(feature) for feature in schema.features], [LIST_TAGS[f.example_kind] for f in schema.features]
    places = kernels.walk_examples(np.ascontiguousarray(data), starts, ends, keys, tags)
    if places is None:
        raise _UnusualError
    for feature, bodies, stops in zip(schema.features, *places, strict=True):
        rows = np.flatnonzero(bodies >= 0)
        yield feature, rows, bodies[rows], stops[rows]


def _key(feature: Feature) -> bytes:
    """The beginning of a feature's map entry: the key, and the tag of the value."""
    return delimited(DELIMITED_1, feature.name.encode()) + b"\x12"


def _require(condition: Bools | bool) -> None:
    if not np.all(condition):
        raise _UnusualError


def _varints_at(data: UInt8, at: Int64) -> tuple[Int64, Int64]:
    """The varint at each position, and the position after it."""
    byte = data[at]
    values, at = (byte & 0x7F).astype(np.int64), at + 1
    more, shift = np.flatnonzero(byte & 0x80), 7
    while len(more):
        byte = data[at[more]]
        values[more] |= (byte & 0x7F).astype(np.int64) << shift
        at[more] += 1
        more, shift = more[byte >= 0x80], shift + 7
        _require(shift < 64)
    return values, at


def _entries(data: UInt8, at: Int64, feature: Feature) -> tuple[Int64, Int64, Int64]:
    """Which map entries belong to a feature, and start and end of the serialised list in each of them."""
    key = np.frombuffer(_key(feature), np.uint8)
    none = np.empty(0, np.int64)
    if not len(at) or len(data) < len(key):
        return none, none, none
    lengths, keys = _varints_at(data, at + 1)
    windows = np.lib.stride_tricks.sliding_window_view(data, len(key))
    hits = np.flatnonzero((windows[np.minimum(keys, len(windows) - 1)] == key).all(axis=1) & (data[at] == DELIMITED_1))
    stops = keys[hits] + lengths[hits]
    lengths, at = _varints_at(data, keys[hits] + len(key))
    _require((at + lengths == stops) & (data[at] == LIST_TAGS[feature.example_kind]))
    lengths, bodies = _varints_at(data, at + 1)
    _require(bodies + lengths == stops)
    return hits, bodies, stops


def _values(data: UInt8, bodies: Int64, stops: Int64, feature: Feature) -> tuple[pa.Array, Int64]:
    """All elements of the serialised lists, and the number in each."""
    if feature.example_kind == "bytes":
        starts, ends, counts = _split(data, bodies, stops) if feature.shape else (*_chunks(data, bodies, stops), None)
        values = _gather(data, starts, ends)
        if feature.dtype == "string":
            values = values.cast(pa.large_string())
        return values, (stops > bodies).astype(np.int64) if counts is None else counts
    starts, ends = _chunks(data, bodies, stops)
    if feature.example_kind == "int64" and feature.shape == () and kernels.are_compiled():
        numbers = kernels.read_varints(np.ascontiguousarray(data), starts, ends)
        if numbers is not None:
            return pa.array(cast_integers(numbers, feature)), np.ones(len(numbers), np.int64)
    packed = _gather(data, starts, ends)
    offsets = offsets_of(packed)
    content = np.frombuffer(data_of(packed), np.uint8)[: offsets[-1]]
    if feature.example_kind == "int64":
        integers, after = unpack_varints(content)
        _require(np.diff(after, prepend=0) <= 10)
        _require(np.isin(offsets[1:][np.diff(offsets) > 0], after))
        return pa.array(cast_integers(integers, feature)), np.diff(np.searchsorted(after, offsets, side="right"))
    stored = np.dtype("float32" if feature.example_kind == "float" else feature.dtype).newbyteorder("<")
    _require(np.diff(offsets) % stored.itemsize == 0)
    return pa.array(content.view(stored).astype(feature.dtype)), np.diff(offsets) // stored.itemsize


def _chunks(data: UInt8, bodies: Int64, stops: Int64) -> tuple[Int64, Int64]:
    """Start and end of the single value in each list; both are the list's end if it is empty."""
    if kernels.are_compiled():
        entered = kernels.enter_lists(np.ascontiguousarray(data), bodies, stops)
        if entered is None:
            raise _UnusualError
        return entered, stops
    starts = stops.copy()
    filled = np.flatnonzero(bodies < stops)
    _require(data[bodies[filled]] == DELIMITED_1)
    lengths, starts[filled] = _varints_at(data, bodies[filled] + 1)
    _require(starts[filled] + lengths == stops[filled])
    return starts, stops


def _split(data: UInt8, bodies: Int64, stops: Int64) -> tuple[Int64, Int64, Int64]:
    """Start and end of every value, list after list, and the number in each list."""
    at, rows = bodies.copy(), np.flatnonzero(bodies < stops)
    segments: list[tuple[Int64, ...]] = [(np.empty(0, np.int64),) * 3]
    while len(rows) > _FEW:
        _require(data[at[rows]] == DELIMITED_1)
        lengths, starts = _varints_at(data, at[rows] + 1)
        at[rows] = starts + lengths
        segments.append((rows, starts, at[rows]))
        rows = rows[at[rows] < stops[rows]]
    for row in rows.tolist():
        values = list(_split_one(data[at[row] : stops[row]].tobytes(), int(at[row])))
        at[row] = values[-1][1]
        segments.append((np.full(len(values), row), *np.array(values, np.int64).T))
    _require(at == stops)
    of, starts, ends = (np.concatenate(pieces) for pieces in zip(*segments, strict=True))
    order = np.argsort(of, kind="stable")
    return starts[order], ends[order], np.bincount(of, minlength=len(bodies))


def _split_one(body: bytes, first: int) -> Iterator[tuple[int, int]]:
    position = 0
    while position < len(body):
        _require(body[position] == DELIMITED_1)
        length, start = read_varint(body, position + 1, len(body))
        position = start + length
        yield first + start, first + position


def _gather(data: UInt8, starts: Int64, ends: Int64) -> pa.LargeBinaryArray:
    """Copy ascending slices of the data: every second value of an array of slices and the gaps between them."""
    offsets = np.stack([starts, ends], axis=1).reshape(-1)
    _require(np.diff(offsets) >= 0)
    if not len(starts):
        return pa.array([], pa.large_binary())
    return binary_array(offsets, data).take(pa.array(np.arange(0, len(offsets), 2)))


def _column(values: pa.Array, counts: Int64, rows: Int64, records: int, feature: Feature) -> pa.Array:
    """A column of all records from the elements of those that have a value."""
    if feature.elements is None:
        offsets = np.concatenate([[0], np.cumsum(counts)])
        column = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    else:
        _require(counts == feature.elements)
        column = pa.FixedSizeListArray.from_arrays(values, feature.elements) if feature.shape else values
    present = np.zeros(records, bool)
    present[rows] = True
    return insert_nulls(column, pa.array(present))

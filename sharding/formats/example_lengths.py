"""Computes the size of each row's `tf.train.Example` as `example_encode.encode_pieces` would write it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.schema import Feature, Schema

from .example_encode import delimited, flat_arrow, flat_numpy, list_offsets, varint_widths

Int64 = npt.NDArray[np.int64]


def example_lengths(batch: pa.RecordBatch, schema: Schema) -> Int64:
    """Size of each row's message in bytes, with minimal varints; int64 [rows].

    Args:
        batch: records, in the schema's Arrow types.
    """
    entries = np.zeros(batch.num_rows, np.int64)
    for feature in schema.features:
        column = batch.column(feature.name)
        lengths = _entry_lengths(_body_lengths(column, feature), feature)
        entries += np.where(column.is_valid(), lengths, 0) if column.null_count else lengths
    return _delimited(entries)


def _delimited(lengths: Int64) -> Int64:
    """Lengths with the tag and the length prefix."""
    return 1 + varint_widths(lengths) + lengths


def _entry_lengths(bodies: Int64, feature: Feature) -> Int64:
    """Lengths of entries of the feature map, from those of the serialised lists in them."""
    key = len(delimited(0, feature.name.encode()))
    return _delimited(key + _delimited(_delimited(bodies)))


def _body_lengths(column: pa.Array, feature: Feature) -> Int64:
    """Length of each row's serialised BytesList, FloatList or Int64List."""
    if feature.example_kind == "bytes":
        lengths = pc.fill_null(pc.binary_length(flat_arrow(column, feature)), 0)
        elements = _delimited(lengths.to_numpy().astype(np.int64))
        return elements if feature.shape == () else _sums(elements, list_offsets(column, feature))
    starts = list_offsets(column, feature)
    values = flat_numpy(column, feature)
    if feature.example_kind == "int64":
        payload = _sums(varint_widths(values), starts)
    else:
        payload = np.diff(starts) * values.itemsize
    lengths = _delimited(payload)
    absent = feature.shape == (None,) and feature.example_kind != "raw"  # an empty list has no packed field
    return np.where(payload > 0, lengths, 0) if absent else lengths


def _sums(lengths: Int64, starts: Int64) -> Int64:
    """Sum over the elements of each row."""
    ends: Int64 = np.concatenate([[0], np.cumsum(lengths)])
    return np.diff(ends[starts])

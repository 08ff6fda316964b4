"""TFRecord shards as columns of whole frames, as they lie in the file.

Where all records share a layout, the file is a byte matrix with a frame in each row, and the features of gathered rows
are slices of columns. Otherwise frames are Arrow binary values, and TensorFlow parses those that were gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.pipeline.select.sample_columns import EXAMPLES, FRAMES
from ringfeed.sharding.formats.example_encode import ColumnLayout, RecordLayout
from ringfeed.sharding.formats.example_matrix import decode_cells
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ringfeed.sharding.schema import Feature, Schema

from .buffer_pool import BufferPool, empty_aligned
from .columns import VIEW_SPAN, Columns, make_views, view_array
from .row_views import RowViews

Int64 = npt.NDArray[np.int64]
Bytes3D = npt.NDArray[np.uint8]


def open_tfrecord(
    data: pa.Buffer, index: pa.RecordBatch, layout: RecordLayout | None, span: int = VIEW_SPAN
) -> Columns:
    """The frames of a whole, decompressed TFRecord shard, not copied.

    Args:
        data: content of the file.
        index: its index, with offset and length.
        layout: layout of its records, if they share one.
        span: see `view_array`.

    Returns:
        The column `FRAMES`, or without a layout `EXAMPLES`.

    Raises:
        ValueError: the index does not fit the data.
    """
    if layout is not None:
        return {FRAMES: np.frombuffer(data, np.uint8).reshape(-1, HEADER_BYTES + layout.example_bytes + FOOTER_BYTES)}
    offsets, lengths = index.column("offset").to_numpy(), index.column("length").to_numpy()
    if lengths.sum() != data.size:
        raise ValueError(f"its records take {lengths.sum()} bytes, not {data.size}")
    return {EXAMPLES: _view_frames(data, offsets, lengths, span)}


def _view_frames(data: pa.Buffer, offsets: Int64, lengths: Int64, span: int) -> pa.Array:
    """Views of the frames."""
    views = make_views(offsets, lengths, span)
    views["prefix"] = lengths - (
        HEADER_BYTES + FOOTER_BYTES
    )  # a frame starts with its length, and a prefix is its first four bytes
    return view_array(views, data, span)


def join_frames(columns: Columns) -> Columns:
    """Columns with the frames of `EXAMPLES`, if any, joined in memory as Arrow large binary."""
    if EXAMPLES not in columns:
        return columns
    frames: Any = columns[EXAMPLES]
    return {**columns, EXAMPLES: frames.cast(pa.large_binary())}


def open_features(columns: Columns, schema: Schema, layout: RecordLayout) -> Columns:
    """Some features of a shard, decoded at once: where most are left out, gathering whole frames would cost more.

    Args:
        columns: the column `FRAMES`.
        schema: the features to decode.
        layout: their layout.
    """
    return decode_frames([columns[FRAMES][None]], schema, layout)


def decode_frames(
    pieces: Sequence[Bytes3D], schema: Schema, layout: RecordLayout, pool: BufferPool | None = None
) -> Columns:
    """The features of gathered frames, joined step by step.

    Args:
        pieces: frames of each stream, uint8 [steps, samples, frame bytes].
        schema: the features to decode.
        layout: their layout in the records.
        pool: memory for the result, or None.

    Returns:
        By feature, [steps * samples of all pieces, *shape].
    """
    return {
        feature.name: _decode_column(pieces, feature, place, pool)
        for feature, place in zip(schema.features, layout.columns, strict=True)
    }


def decode_row_views(frames: RowViews, schema: Schema, layout: RecordLayout, pool: BufferPool | None) -> Columns:
    """The features of frames that are still in their shards.

    Args:
        frames: views of frames, each uint8 [frame bytes].
        schema, layout, pool: as for `decode_frames`.

    Returns:
        By feature, [frames, *shape].
    """
    places = list(zip(schema.features, layout.columns, strict=True))
    cells = frames.fields([_span(feature, place) for feature, place in places], pool)
    return {
        feature.name: decode_cells(part, feature, place.item_bytes).reshape(len(frames), *(feature.fixed_shape or ()))
        for part, (feature, place) in zip(cells, places, strict=True)
    }


def _span(feature: Feature, place: ColumnLayout) -> tuple[int, int]:
    """First byte and width of a feature in a frame."""
    elements = feature.elements if feature.shape else 1
    return HEADER_BYTES + place.offset, place.item_bytes * (elements or 0)


def _decode_column(
    pieces: Sequence[Bytes3D], feature: Feature, place: ColumnLayout, pool: BufferPool | None
) -> npt.NDArray[Any]:
    first, width = _span(feature, place)
    values = [piece[..., first : first + width] for piece in pieces]
    if feature.example_kind == "int64":
        decoded = np.concatenate([decode_cells(part, feature, place.item_bytes) for part in values], axis=1)
    else:
        shape = (*values[0].shape[:1], sum(part.shape[1] for part in values), values[0].shape[2])
        joined = empty_aligned(shape, np.uint8, pool)
        decoded = decode_cells(np.concatenate(values, axis=1, out=joined), feature, place.item_bytes)
    return decoded.reshape(-1, *(feature.fixed_shape or ()))

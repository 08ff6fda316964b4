"""TFRecord shards as columns: whole frames, as they lie in the file.

Where all records share a layout, frames are the rows of a byte matrix, the file itself; after rows were gathered,
features are slices of it. Elsewhere frames are Arrow binary values, and TensorFlow parses what was gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..sharding.formats.example import ColumnLayout, RecordLayout
from ..sharding.formats.matrix import decode_cells
from ..sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ..sharding.schema import Feature, Schema
from .columns import Columns, empty_aligned

__all__ = ["EXAMPLES", "FRAMES", "decode_frames", "open_features", "open_tfrecord"]

FRAMES = "\0frames"  # uint8 [records, frame bytes]
EXAMPLES = "\0examples"  # Arrow large binary [records]
Bytes3D = npt.NDArray[np.uint8]


def open_tfrecord(data: pa.Buffer, index: pa.RecordBatch, layout: RecordLayout | None) -> Columns:
    """The frames of a whole, decompressed TFRecord shard; no byte is copied.

    Args:
        data: of the file.
        index: its index, with offset and length.
        layout: of its records, if they share one.

    Returns:
        The column `FRAMES`, or without a layout `EXAMPLES`.
    """
    if layout is not None:
        return {FRAMES: np.frombuffer(data, np.uint8).reshape(-1, HEADER_BYTES + layout.example_bytes + FOOTER_BYTES)}
    offsets, lengths = index.column("offset").to_numpy(), index.column("length").to_numpy()
    end = offsets[-1] + lengths[-1] if len(offsets) else 0
    buffers = [None, pa.py_buffer(np.append(offsets, end)), data]
    return {EXAMPLES: pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets), buffers)}


def open_features(columns: Columns, schema: Schema, layout: RecordLayout) -> Columns:
    """Some features of all frames of a shard, decoded at once: where many are left out, gathering frames costs more.

    Args:
        columns: the column `FRAMES`.
        schema: of the features wanted.
        layout: of these.
    """
    decoded = decode_frames([columns[FRAMES][None]], schema, layout)
    return {name: values[0] for name, values in decoded.items()}


def decode_frames(pieces: Sequence[Bytes3D], schema: Schema, layout: RecordLayout) -> Columns:
    """The features of gathered frames, the pieces side by side.

    Args:
        pieces: uint8 [steps, samples, frame bytes] each.
        schema: of the features wanted.
        layout: of these in the records.

    Returns:
        By feature, [steps, samples of all pieces, *shape].
    """
    return {
        feature.name: _decode_column(pieces, feature, place)
        for feature, place in zip(schema.features, layout.columns, strict=True)
    }


def _decode_column(pieces: Sequence[Bytes3D], feature: Feature, place: ColumnLayout) -> npt.NDArray[Any]:
    elements = feature.elements if feature.shape else 1
    start = HEADER_BYTES + place.offset
    values = [piece[..., start : start + place.item_bytes * (elements or 0)] for piece in pieces]
    if feature.example_kind == "int64":
        decoded = np.concatenate([decode_cells(part, feature, place.item_bytes) for part in values], axis=1)
    else:
        joined = empty_aligned(
            (*values[0].shape[:1], sum(part.shape[1] for part in values), values[0].shape[2]), np.uint8
        )
        decoded = decode_cells(np.concatenate(values, axis=1, out=joined), feature, place.item_bytes)
    return decoded.reshape(*decoded.shape[:2], *(feature.fixed_shape or ()))

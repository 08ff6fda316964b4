"""Decodes `tf.train.Example` messages of a fixed layout by slicing and casting a byte matrix.

Tested in tests/sharding/formats/test_example_decode.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.arrays import UInt8, UInt64
from ringfeed.sharding.schema import Feature, Schema

from .example_encode import RecordLayout


def decode_matrix(messages: UInt8, schema: Schema, layout: RecordLayout) -> pa.RecordBatch:
    """The inverse of `encode_matrix` without margins.

    Returns:
        The rows, in the schema's Arrow types.
    """
    columns = []
    for feature, place in zip(schema.features, layout.columns, strict=True):
        width = place.item_bytes * (feature.elements or 0)
        cells = np.ascontiguousarray(messages[:, place.offset : place.offset + width])
        values = pa.array(decode_cells(cells, feature, place.item_bytes).reshape(-1))
        if feature.shape:
            values = pa.FixedSizeListArray.from_arrays(values, feature.elements)
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def decode_cells(cells: UInt8, feature: Feature, item_bytes: int) -> npt.NDArray[Any]:
    """Decode the bytes of one column.

    Args:
        cells: bytes, uint8 [..., elements * item_bytes]; contiguous unless the feature is of kind int64.
        item_bytes: size of an element, from its `ColumnLayout`.

    Returns:
        Values of the feature's dtype, [..., elements].
    """
    if feature.example_kind != "int64":
        stored = np.dtype("float32" if feature.example_kind == "float" else feature.dtype).newbyteorder("<")
        return cells.view(stored).astype(feature.dtype, copy=False)
    numbers = (cells[..., ::item_bytes] & 0x7F).astype(np.uint64)
    for place in range(1, item_bytes):
        numbers |= (cells[..., place::item_bytes] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return cast_integers(numbers, feature)


def cast_integers(numbers: UInt64, feature: Feature) -> npt.NDArray[Any]:
    """Convert the two's complements that varints hold to the feature's dtype."""
    return numbers if feature.dtype == "uint64" else numbers.view(np.int64).astype(feature.dtype)

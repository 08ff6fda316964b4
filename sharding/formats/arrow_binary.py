"""Arrow's binary arrays as data and offsets, and back.

Tested in tests/sharding/formats/test_example_encode.py and tests/sharding/formats/test_example_decode.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrays import Int64, UInt8


def offsets_of(array: pa.LargeBinaryArray | pa.BinaryArray) -> Int64:
    """Boundaries of the values in the data, int64 [values + 1]; not copied from arrays of large binary."""
    width = np.int32 if pa.types.is_binary(array.type) else np.int64
    offsets = np.frombuffer(array.buffers()[1], width)[array.offset : array.offset + len(array) + 1]
    return offsets.astype(np.int64, copy=False)


def data_of(array: pa.LargeBinaryArray | pa.BinaryArray) -> pa.Buffer:
    """The bytes that the offsets point into; for a slice, those of the whole array."""
    return array.buffers()[2] or pa.py_buffer(b"")


def binary_array(offsets: Int64, data: Any) -> pa.LargeBinaryArray:
    """An array of the values between offsets in a buffer, which is not copied.

    >>> binary_array(np.array([0, 2, 2, 3]), b"abc").to_pylist()
    [b'ab', b'', b'c']
    """
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def binary_rows(matrix: UInt8) -> pa.LargeBinaryArray:
    """The rows of a matrix as binary values; a contiguous matrix is not copied."""
    offsets = np.arange(len(matrix) + 1, dtype=np.int64) * matrix.shape[1]
    return binary_array(offsets, np.ascontiguousarray(matrix).reshape(-1))


def join_binary(pieces: Sequence[pa.Array]) -> pa.LargeBinaryArray:
    """Concatenate arrays of large binary element by element."""
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))

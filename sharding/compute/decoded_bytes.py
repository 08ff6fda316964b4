"""Finds how many bytes the rows of Arrow arrays take once nothing in them is shared.

Dictionaries, runs and views let many rows share one long value, so that an array of few bytes may need more memory than
a machine has as soon as it is decoded.
Tested in tests/sharding/compute/test_decoded_bytes.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from .arrays import Int64

_SHARING = (
    types.is_dictionary, types.is_run_end_encoded, types.is_list_view, types.is_large_list_view,
    types.is_string_view, types.is_binary_view,
)  # fmt: skip
_LISTS = (types.is_list, types.is_large_list, types.is_map)
_VIEWS = (types.is_list_view, types.is_large_list_view)
_TEXTS = (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
_TEXT_VIEWS = (types.is_string_view, types.is_binary_view)
_OFFSET_BYTES = 4  # per element of a list, which may be empty


def shares_values(kind: pa.DataType) -> bool:
    """Whether rows of a type may share one value.

    >>> shares_values(pa.list_(pa.dictionary(pa.int8(), pa.string()))), shares_values(pa.list_(pa.string()))
    (True, False)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return shares_values(kind.storage_type)
    return _is(kind, _SHARING) or any(shares_values(kind.field(i).type) for i in range(kind.num_fields))


def decoded_bytes(column: pa.Array) -> Int64:
    """The size of each row of an array when it is decoded, in bytes; int64 [rows]. A null may count as a value.

    >>> decoded_bytes(pa.array(["a", "bcd", "a"]).dictionary_encode()).tolist()
    [1, 3, 1]
    >>> decoded_bytes(pa.array([["a"], ["bcd", "a"], []], pa.list_view(pa.string()))).tolist()
    [5, 12, 0]
    """
    kind, rows = column.type, len(column)
    if isinstance(column, pa.ExtensionArray):
        return decoded_bytes(column.storage)
    if _is(kind, _TEXTS):
        return _integers(pc.binary_length(column))
    if _is(kind, _TEXT_VIEWS):  # a view of 16 bytes begins with the length, and a cast would copy the text
        views = np.frombuffer(column.buffers()[1] or b"", "<i4").reshape(-1, 4)[:, 0]
        return np.asarray(views[column.offset : column.offset + rows], np.int64)
    if types.is_dictionary(kind):
        values = decoded_bytes(column.dictionary)
        return np.asarray(values[_integers(column.indices)]) if len(values) else np.zeros(rows, np.int64)
    if types.is_run_end_encoded(kind):
        runs = np.searchsorted(np.asarray(column.run_ends), column.offset + np.arange(rows), side="right")
        return np.asarray(decoded_bytes(column.values)[runs])
    if _is(kind, (*_LISTS, *_VIEWS)):
        return _list_bytes(column)
    if types.is_fixed_size_list(kind):
        values = column.values.slice(column.offset * kind.list_size, rows * kind.list_size)
        return np.asarray(decoded_bytes(values).reshape(rows, kind.list_size).sum(axis=1))
    if types.is_struct(kind):
        return sum((decoded_bytes(column.field(i)) for i in range(kind.num_fields)), np.zeros(rows, np.int64))
    return np.full(rows, -(-column.nbytes // max(rows, 1)), np.int64)


def _list_bytes(column: pa.Array) -> Int64:
    sums = np.concatenate([[0], np.cumsum(decoded_bytes(column.values))]).astype(np.int64)
    starts = _integers(column.offsets)
    if _is(column.type, _VIEWS):
        stops = starts + _integers(column.sizes)
    else:
        starts, stops = starts[:-1], starts[1:]
    sizes: Int64 = sums[stops] - sums[starts] + (stops - starts) * _OFFSET_BYTES
    return sizes


def _integers(values: pa.Array) -> Int64:
    return np.asarray(pc.fill_null(values, 0), np.int64)


def _is(kind: pa.DataType, tests: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    return any(test(kind) for test in tests)

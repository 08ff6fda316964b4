"""Hash records to 128 bits by their values.

Tested in tests/sharding/prepare/screening/test_duplicates.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ringfeed.sharding.compute.arrays import UInt8, UInt64
from ringfeed.sharding.compute.arrow_casts import is_list
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.formats.arrow_binary import binary_array, binary_rows, data_of, offsets_of

Hashes = UInt64  # [records, 2]: high half and low half of each record's hash


def hash_records(batch: pa.RecordBatch) -> Hashes:
    """The XXH3-128 hash of each record's values, bit by bit; a null differs from every value.

    The hash depends neither on the batch that holds the record nor on the names of the columns.
    """
    pieces: list[Any] = []
    for column in batch.columns:
        pieces += [_prefixes(column), _bytes(column)]
    joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    data = memoryview(data_of(joined))
    digest = xxhash.xxh3_128_digest
    digests = b"".join([digest(data[start:stop]) for start, stop in pairwise(offsets_of(joined).tolist())])
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)


def _prefixes(column: pa.Array) -> pa.LargeBinaryArray:
    """A prefix of each value that tells records apart: whether it is null, and its bytes if lengths vary."""
    valid = pc.is_valid(column).cast(pa.uint8()).to_numpy().reshape(-1, 1)
    if _width(column.type) is not None:
        return binary_rows(valid)
    lengths = pc.binary_length(_bytes(column)).to_numpy().astype("<i8").reshape(-1, 1).view(np.uint8)
    return binary_rows(np.concatenate([valid, lengths], axis=1))


def _width(kind: pa.DataType) -> int | None:
    """Bytes of each value of a type, or None if they vary."""
    if pa.types.is_fixed_size_list(kind):
        width = _width(kind.value_type)
        return None if width is None else width * kind.list_size
    return None if kind in (pa.string(), pa.binary()) or pa.types.is_list(kind) else max(8, kind.bit_width) // 8


def _bytes(column: pa.Array) -> pa.LargeBinaryArray:
    """The bytes of each value, empty or zeros for a null; lists of text include the length of each element.

    Raises:
        SourceError: a list holds nulls.
    """
    kind = column.type
    if kind in (pa.string(), pa.binary()):
        return pc.cast(pc.cast(column, pa.binary()), pa.large_binary()).fill_null(b"")
    if not is_list(kind):
        return binary_rows(_matrix(column))
    elements = column.flatten()  # without the elements under a null
    if elements.null_count:
        raise SourceError(
            "lists that hold nulls cannot be compared; mark them by --mask-nulls, or drop the records by --drop-nulls"
        )
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    width = _width(elements.type)
    if width is not None:
        return binary_array(bounds * width, _matrix(elements))
    joined = pc.binary_join_element_wise(_prefixes(elements), _bytes(elements), pa.scalar(b"", pa.large_binary()))
    return binary_array(offsets_of(joined)[bounds], data_of(joined))


def _matrix(column: pa.Array) -> UInt8:
    """The little-endian bytes of numbers, uint8 [n, width]; zeros for a null."""
    values = column.cast(pa.uint8()) if column.type == pa.bool_() else column
    width = values.type.bit_width // 8
    bits = values.view(pa.type_for_alias(f"uint{8 * width}")).fill_null(0).to_numpy()
    return np.ascontiguousarray(bits, f"<u{width}").view(np.uint8).reshape(len(column), width)

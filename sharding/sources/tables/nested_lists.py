"""Splits nested lists into columns of plain lists, which every shard format and every reader holds.

A list of structs in column ``a`` with a field ``b`` becomes ``a.b``: the list of all ``b`` of a record. A map becomes
``a.key`` and ``a.value``. A list of lists becomes ``a.values``, its elements in order, and ``a.lengths``, the number of
elements in each inner list, as `tf.io.RaggedFeature` and `tf.RaggedTensor.from_row_lengths` take them. The length of an
inner list that is missing is null.
Tested in tests/sharding/sources/tables/test_table_files.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrow_casts import is_list
from ringfeed.sharding.schema import to_lists


class InnerField(str):
    """A step of a column's path: into a field of each struct in a list, or ``key`` or ``value`` of a map."""

    __slots__ = ()


class InnerLists(str):
    """A step of a column's path: to ``values`` or ``lengths`` of the lists in a list."""

    __slots__ = ()


def is_nested_list(kind: pa.DataType) -> bool:
    """Whether a type is a map, or a list of lists, of maps or of structs.

    >>> is_nested_list(pa.list_(pa.list_(pa.int64()))), is_nested_list(pa.list_(pa.int64()))
    (True, False)
    """
    if pa.types.is_map(kind):
        return True
    return is_list(kind) and any(is_kind(kind.value_type) for is_kind in (is_list, pa.types.is_map, _has_fields))


def inner_columns(kind: pa.DataType) -> Iterator[tuple[InnerField | InnerLists, pa.DataType]]:
    """Yield the columns that a nested list becomes, each with its last step and its type, which may be nested again.

    >>> list(inner_columns(pa.map_(pa.string(), pa.int8())))
    [('key', ListType(list<item: string>)), ('value', ListType(list<item: int8>))]
    """
    element = _as_list_type(kind).value_type
    if _has_fields(element):
        for field in element:
            yield InnerField(field.name), pa.list_(_decoded(field.type))
    else:
        yield InnerLists("values"), pa.list_(_decoded(_as_list_type(element).value_type))
        yield InnerLists("lengths"), pa.list_(pa.int64())


def take_inner(column: pa.Array, step: InnerField | InnerLists) -> pa.Array:
    """Return one of the columns that a column of nested lists becomes."""
    elements, lengths = _flatten(column)
    missing = column.is_null() if column.null_count else None
    if isinstance(step, InnerField):
        elements = pc.struct_field(elements, [str(step)])
    else:
        absent = elements.is_null().to_numpy(zero_copy_only=False)
        elements, inner_lengths = _flatten(elements)
        if step == "lengths":
            return to_lists(pa.array(inner_lengths, mask=absent), lengths, missing)
        ends = np.concatenate([[0], np.cumsum(inner_lengths)])
        lengths = np.diff(ends[np.concatenate([[0], np.cumsum(lengths)])])
    if pa.types.is_dictionary(elements.type):
        elements = elements.dictionary_decode()
    return to_lists(elements, lengths, missing)


def _flatten(column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the elements of all lists or maps, and the number in each, 0 for a null; int64 [rows]."""
    lists = pc.cast(column, _as_list_type(column.type))
    return lists.flatten(), pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)


def _as_list_type(kind: pa.DataType) -> pa.DataType:
    """The type of a map as a list of structs; any other type as it is."""
    if not pa.types.is_map(kind):
        return kind
    key = pa.field("key", kind.key_type, nullable=pa.types.is_null(kind.key_type))
    return pa.list_(pa.struct([key, pa.field("value", kind.item_type)]))


def _has_fields(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and kind.num_fields)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind

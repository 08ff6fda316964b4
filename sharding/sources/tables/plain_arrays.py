"""Turns Arrow's other encodings of lists and repeated values into plain arrays, which features hold."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import (
    is_dictionary,
    is_fixed_size_list,
    is_large_list,
    is_large_list_view,
    is_list,
    is_list_view,
    is_nested,
    is_run_end_encoded,
    is_struct,
    is_union,
)


def plain_types(schema: pa.Schema, *, texts: bool = False) -> pa.Schema:
    """The schema of what `plain_batch` makes of batches.

    >>> plain_types(pa.schema({"x": pa.list_view(pa.int8())})).types
    [ListType(list<item: int8>)]
    """
    fields = [field.with_type(_plain_type(field.type, texts)) for field in schema]
    return pa.schema(fields, schema.metadata)


def plain_batch(batch: pa.RecordBatch, *, texts: bool = False) -> pa.RecordBatch:
    """Decode run-end encoding, views of lists, and dictionaries of lists, of structs and within lists, at any depth.

    Args:
        texts: whether to decode other dictionaries of scalars, too.
    """
    schema = plain_types(batch.schema, texts=texts)
    if schema == batch.schema:
        return batch
    return pa.RecordBatch.from_arrays([plain_array(column, texts=texts) for column in batch.columns], schema=schema)


def plain_array(column: pa.Array, *, texts: bool = False) -> pa.Array:
    """One column, as `plain_batch` decodes it."""
    kind = column.type
    plain = _plain_type(kind, texts)
    if plain == kind:
        return column
    if is_run_end_encoded(kind):
        return plain_array(pc.run_end_decode(column), texts=texts)
    if is_dictionary(kind):
        return plain_array(column.dictionary_decode(), texts=texts)
    mask = column.is_null()
    if is_struct(kind):
        children = [plain_array(column.field(number), texts=texts) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(plain), mask=mask)
    if is_fixed_size_list(kind):
        values = column.values.slice(column.offset * kind.list_size, len(column) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(plain_array(values, texts=True), type=plain, mask=mask)
    wide = is_large_list(kind) or is_large_list_view(kind)
    whole = pa.LargeListArray if wide else pa.ListArray  # casts of views to lists lack the last offset (pyarrow 26.0.1)
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = pa.concat_arrays([pa.array([0], lengths.type), pc.cumulative_sum(lengths)])
    return whole.from_arrays(offsets, plain_array(column.flatten(), texts=True), type=plain, mask=mask)


def holds_union(kind: pa.DataType) -> bool:
    """Whether a type is a union, or holds one."""
    return is_union(kind) or any(holds_union(kind.field(number).type) for number in range(kind.num_fields))


def _plain_type(kind: pa.DataType, texts: bool) -> pa.DataType:
    if is_run_end_encoded(kind) or (is_dictionary(kind) and (texts or is_nested(kind.value_type))):
        return _plain_type(kind.value_type, texts)
    if is_list(kind) or is_list_view(kind):
        return pa.list_(_inner(kind))
    if is_large_list(kind) or is_large_list_view(kind):
        return pa.large_list(_inner(kind))
    if is_fixed_size_list(kind):
        return pa.list_(_inner(kind), kind.list_size)
    if is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type, texts)) for field in kind])
    return kind


def _inner(kind: pa.DataType) -> pa.Field:
    return kind.value_field.with_type(_plain_type(kind.value_type, texts=True))

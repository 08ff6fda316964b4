"""Declares the shapes of tensors in Parquet shards, so that other programs see them; the values stay flat lists.

A tensor of two or more dimensions gets the Arrow type ``arrow.fixed_shape_tensor``. One of a single dimension is a list
of fixed size, which every program knows.
Tested in tests/sharding/dataset/test_own_folder.py.
"""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

from ringfeed.sharding.schema import Schema

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def declare_tensors(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Return a batch of the schema's Arrow types with tensors of two or more dimensions as Arrow's tensor type."""
    fields, columns = list(schema.arrow), list(batch.columns)
    for place, feature in enumerate(schema.features):
        if feature.fixed_shape and len(feature.shape) > 1:
            kind = pa.fixed_shape_tensor(feature.primitive, feature.fixed_shape)
            fields[place] = fields[place].with_type(kind)
            columns[place] = pa.ExtensionArray.from_storage(kind, columns[place])
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def plain_lists(rows: Rows) -> Rows:
    """Invert `declare_tensors`; other rows stay as they are."""
    schema = rows.schema
    plain = plain_types(schema)
    if plain is schema:
        return rows
    return type(rows).from_arrays([_storage(column) for column in rows.columns], schema=plain)


def plain_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which tensors are lists of fixed size; the same one if there are none."""
    if not any(isinstance(field.type, pa.FixedShapeTensorType) for field in schema):
        return schema
    plain = [
        field.with_type(field.type.storage_type) if isinstance(field.type, pa.FixedShapeTensorType) else field
        for field in schema
    ]
    return pa.schema(plain, metadata=schema.metadata)


def _storage(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if not isinstance(column.type, pa.FixedShapeTensorType):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column.storage

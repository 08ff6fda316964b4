"""Declares tensors, times and ordered categories in Parquet shards, for other programs; the rest of ringfeed sees none.

A tensor of two or more dimensions gets the Arrow type ``arrow.fixed_shape_tensor``. One of a single dimension is a list
of fixed size, which every program knows. A time, everywhere else an integer, gets its own type. Parquet has no seconds,
so they become milliseconds, which takes a copy; all other casts of times share the memory of the values. Ordered
categories become an Arrow dictionary, which pandas reads as an ordered `Categorical`, and Polars, by the metadata of
the field, as an `Enum`.
Tested in tests/sharding/formats/test_parquet_types.py and tests/sharding/dataset/test_own_folder.py.
"""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, Schema, categories_of, logical_type

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
_POLARS_ENUM = b"_PL_ENUM_VALUES2"  # names of an Enum, each after its number of bytes, as Polars 1 and 2 write them


def stored_schema(schema: Schema, *, tensors: bool = True, meanings: bool = True) -> pa.Schema:
    """The Arrow schema of a Parquet shard.

    Args:
        tensors: whether tensors of two or more dimensions have Arrow's tensor type.
        meanings: whether times, lists of times, and ordered categories have types of their own.
    """
    fields = []
    for feature, field in zip(schema.features, schema.arrow, strict=True):
        if tensors and feature.fixed_shape and len(feature.shape) > 1:
            field = field.with_type(pa.fixed_shape_tensor(feature.primitive, feature.fixed_shape))
        elif meanings and feature.categories:
            names = "".join(f"{len(name.encode())};{name}" for name in feature.categories)
            metadata = {**field.metadata, _POLARS_ENUM: names.encode()}
            field = field.with_type(pa.dictionary(pa.int32(), pa.string(), ordered=True)).with_metadata(metadata)
        elif meanings and feature.logical and len(feature.shape) < 2:
            field = field.with_type(with_elements(field.type, _stored_time(_time_type(feature.logical))))
        fields.append(field)
    return pa.schema(fields)


def declares_meanings(schema: Schema) -> bool:
    """Whether the Parquet shards of a schema have types of times or ordered categories."""
    return bool(stored_schema(schema) != stored_schema(schema, meanings=False))


def _time_type(logical: str) -> pa.DataType:
    """The type of times with the integers of `Feature.logical`; a date64 may be no whole day, so it is a timestamp."""
    kind = logical_type(logical)
    return pa.timestamp("ms") if types.is_date64(kind) else kind


def _stored_time(kind: pa.DataType) -> pa.DataType:
    """The type with which Parquet stores times exactly."""
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return pa.time32("ms") if types.is_time32(kind) else kind


def element_type(kind: pa.DataType) -> pa.DataType:
    """The type of the elements of a list, or of the values of other columns."""
    return kind.value_type if types.is_list(kind) or types.is_fixed_size_list(kind) else kind


def with_elements(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    """The type with another type of its elements if it is a list, else that type."""
    if types.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    return pa.list_(element) if types.is_list(kind) else element


def to_stored(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to the types of `stored_schema`; a SourceError if seconds are too large for milliseconds."""
    columns = [_to_stored(column, field) for column, field in zip(batch.columns, stored, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def time_texts(column: pa.Array, feature: Feature) -> pa.Array:
    """Dates and times, or lists of them, in ISO 8601: strings."""
    kind = with_elements(column.type, _time_type(feature.logical))
    return pc.cast(pc.cast(column, kind), with_elements(kind, pa.string()))


def _to_stored(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    if isinstance(field.type, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(field.type, column)
    if types.is_dictionary(field.type):
        names = pa.array(categories_of(field), pa.string())
        places = pc.index_in(column, value_set=names)
        return pa.DictionaryArray.from_arrays(places, names, ordered=True)
    time, numbers = _time_in(field), Feature.from_arrow(field).dtype
    try:
        return pc.cast(pc.cast(column, with_elements(field.type, time)), field.type)
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"column {field.name!r} holds a {time} that is too large in milliseconds, which Parquet stores ({error}); "
            f"leave such records out with --filter, or keep plain numbers with --cast {field.name}={numbers}"
        ) from error


def _time_in(field: pa.Field) -> pa.DataType | None:
    """The type of times with the integers that the feature of a column has; None if it is no column of times."""
    logical = (field.metadata or {}).get(b"logical")
    has_times = logical is not None and types.is_temporal(element_type(field.type))
    return _time_type(logical.decode()) if has_times and logical else None


def is_rescaled(field: pa.Field) -> bool:
    """Whether a column of a file has other integers than the feature: milliseconds for seconds."""
    time = _time_in(field)
    return time is not None and _stored_time(time) != time


def plain_columns(rows: Rows) -> Rows:
    """Invert `to_stored`; other rows stay as they are."""
    schema = rows.schema
    plain = plain_types(schema)
    if plain is schema:
        return rows
    columns = [_plain(column, *fields) for column, *fields in zip(rows.columns, schema, plain, strict=True)]
    return type(rows).from_arrays(columns, schema=plain)


def plain_types(schema: pa.Schema) -> pa.Schema:
    """Return the schema with lists for tensors, integers for times and strings for categories; itself if all are so."""
    plain = [field.with_type(_plain_type(field)) for field in schema]
    return pa.schema(plain, metadata=schema.metadata) if schema.types != [field.type for field in plain] else schema


def _plain_type(field: pa.Field) -> pa.DataType:
    if isinstance(field.type, pa.FixedShapeTensorType):
        return field.type.storage_type
    if types.is_dictionary(field.type):
        return field.type.value_type
    time = _time_in(field)
    if time is None:
        return field.type
    return with_elements(field.type, pa.int32() if time.bit_width == 32 else pa.int64())


def _plain(column: pa.Array | pa.ChunkedArray, stored: pa.Field, plain: pa.Field) -> pa.Array | pa.ChunkedArray:
    if stored.type == plain.type:
        return column
    if types.is_dictionary(stored.type):
        return pc.cast(column, plain.type)
    if not isinstance(stored.type, pa.FixedShapeTensorType):
        return pc.cast(pc.cast(column, with_elements(stored.type, _time_in(stored))), plain.type)
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column.storage

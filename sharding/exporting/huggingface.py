"""Parquet files whose metadata declare the features of Hugging Face `datasets`: images, class labels, tensors, times.

Written without `datasets`, whose features are JSON in the metadata of the Arrow schema, under the key ``huggingface``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ringfeed.sharding.formats.example_encode import flat_arrow
from ringfeed.sharding.formats.parquet_types import element_type, stored_schema, to_stored
from ringfeed.sharding.schema import Feature, Schema, class_names

_IMAGE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])


def hf_parquet(batches: Iterable[pa.RecordBatch], schema: Schema, classes: Sequence[Any]) -> pa.Buffer:
    """Return the rows of one shard as a Parquet file, one row group per batch.

    Args:
        classes: values of the label, whose column becomes a `ClassLabel` of their positions.
    """
    sink = pa.BufferOutputStream()
    stored = stored_schema(schema, tensors=False)
    target = _arrow_schema(schema, stored, classes)
    with pq.ParquetWriter(sink, target, compression="snappy", version="2.6") as writer:
        for batch in batches:
            declared = to_stored(batch, stored)
            columns = [
                _class_ids(batch.column(feature.name), feature, names)
                if (names := classes if feature.name == schema.label else feature.categories)
                else _column(declared.column(feature.name), feature)
                for feature in schema.features
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=target))
    return sink.getvalue()


def _arrow_schema(schema: Schema, stored: pa.Schema, classes: Sequence[Any]) -> pa.Schema:
    features, fields = {}, []
    for feature, field in zip(schema.features, stored, strict=True):
        if feature.name == schema.label:
            features[feature.name] = {"names": class_names(schema, classes), "_type": "ClassLabel"}
            fields.append(pa.field(feature.name, pa.int64()))
            continue
        if feature.categories:
            features[feature.name] = {"names": list(feature.categories), "_type": "ClassLabel"}
            fields.append(pa.field(feature.name, pa.int64()))
            continue
        element = element_type(field.type)
        features[feature.name] = _feature_json(feature, element)
        fields.append(pa.field(feature.name, _arrow_type(feature, element)))
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})


def _feature_json(feature: Feature, element: pa.DataType) -> dict[str, Any]:
    if feature.is_image:
        return {"_type": "Image"}
    dtype = feature.dtype if element == feature.primitive else str(element).removesuffix("[day]")
    value: dict[str, Any] = {"dtype": dtype, "_type": "Value"}
    for size in reversed(feature.shape):  # versions before 4 know the name `Sequence`, too
        value = {"feature": value, "length": -1 if size is None else size, "_type": "Sequence"}
    return value


def _arrow_type(feature: Feature, kind: pa.DataType) -> pa.DataType:
    if feature.is_image:
        return _IMAGE
    for size in reversed(feature.shape):
        kind = pa.list_(kind) if size is None else pa.list_(kind, size)
    return kind


def _class_ids(column: pa.Array, feature: Feature, classes: Sequence[Any]) -> pa.Array:
    return pc.index_in(column, value_set=pa.array(classes, feature.primitive)).cast(pa.int64())


def _column(column: pa.Array, feature: Feature) -> pa.Array:
    if feature.is_image:
        names = pa.nulls(len(column), pa.string())
        return pa.StructArray.from_arrays([column, names], fields=list(_IMAGE), mask=column.is_null())
    if not feature.fixed_shape or len(feature.shape) == 1:
        return column
    values = flat_arrow(column, feature)
    for size in reversed(feature.fixed_shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return pa.FixedSizeListArray.from_arrays(values, feature.fixed_shape[0], mask=column.is_null())

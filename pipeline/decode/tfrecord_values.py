"""Locates the features of large TFRecord records when a shard is opened, so that TensorFlow need not parse them.

Numbers become columns. Strings and bytes, such as encoded images, stay in the file, and columns hold views of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.formats.arrow_binary import data_of, offsets_of
from ringfeed.sharding.formats.example_decode import decode_examples, locate_examples
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ringfeed.sharding.schema import Feature, Schema

from .columns import Columns, filled_columns, view_bytes

_NUMBER_BYTES = 1024  # per record


def has_plain_values(manifest: Manifest, split: str, schema: Schema) -> bool:
    """Whether each feature is one string or a few numbers, and none is missing, so that `open_values` applies."""
    statistics = manifest.split(split).statistics
    numbers = [f for f in schema.features if not _is_viewed(f)]
    return (
        all(statistics[name].nulls == 0 for name in schema.names)
        and all(f.numeric and f.elements is not None for f in numbers)
        and sum(np.dtype(f.dtype).itemsize * (f.elements or 0) for f in numbers) <= _NUMBER_BYTES
    )


def open_values(data: pa.Buffer, index: pa.RecordBatch, stored: Schema, schema: Schema) -> Columns:
    """The features of a whole, decompressed TFRecord shard, for which `has_plain_values` holds.

    Args:
        data: content of the file.
        index: its index, with offset and length.
        stored: schema of the dataset.
        schema: the features to read.

    Returns:
        Numbers as NumPy arrays [records, *shape], strings and bytes as Arrow binary views of `data`.
    """
    content, starts, ends = _messages(data, index)
    viewed = [feature.name for feature in schema.features if _is_viewed(feature)]
    numbers = [feature.name for feature in schema.features if not _is_viewed(feature)]
    located = locate_examples(content, starts, ends, stored, viewed, numbers)
    if located is not None:
        places, batch = located
        views = {name: view_bytes(data, *place) for name, place in places.items()}
    else:
        batch = decode_examples(content, starts, ends, stored, schema.names, wide=True)
        views = {name: _view_copies(batch.column(name)) for name in viewed}
    columns = views | dict(filled_columns(pa.Table.from_batches([batch]), schema.select(numbers), {}))
    return {name: columns[name] for name in schema.names}


def open_masked(
    data: pa.Buffer,
    index: pa.RecordBatch,
    manifest: Manifest,
    schema: Schema,
    fill: Mapping[str, Any],
    masks: Sequence[str],
) -> Columns:
    """The features of a whole, decompressed TFRecord shard, and masks of missing values.

    TensorFlow's parser tells no missing value from its default, so the records are decoded here.

    Args:
        data: content of the file.
        index: its index, with offset and length.
        schema: the features to read.
        fill: value for missing values, by feature.
        masks: features whose missing values are marked.

    Returns:
        As `open_parquet`.
    """
    batch = decode_examples(*_messages(data, index), manifest.schema, schema.names)
    return filled_columns(pa.Table.from_batches([batch]), schema, fill, masks)


def _messages(data: pa.Buffer, index: pa.RecordBatch) -> tuple[Any, Any, Any]:
    """The bytes of a file, and where the message of each record starts and ends in it."""
    starts = index.column("offset").to_numpy() + HEADER_BYTES
    ends = starts + index.column("length").to_numpy() - (HEADER_BYTES + FOOTER_BYTES)
    return np.frombuffer(data, np.uint8), starts, ends


def _is_viewed(feature: Feature) -> bool:
    return feature.example_kind == "bytes" and feature.shape == ()


def _view_copies(values: Any) -> pa.Array:
    """Views of an Arrow array's own values."""
    copies = values.cast(pa.large_binary())
    offsets = offsets_of(copies)
    return view_bytes(data_of(copies), offsets[:-1], offsets[1:])

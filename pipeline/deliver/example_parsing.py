"""Parsing the `tf.train.Example` records of TFRecord shards in TensorFlow. Importing this imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.sharding.schema import Feature, Schema

if TYPE_CHECKING:
    import tensorflow as tf


def feature_spec(schema: Schema, fill: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The specification with which `tf.io.parse_example` parses the dataset's TFRecord shards.

    Args:
        fill: value for missing values, by feature; floats default to NaN, others have no default.

    Returns:
        `tf.io.FixedLenFeature` or `tf.io.RaggedFeature` by feature. ``raw`` features come out as tf.string, to be
        decoded with `tf.io.decode_raw`; `parse_batch` does so.
    """
    return {feature.name: _feature_spec(feature, (fill or {}).get(feature.name)) for feature in schema.features}


def _feature_spec(feature: Feature, fill: Any) -> Any:
    import tensorflow as tf

    kind = feature.example_kind
    dtype = {"int64": tf.int64, "float": tf.float32}.get(kind, tf.string)
    if kind == "raw":
        if feature.elements is None:
            return tf.io.FixedLenFeature([], tf.string, b"")
        if fill is None and feature.dtype == "float64":
            fill = float("nan")
        default = None if fill is None else np.full(feature.elements, fill, feature.dtype).tobytes()
        return tf.io.FixedLenFeature([], tf.string, default)
    if feature.fixed_shape is None:
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)  # as from Parquet shards
    if fill is None and kind == "float":
        fill = float("nan")
    nested = fill
    for size in reversed(feature.fixed_shape):  # in lists: NumPy would strip zero bytes from the end of text
        nested = [nested] * size
    return tf.io.FixedLenFeature(feature.fixed_shape, dtype, None if fill is None else nested)


def parse_batch(examples: tf.Tensor, schema: Schema, fill: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Parse a batch of serialised examples to the features' own dtypes and shapes.

    Args:
        examples: tf.string [batch].
        schema: schema of the dataset.
        fill: as for `feature_spec`.

    Returns:
        [batch, *shape] by feature; ragged where the length varies.

    >>> import tensorflow as tf
    >>> from ringfeed.sharding import Feature, Schema
    >>> example = tf.train.Example()
    >>> example.features.feature["x"].float_list.value.append(0.5)
    >>> schema = Schema(features=(Feature(name="x", dtype="float32"),))
    >>> parse_batch(tf.constant([example.SerializeToString()]), schema)["x"].numpy().tolist()
    [0.5]
    """
    import tensorflow as tf

    parsed = tf.io.parse_example(examples, feature_spec(schema, fill))
    return {feature.name: _restore(parsed[feature.name], feature) for feature in schema.features}


def _restore(values: Any, feature: Feature) -> Any:
    import tensorflow as tf

    dtype = tf.as_dtype(feature.dtype) if feature.numeric else tf.string
    if feature.example_kind != "raw":
        return values if values.dtype == dtype else tf.cast(values, dtype)
    if feature.elements is None:
        lengths = tf.cast(tf.strings.length(values), tf.int64) // dtype.size
        flat = tf.io.decode_raw(tf.strings.reduce_join(values), dtype)
        return tf.ragged.map_flat_values(tf.identity, tf.RaggedTensor.from_row_lengths(flat, lengths))
    decoded = tf.io.decode_raw(values, dtype, fixed_length=None)
    batch = -1 if values.shape[0] is None else values.shape[0]
    return tf.reshape(decoded, [batch, *(feature.fixed_shape or ())])

"""The built-in network for texts: a small transformer over a column of token lists.

Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, the encoder, with the normalisation before each part
(Xiong et al., arXiv 2002.04745). What it predicts follows from the mean over a record's tokens.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Feature
from ringfeed.training.config.data import DataConfig
from ringfeed.training.config.model import ModelConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.preprocess import (
    BuiltModel,
    Element,
    Preprocess,
    feature_columns,
    label_and_weight,
    only_column,
)
from ringfeed.training.models.target import plan_target
from ringfeed.training.optimizers.keras_doors import Tensor

from .packing import rows_of


def text(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    """Build the network; in training records are packed into rows of `model.max_length` tokens, if `model.packing`."""
    model, feature = config.model, _token_column(manifest, config.data)
    known = manifest.split(config.data.train_split).statistics[feature.name]
    is_text = feature.dtype == "string"
    vocabulary = model.hash_buckets if is_text else int(known.max or 0) + 1
    if not is_text and (known.min or 0) < 0:
        raise ConfigError(f"model.name: text takes tokens from 0, column {feature.name!r} has {known.min:g}")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("tokens", "records", "positions")}
    inputs["lengths"] = keras.Input((), dtype="int32", name="lengths")
    features = keras.layers.Embedding(vocabulary + 1, model.width, name="token_embedding")(inputs["tokens"])
    features += keras.layers.Embedding(model.max_length, model.width, name="position_embedding")(inputs["positions"])
    mask = WithinRecords(name="within_records")(inputs["records"])
    for _ in range(model.layers):
        features = _block(features, mask, model)
    features = keras.layers.LayerNormalization()(features)
    features = MeanOfRecords(name="mean_of_records", dtype="float32")(features, inputs["records"], inputs["lengths"])
    outputs = plan_target(manifest, config).outputs
    logits = keras.layers.Dense(outputs, dtype="float32", name="logits")(features)

    def preprocess(width: int | None) -> Preprocess:
        def prepared(element: Element) -> tuple[Any, Any, Any]:
            tokens = element[feature.name][:, : model.max_length]
            codes = tf.ragged.map_flat_values(lambda values: _codes(values, vocabulary), tokens)
            return rows_of(codes, width), *label_and_weight(element)

        return prepared

    return BuiltModel(
        network=keras.Model(inputs, logits, name="text"),
        preprocess=preprocess(None),
        augmented=preprocess(model.max_length) if model.packing else None,
    )


def _token_column(manifest: Manifest, data: DataConfig) -> Feature:
    columns = feature_columns(manifest, data)
    lists = [f for f in columns if f.elements is None and len(f.shape) == 1]
    found = [f for f in lists if f.dtype == "string" or "int" in f.dtype]
    return only_column(found, "model.name: text", "column of lists of integers or texts")


def _codes(values: Tensor, vocabulary: int) -> Tensor:
    """Return rows of the embedding: 0 is a token that training did not have."""
    if values.dtype == tf.string:
        return tf.cast(tf.strings.to_hash_bucket_fast(values, vocabulary), tf.int32) + 1
    wide = tf.cast(values, tf.int64)
    return tf.cast(tf.where((wide >= 0) & (wide < vocabulary), wide + 1, 0), tf.int32)


def _block(features: Tensor, mask: Tensor, model: ModelConfig) -> Tensor:
    normalised = keras.layers.LayerNormalization()(features)
    attention = keras.layers.MultiHeadAttention(model.heads, model.width // model.heads, dropout=model.dropout)
    features += attention(normalised, normalised, attention_mask=mask)
    inner = keras.layers.Dense(4 * model.width, activation="gelu")(keras.layers.LayerNormalization()(features))
    inner = keras.layers.Dense(model.width)(inner)
    return features + (keras.layers.Dropout(model.dropout)(inner) if model.dropout else inner)


@keras.saving.register_keras_serializable("ringfeed")
class WithinRecords(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
    """A mask of attention, bool [rows, width, width]: whether two tokens are of one record, padding among itself."""

    def call(self, records: Tensor) -> Tensor:
        return tf.equal(records[:, :, None], records[:, None, :])


@keras.saving.register_keras_serializable("ringfeed")
class MeanOfRecords(keras.layers.Layer):  # type: ignore[misc]
    """The mean over the tokens of each record, float32 [batch, width]; 0 for an empty record."""

    def call(self, features: Tensor, records: Tensor, lengths: Tensor) -> Tensor:
        flat = tf.reshape(features, [-1, features.shape[-1]])
        places = tf.reshape(records, [-1]) + 1  # 0 is padding; in ONNX -1 would be the last record
        sums = tf.math.unsorted_segment_sum(flat, places, tf.shape(lengths)[0] + 1)[1:]
        return tf.math.divide_no_nan(sums, tf.cast(lengths, sums.dtype)[:, None])

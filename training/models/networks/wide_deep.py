"""The built-in network for tables of ids: a linear part that remembers, beside a deep part that generalises.

Cheng et al., "Wide & Deep Learning for Recommender Systems", arXiv 1606.07792. Ids and crosses of them are hashed, so
that any number of them, also ones that training never saw, fits into tables of `model.hash_buckets` rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringfeed.pipeline.select.sample_columns import mask_name
from ringfeed.pipeline.transforms.tabular_ops import tabular_inputs
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean, listed
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.preprocess import BuiltModel, Element, feature_columns, label_and_weight, plan_tabular
from ringfeed.training.models.target import plan_target

from .layers import head
from .tabular import embedding_width

_BETWEEN = "\x1f"  # ASCII's unit separator stands between the values of a cross
_MISSING = "\x1e"  # a text that begins with it gets another one, so that no text is hashed as a missing one


def wide_deep(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    """Build the network: texts and `data.categorical` are ids, other numbers are standardised."""
    data, model = config.data, config.model
    columns = feature_columns(manifest, data)
    codes = {f.name for f in columns if f.name in data.categorical and not f.dtype.startswith("float")}
    ids = [f.name for f in columns if f.shape == () and (f.dtype == "string" or f.name in codes)]
    if not ids:
        raise ConfigError("model.name: wide_deep needs a column of texts, or one of integers in data.categorical")
    for key, groups in (("crosses", model.crosses), ("shared", model.shared)):
        for name in (name for group in groups for name in group if name not in ids):
            hint = did_you_mean(name, ids, f"those are: {listed(ids)}")
            raise ConfigError(f"model.{key}: {name!r} is no column of ids, texts or data.categorical; {hint}")
    rest = [feature for feature in columns if feature.name not in ids]
    plan = plan_tabular(manifest, data, rest) if rest else None
    outputs, buckets = plan_target(manifest, config).outputs, model.hash_buckets
    inputs = {
        "ids": keras.Input((len(ids),), dtype="int32", name="ids"),
        "wide": keras.Input((len(ids) + len(model.crosses),), dtype="int32", name="wide"),
    }
    parts = _embeddings(inputs["ids"], ids, model.shared, buckets, embedding_width(buckets, model.embedding_dim))
    if plan is not None:
        inputs["numeric"] = keras.Input((plan.numeric_width,), dtype="float32", name="numeric")
        parts.append(inputs["numeric"])
    deep = head(parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts), model, outputs)
    rows = buckets * inputs["wide"].shape[1]
    weights = keras.layers.Embedding(
        rows, outputs, embeddings_initializer="zeros", dtype="float32", name="wide_weights"
    )
    linear = keras.ops.sum(weights(inputs["wide"]), axis=1)
    logits = keras.layers.Add(dtype="float32", name="wide_and_deep")([deep, linear])
    hashed = _hashed(ids, model.crosses, buckets)

    def preprocess(element: Element) -> tuple[Any, Any, Any]:
        numeric = {} if plan is None else {"numeric": tabular_inputs(element, plan)["numeric"]}
        return {**hashed(element), **numeric}, *label_and_weight(element)

    return BuiltModel(network=keras.Model(inputs, logits, name="wide_deep"), preprocess=preprocess)


def _embeddings(codes: Any, ids: Sequence[str], shared: Sequence[Sequence[str]], buckets: int, width: int) -> list[Any]:
    """Return the embedding of each column of ids; columns of a group in `shared` have one table."""
    table_of = {name: number for number, group in enumerate(shared) for name in group}
    tables: dict[Any, Any] = {}
    parts = []
    for place, name in enumerate(ids):
        table = table_of.get(name, name)
        if table not in tables:
            tables[table] = keras.layers.Embedding(buckets, width, name=f"embedding_{len(tables)}")
        parts.append(tables[table](codes[:, place]))
    return parts


def _hashed(ids: Sequence[str], crosses: Sequence[Sequence[str]], buckets: int) -> Any:
    """Return a function from an element to the buckets of its ids, and of ids and crosses in the wide part's table."""

    def hashed(element: Element) -> Mapping[str, Any]:
        texts = {}
        for name in ids:
            values = element[name]
            texts[name] = _escaped(values) if values.dtype == tf.string else tf.strings.as_string(values)
            if (missing := element.get(mask_name(name))) is not None:
                texts[name] = tf.where(missing, _MISSING, texts[name])
        crossed = [tf.strings.join([texts[name] for name in cross], _BETWEEN) for cross in crosses]
        every = tf.stack([*(texts[name] for name in ids), *crossed], 1)
        codes = tf.cast(tf.strings.to_hash_bucket_fast(every, buckets), tf.int32)
        return {"ids": codes[:, : len(ids)], "wide": codes + buckets * tf.range(codes.shape[1])}

    return hashed


def _escaped(texts: Any) -> Any:
    """Return texts that never equal `_MISSING`; only texts that begin with it change."""
    begins = tf.equal(tf.strings.substr(texts, 0, 1), _MISSING)
    return tf.where(begins, tf.strings.join([_MISSING, texts]), texts)

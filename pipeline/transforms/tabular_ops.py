"""Turns columns of a batch into model inputs, in TensorFlow operations: standardised numbers and category ids.

Tested in tests/pipeline/transforms/test_tabular.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.pipeline.select.sample_columns import mask_name
from ringfeed.sharding.errors import ConfigError

from .apply import unconverted
from .tabular_plan import CategoryColumn, NumericColumn, TabularPlan

Element = Mapping[str, Any]


@unconverted
def tabular_inputs(element: Element, plan: TabularPlan) -> dict[str, Any]:
    """The inputs that `TabularTransform` adds; raises a ConfigError if the element lacks the mask of a column."""
    inputs = {}
    if plan.numeric:
        inputs["numeric"] = _numeric(element, plan.numeric)
    if plan.categories:
        ids = [_without(_ids(c)(element[c.name]), _mask(element, c), 0) for c in plan.categories]
        inputs["categories"] = tf.stack(ids, axis=1)
    return inputs


def _mask(element: Element, column: NumericColumn | CategoryColumn) -> Any:
    """Which values of a column are missing, bool [batch]; None: none are, or they are NaN."""
    name = mask_name(column.name)
    if column.masked and name not in element:
        raise ConfigError(
            f"feature {column.name!r} had missing values in training, and the element has no {name!r} to mark them: "
            f"Loader(..., masks=[{column.name!r}])"
        )
    return element.get(name)


def _numeric(element: Element, columns: Sequence[NumericColumn]) -> Any:
    """The numeric input. Standardised in float64: an int64 time stamp in microseconds has more digits than float32."""
    values = tf.concat([_as_float64(element[c.name], _mask(element, c), c) for c in columns], axis=1)
    repeats = [c.elements for c in columns]
    mean = np.repeat([c.mean for c in columns], repeats)
    std = np.repeat([c.std for c in columns], repeats)
    is_finite = tf.math.is_finite(values)
    standardised = tf.cast(tf.where(is_finite, (values - mean) / std, tf.zeros_like(values)), tf.float32)
    flagged = np.flatnonzero(np.repeat([c.has_missing for c in columns], repeats))
    if not flagged.size:
        return standardised
    missing = tf.cast(tf.logical_not(tf.gather(is_finite, flagged, axis=1)), tf.float32)
    return tf.concat([standardised, missing], axis=1)


def _as_float64(values: Any, missing: Any, column: NumericColumn) -> Any:
    """Values as float64 [batch, elements], with NaN for missing ones."""
    numbers = tf.reshape(tf.cast(values, tf.float64), [-1, column.elements])
    return _without(numbers, None if missing is None else missing[:, None], np.nan)


def _without(values: Any, missing: Any, substitute: float) -> Any:
    """Values with a substitute where they are missing.

    Args:
        values: numbers or ids of a batch.
        missing: bool, which are missing; None: none.
        substitute: what no other value becomes.
    """
    return values if missing is None else tf.where(missing, tf.constant(substitute, values.dtype), values)


def _ids(column: CategoryColumn) -> Callable[[Any], Any]:
    if column.vocabulary is not None:
        return text_ids(column.vocabulary)

    def from_code(values: Any) -> Any:
        ids = tf.cast(values, tf.int64) - column.smallest + 1
        known = (ids >= 1) & (ids < column.size)
        return tf.cast(tf.where(known, ids, tf.zeros_like(ids)), tf.int32)

    return from_code


def text_ids(vocabulary: Sequence[str]) -> Callable[[Any], Any]:
    """A function from texts, string [batch], to int32 [batch]: 1 + the text's place in the vocabulary, or 0.

    Looks texts up by hash, then compares them. `tf.lookup` tables are stateful, so under op determinism tf.data would
    run the whole preprocessing on one thread.

    Raises:
        ConfigError: two texts of the vocabulary are equal, or share a hash.

    >>> text_ids(["AA", "B6"])(tf.constant(["B6", "", "AA"])).numpy().tolist()
    [2, 0, 1]
    """
    if not vocabulary:
        return lambda values: tf.zeros_like(values, tf.int32)
    with tf.init_scope():  # evaluated now, even while a graph is being traced
        words = tf.constant(vocabulary, tf.string)
        hashes = _hash(words).numpy()
    order = np.argsort(hashes)
    if np.unique(hashes).size != len(vocabulary):
        raise ConfigError("two texts of a vocabulary are equal, or share a 62-bit hash")

    def lookup(values: Any) -> Any:
        place = tf.minimum(tf.searchsorted(tf.constant(hashes[order]), _hash(values)), len(vocabulary) - 1)
        candidate = tf.gather(tf.constant(order, tf.int32), place)
        return tf.where(tf.equal(tf.gather(words, candidate), values), candidate + 1, 0)

    return lookup


def _hash(values: Any) -> Any:
    return tf.strings.to_hash_bucket_fast(values, 2**62)

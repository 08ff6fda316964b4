"""A batch of a dataset's columns, made of its statistics, on which an exported model is compared with the trained one.

The dataset itself may be out of reach.

Tested in tests/training/serving/test_export_checks.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.pipeline.select.sample_columns import mask_name
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.schema import Feature

from .trained import TrainedModel, column_spec

__all__ = ["trial_batch"]

_ROWS = 5
_SIDE = 8  # pixels of an encoded image
_UNKNOWN = "\N{SNOWMAN} of no vocabulary"


def trial_batch(model: TrainedModel) -> dict[str, Any]:
    """Return five records for a model: its columns, in the dtypes of a loader, and masks of missing values."""
    statistics = model.manifest.split(model.config.data.train_split).statistics
    draw = np.random.default_rng(0)
    batch = {feature.name: _column(feature, statistics[feature.name], draw) for feature in model.columns}
    masks = {mask_name(feature.name): tf.constant([False, True, False, False, True]) for feature in model.masked}
    return {**batch, **masks}


def _column(feature: Feature, known: FeatureStatistics, draw: np.random.Generator) -> Any:
    dtype = column_spec(feature).dtype
    if feature.fixed_shape is None:
        lengths = np.array([3, 0, 1, 4, 2])
        flat = tf.constant(_values(feature, known, draw, int(lengths.sum())), dtype)
        return tf.RaggedTensor.from_row_lengths(flat, tf.constant(lengths, tf.int64))
    values = _values(feature, known, draw, _ROWS * (feature.elements or 0))
    return tf.reshape(tf.constant(values, dtype), [_ROWS, *feature.fixed_shape])


def _values(feature: Feature, known: FeatureStatistics, draw: np.random.Generator, count: int) -> Any:
    if feature.dtype == "string":
        words = [*(known.vocabulary or ())[:3], _UNKNOWN, ""]
        return [words[number % len(words)] for number in range(count)]
    if feature.dtype == "binary":
        pixels = draw.integers(0, 256, (count, _SIDE, _SIDE, 3), np.uint8)
        return [tf.io.encode_png(image).numpy() for image in pixels]
    low, high = known.min or 0, known.max or 0
    if feature.dtype == "bool":
        return draw.random(count) < 0.5
    if feature.dtype.startswith("float"):
        return (low + (high - low) * draw.random(count)).astype(feature.dtype)
    span, first = int(high) - int(low), int(low)
    limits = np.iinfo(feature.dtype)
    found = [first + round(span * share) for share in draw.random(count)]
    return np.array([min(max(value, limits.min), limits.max) for value in found], feature.dtype)

"""From a loader's element to what a model takes: `(inputs, class_id, weight)`.

What to do with each column is planned once, from the manifest's statistics of the train split alone, so evaluation data
never shape the features. The work is done on whole batches, in TensorFlow operations, inside the tf.data pipeline.
Images are in `images.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..sharding.errors import ConfigError
from ..sharding.manifest import Manifest
from ..sharding.schema import Feature
from ..sharding.statistics import FeatureStatistics
from .config import DataConfig

Element = Mapping[str, Any]
Inputs = Any
Preprocess = Callable[[Element], tuple[Inputs, Any, Any]]

MAX_CATEGORIES = 100_000  # of an integer code; above it an embedding is hardly what was meant


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericColumn:
    """A column to be standardised: `(value - mean) / std`; a missing value becomes the mean.

    `has_missing`: the train split has missing values, so the model is also told, in a column of its own, where.
    `missing_code`: the integer that the loader puts where an integer is missing; floats have NaN.
    """

    name: str
    mean: float
    std: float
    has_missing: bool
    elements: int = 1
    missing_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryColumn:
    """A column to be embedded. Id 0 is what the train split did not hold, or is missing.

    Either `vocabulary` (ids 1... in its order) or `smallest` (id = value - smallest + 1) is given.
    """

    name: str
    size: int
    vocabulary: tuple[str, ...] | None = None
    smallest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularPlan:
    """What becomes of each column."""

    numeric: tuple[NumericColumn, ...]
    categories: tuple[CategoryColumn, ...]

    @property
    def numeric_width(self) -> int:
        """Columns of the numeric input, indicators included."""
        return sum(c.elements * (2 if c.has_missing else 1) for c in self.numeric)


def feature_columns(manifest: Manifest, data: DataConfig) -> list[Feature]:
    """The columns a model may see: those included and not excluded, and never the label.

    Raises:
        ConfigError: an unknown column is named, the label is included, or nothing is left.
    """
    label = manifest.schema.label
    for key in ("include", "exclude", "categorical"):
        for name in getattr(data, key) or ():
            if name not in manifest.schema.names:
                close = difflib.get_close_matches(name, manifest.schema.names, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ConfigError(f"data.{key}: the dataset has no column {name!r}{hint}")
    if data.include is not None and label in data.include:
        raise ConfigError(f"data.include: {label!r} is the label; a model must not see it")
    wanted = set(manifest.schema.names if data.include is None else data.include) - set(data.exclude) - {label}
    columns = [feature for feature in manifest.schema.features if feature.name in wanted]
    if not columns:
        raise ConfigError("data.include and data.exclude leave no column to learn from")
    return columns


def plan_tabular(manifest: Manifest, data: DataConfig) -> TabularPlan:
    """Decide what becomes of each column.

    Raises:
        ConfigError: a column cannot be an input of a tabular model; the message says what to do with it.
    """
    statistics = manifest.split(data.train_split).statistics
    fill = fill_values(manifest, data)
    numeric, categories = [], []
    for feature in feature_columns(manifest, data):
        known = statistics[feature.name]
        if feature.name in data.categorical:
            categories.append(_code_column(feature, known))
        elif feature.dtype == "string":
            categories.append(_text_column(feature, known))
        else:
            numeric.append(_numeric_column(feature, known, fill.get(feature.name)))
    return TabularPlan(numeric=tuple(numeric), categories=tuple(categories))


def fill_values(manifest: Manifest, data: DataConfig) -> dict[str, Any]:
    """What the loader is to put where a value is missing, by column; floats need nothing, they get NaN.

    A text becomes the empty one. An integer becomes one that no record of any split holds, so that it can be told
    from all that do occur.

    Raises:
        ConfigError: a column has missing values that nothing can stand for.
    """
    used = {feature.name for feature in feature_columns(manifest, data)}
    result: dict[str, Any] = {}
    for feature in manifest.schema.features:
        known = [split.statistics[feature.name] for split in manifest.splits.values()]
        if any(s.nulls for s in known) and feature.elements is not None and not feature.dtype.startswith("float"):
            result[feature.name] = _fill_value(feature, known, feature.name in used)
    return result


def _fill_value(feature: Feature, known: Sequence[FeatureStatistics], is_used: bool) -> Any:
    if feature.dtype == "string":
        return ""
    if not is_used:
        return {"binary": b"", "bool": False}.get(feature.dtype, 0)
    if "int" in feature.dtype:
        limits = np.iinfo(feature.dtype)
        smallest = min((int(s.min) for s in known if s.min is not None), default=0)
        largest = max((int(s.max) for s in known if s.max is not None), default=0)
        if smallest > limits.min:
            return smallest - 1
        if largest < limits.max:
            return largest + 1
    raise ConfigError(
        f"column {feature.name!r} ({feature.dtype}) has missing values, and no {feature.dtype} is left to stand for "
        f"them; leave it out with data.exclude=[{feature.name}], or store it as a wider integer"
    )


def _numeric_column(feature: Feature, known: FeatureStatistics, missing_code: Any) -> NumericColumn:
    if not feature.numeric or feature.elements is None:
        raise ConfigError(
            f"column {feature.name!r} ({feature.dtype}, shape {feature.shape}) is no input of a tabular model; "
            f"leave it out with data.exclude=[{feature.name}]"
        )
    return NumericColumn(
        name=feature.name,
        mean=known.mean or 0.0,
        std=known.std or 1.0,  # a constant column stays 0
        has_missing=bool(known.nulls or known.nonfinite),
        elements=feature.elements,
        missing_code=missing_code,
    )


def _code_column(feature: Feature, known: FeatureStatistics) -> CategoryColumn:
    is_integer = feature.dtype == "bool" or "int" in feature.dtype
    if feature.dtype == "string":
        return _text_column(feature, known)
    if not is_integer or feature.shape != () or known.min is None or known.max is None:
        raise ConfigError(
            f"data.categorical: column {feature.name!r} must hold one integer or text per record, "
            f"got {feature.dtype} of shape {feature.shape} with {known.count} values"
        )
    size = int(known.max) - int(known.min) + 2
    if size > MAX_CATEGORIES:
        raise ConfigError(
            f"data.categorical: column {feature.name!r} spans {size - 1} codes ({int(known.min)} to {int(known.max)}), "
            f"at most {MAX_CATEGORIES} can be embedded"
        )
    return CategoryColumn(name=feature.name, size=size, smallest=int(known.min))


def _text_column(feature: Feature, known: FeatureStatistics) -> CategoryColumn:
    if known.vocabulary is None:
        raise ConfigError(
            f"column {feature.name!r} holds too many different texts to be embedded; "
            f"leave it out with data.exclude=[{feature.name}]"
        )
    return CategoryColumn(name=feature.name, size=len(known.vocabulary) + 1, vocabulary=known.vocabulary)


def label_and_weight(element: Element) -> tuple[Any, Any]:
    """`class_id` (int32 [batch]) and the sample weights (float32 [batch]; 1 where the loader gives none)."""
    class_id = element["class_id"]
    weight = element.get("sample_weight")
    return class_id, tf.ones_like(class_id, tf.float32) if weight is None else weight


def tabular_preprocess(plan: TabularPlan) -> Preprocess:
    """A function from a loader's element to the inputs of the tabular model.

    Its inputs are a dict of `numeric`, float32 [batch, plan.numeric_width]: the standardised columns, then the
    indicators of missing values; and `categories`, int32 [batch, len(plan.categories)]. One that is empty is left out.
    """
    lookups = [_lookup(column) for column in plan.categories]

    def preprocess(element: Element) -> tuple[Inputs, Any, Any]:
        inputs = {}
        if plan.numeric:
            inputs["numeric"] = _numeric(element, plan.numeric)
        if lookups:
            ids = [lookup(element[c.name]) for c, lookup in zip(plan.categories, lookups, strict=True)]
            inputs["categories"] = tf.stack(ids, axis=1)
        return inputs, *label_and_weight(element)

    return preprocess


def _numeric(element: Element, columns: Sequence[NumericColumn]) -> Any:
    """Standardise in float64: an int64 time stamp in microseconds has more digits than float32."""
    values = tf.concat([_as_float64(element[c.name], c) for c in columns], axis=1)
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


def _as_float64(values: Any, column: NumericColumn) -> Any:
    """[batch, elements], with NaN for what is missing."""
    numbers = tf.cast(values, tf.float64)
    if column.missing_code is not None:
        numbers = tf.where(tf.equal(values, column.missing_code), tf.constant(np.nan, tf.float64), numbers)
    return tf.reshape(numbers, [-1, column.elements])


def _lookup(column: CategoryColumn) -> Callable[[Any], Any]:
    if column.vocabulary is not None:
        return text_ids(column.vocabulary)

    def from_code(values: Any) -> Any:
        ids = tf.cast(values, tf.int64) - column.smallest + 1
        return tf.cast(tf.where((ids >= 1) & (ids < column.size), ids, tf.zeros_like(ids)), tf.int32)

    return from_code


def text_ids(vocabulary: Sequence[str]) -> Callable[[Any], Any]:
    """A function from texts, string [batch], to int32 [batch]: 1 + the place in the vocabulary, or 0 where not in it.

    By hash, then by comparing the text itself. `tf.lookup` tables are stateful, so under op determinism tf.data would
    run the whole preprocessing on one thread.

    >>> text_ids(["AA", "B6"])(tf.constant(["B6", "", "AA"])).numpy().tolist()
    [2, 0, 1]
    """
    if not vocabulary:
        return lambda values: tf.zeros_like(values, tf.int32)
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

"""The features that a loader delivers: those of the dataset, or the columns asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...sharding.common.validation import mapping, texts
from ...sharding.dataset.manifest import Manifest, ShardInfo
from ...sharding.errors import ConfigError
from ...sharding.prepare.column_names import check_columns, check_distinct
from ...sharding.schema import Feature, Schema
from .sample_columns import CLASS_ID, EXAMPLES, FRAMES, SAMPLE_KEY, SOFT_LABEL, WEIGHT

__all__ = ["check_fill", "delivered_schema", "describe_missing", "features_without_fill", "record_bytes"]


def check_fill(schema: Schema, fill: Mapping[str, Any] | None) -> dict[str, Any]:
    """What stands for missing values, by feature, as a value of the feature's dtype.

    Args:
        schema: of the dataset.
        fill: as the user gave it; None: nothing.

    Raises:
        ConfigError: a name is no feature's, or a value not of its dtype.
    """
    given = {} if fill is None else mapping("fill", fill, "values by feature")
    for name in given:
        if name not in schema.names:
            raise ConfigError(f"fill names {name!r}, which is no feature; they are: {', '.join(schema.names)}")
        if schema[name].elements is None:
            raise ConfigError(f"fill names {name!r}, which is of variable length: one that is missing is empty")
    return {name: _checked(schema[name], value) for name, value in given.items()}


def _checked(feature: Feature, value: Any) -> Any:
    try:
        checked = pa.scalar(value, feature.primitive).as_py()
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise _unfit(feature, value) from error
    whole = feature.numeric and not feature.dtype.startswith("float")
    if checked is None or (whole and checked != value):
        raise _unfit(feature, value)
    return checked


def _unfit(feature: Feature, value: Any) -> ConfigError:
    return ConfigError(f"fill of feature {feature.name!r} must be one {feature.dtype} value, got {value!r}")


def delivered_schema(manifest: Manifest, split: str, columns: Sequence[str] | None, fill: Mapping[str, Any]) -> Schema:
    """The features to deliver, in the order of `columns`; refuses what would fail in the midst of an epoch.

    Args:
        manifest: of the dataset.
        split: that is read.
        columns: names; None for all features.
        fill: what stands for missing values.

    Raises:
        ConfigError: says which column, and what to do.
    """
    schema = _select(manifest.schema, columns)
    for name in (CLASS_ID, SOFT_LABEL, WEIGHT, SAMPLE_KEY, EXAMPLES, FRAMES):
        if name in schema.names:
            raise ConfigError(
                f"a feature is called {name!r}, a name that the loader needs; leave it out of columns, or give it "
                f"another with: shard-dataset reshard --rename {name}=NAME"
            )
    if lacking := features_without_fill(manifest, split, schema, fill):
        wanted = ", ".join(f"{name!r}: ..." for name in lacking)
        raise ConfigError(f"{describe_missing(lacking, split)}: Loader(..., fill={{{wanted}}})")
    return schema


def features_without_fill(manifest: Manifest, split: str, schema: Schema, fill: Mapping[str, Any]) -> dict[str, int]:
    """Features whose missing values nothing stands for, and how many of them the split has.

    Args:
        manifest: of the dataset.
        split: that is read.
        schema: of the features to deliver. Floats that are missing are NaN, and lists empty: they need no value.
        fill: what stands for missing values, by feature.
    """
    statistics = manifest.split(split).statistics
    return {
        feature.name: nulls
        for feature in schema.features
        if not feature.dtype.startswith("float") and feature.elements is not None and feature.name not in fill
        if (nulls := statistics[feature.name].nulls)
    }


def describe_missing(lacking: Mapping[str, int], split: str) -> str:
    """Return the start of an error about features without fill values; the caller adds the remedy."""
    missing = " and ".join(f"feature {name!r} has {nulls} missing values" for name, nulls in lacking.items())
    return f"{missing} in split {split!r}; say what stands for them"


def record_bytes(shards: Sequence[ShardInfo], stored: Schema, schema: Schema) -> int:
    """About what a record that is delivered takes; at least 1.

    Args:
        shards: of the split, with all records.
        stored: schema of the dataset.
        schema: of the features delivered.
    """
    if schema.names != stored.names and all(f.numeric and f.elements is not None for f in schema.features):
        return max(1, sum(np.dtype(f.dtype).itemsize * (f.elements or 0) for f in schema.features))
    return max(1, sum(shard.bytes for shard in shards) // max(1, sum(shard.records for shard in shards)))


def _select(schema: Schema, columns: Sequence[str] | None) -> Schema:
    if columns is None:
        return schema
    names = texts("columns", columns, "at least one name")
    if not names:
        raise ConfigError(f"columns must be a list of at least one name, got {columns!r}")
    check_columns("columns", names, schema.names)
    check_distinct("columns", names)
    return schema.select(names)

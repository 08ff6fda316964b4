"""The features that a loader delivers, and the values that replace missing ones.

Tested in tests/pipeline/test_loader_options.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.common.validation import mapping, texts
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.prepare.column_names import check_columns, check_distinct
from ringfeed.sharding.schema import RESERVED_NAMES, Feature, Schema

from .sample_columns import EXAMPLES, FRAMES, mask_name


def check_fill(schema: Schema, fill: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the replacements of missing values by feature, converted to the dtype of the feature.

    Args:
        fill: option of the loader; None for no replacements.

    Raises:
        ConfigError: a name is no feature, or a value does not fit its dtype.
    """
    given = {} if fill is None else mapping("fill", fill, "values by feature")
    for name in given:
        if name not in schema.names:
            raise ConfigError(f"fill names {name!r}, which is no feature; they are: {', '.join(schema.names)}")
        if schema[name].elements is None:
            raise ConfigError(f"fill names {name!r}, which has variable length: if missing, it is empty")
    return {name: _converted(schema[name], value) for name, value in given.items()}


def _converted(feature: Feature, value: Any) -> Any:
    try:
        converted = pa.scalar(value, feature.primitive).as_py()
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise _fill_error(feature, value) from error
    integral = feature.numeric and not feature.dtype.startswith("float")
    if converted is None or (integral and converted != value):
        raise _fill_error(feature, value)
    return converted


def mask_fill(schema: Schema, masks: Sequence[str]) -> dict[str, Any]:
    """Return what is delivered in place of missing values that a mask marks, by feature: NaN, 0, or empty.

    Args:
        masks: names of the features.

    Raises:
        ConfigError: a name is no feature.
    """
    check_columns("masks", masks, schema.names)
    check_distinct("masks", masks)
    empty = {"string": "", "binary": b"", "bool": False}
    own = [schema[name] for name in masks]
    return {
        feature.name: float("nan") if feature.dtype.startswith("float") else empty.get(feature.dtype, 0)
        for feature in own
        if feature.elements is not None
    }


def _fill_error(feature: Feature, value: Any) -> ConfigError:
    return ConfigError(f"fill of feature {feature.name!r} must be one {feature.dtype} value, got {value!r}")


def delivered_schema(
    manifest: Manifest, split: str, columns: Sequence[str] | None, fill: Mapping[str, Any], masks: Sequence[str] = ()
) -> Schema:
    """Return the features to deliver, in the order of `columns`. Raises now what would fail in the middle of an epoch.

    Args:
        split: name of the split.
        columns: names of the features; None for all.
        fill: replacements of missing values, by feature.
        masks: features whose missing values are marked.

    Raises:
        ConfigError: a column is unknown, has a reserved name, or has missing values without a replacement; or a mask is
            of a feature that is not delivered.
    """
    schema = _select(manifest.schema, columns)
    for name in (*RESERVED_NAMES, EXAMPLES, FRAMES, *map(mask_name, masks)):
        if name in schema.names:
            raise ConfigError(
                f"a feature is called {name!r}, a name reserved for the loader; leave it out of columns, or rename it "
                f"with: shard-dataset reshard --rename {name}=NAME"
            )
    check_columns("masks", masks, schema.names)
    if lacking := features_without_fill(manifest, split, schema, fill):
        wanted = ", ".join(f"{name!r}: ..." for name in lacking)
        raise ConfigError(f"{describe_missing(lacking, split)}: Loader(..., fill={{{wanted}}})")
    return schema


def features_without_fill(manifest: Manifest, split: str, schema: Schema, fill: Mapping[str, Any]) -> dict[str, int]:
    """Return the features with missing values that have no replacement, and the number of their missing values.

    Args:
        split: name of the split.
        schema: delivered features. Missing floats are NaN and missing lists are empty, so they need no replacement.
        fill: replacements of missing values, by feature.
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
    return f"{missing} in split {split!r}; choose a value to replace them"


def record_bytes(shards: Sequence[ShardInfo], stored: Schema, schema: Schema) -> int:
    """Return the approximate size of a delivered record, in bytes; at least 1.

    Args:
        shards: shards of the split, with all their records.
        stored: schema of the dataset.
        schema: delivered features.
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

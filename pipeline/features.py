"""The features that a loader delivers: those of the dataset, or the columns asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..sharding.errors import ConfigError
from ..sharding.manifest import Manifest, ShardInfo
from ..sharding.prepare.columns import check_columns, check_distinct
from ..sharding.schema import Feature, Schema
from .arguments import mapping, texts
from .columns import CLASS_ID, WEIGHT
from .frames import EXAMPLES, FRAMES
from .keys import SAMPLE_KEY

__all__ = ["checked_fill", "delivered_schema", "record_bytes"]


def checked_fill(schema: Schema, fill: Mapping[str, Any] | None) -> dict[str, Any]:
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
    for name in (CLASS_ID, WEIGHT, SAMPLE_KEY, EXAMPLES, FRAMES):
        if name in schema.names:
            raise ConfigError(f"a feature is called {name!r}, a name that the loader needs; rename it and build again")
    for feature in schema.features:
        statistics = manifest.split(split).statistics[feature.name]
        needs_fill = not feature.dtype.startswith("float") and feature.elements is not None
        if statistics.nulls and needs_fill and feature.name not in fill:
            raise ConfigError(
                f"feature {feature.name!r} has {statistics.nulls} missing values in split {split!r}; say what stands "
                f"for them: Loader(..., fill={{{feature.name!r}: ...}})"
            )
    return schema


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

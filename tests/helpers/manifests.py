"""Manifests of datasets that nobody built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringfeed.sharding.dataset.manifest import Manifest, SplitInfo
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.schema import Feature, Schema


def manifest_of(
    features: Sequence[Feature],
    statistics: Mapping[str, FeatureStatistics],
    *,
    label: str | None,
    classes: Mapping[Any, int],
) -> Manifest:
    """One split, with so many records of each class."""
    counts = tuple(classes.values())
    split = SplitInfo(records=sum(counts), shards=1, class_counts=counts, statistics=statistics)
    return Manifest(
        shard_format="tfrecord",
        compression="none",
        schema=Schema(features=tuple(features), label=label),
        classes=tuple(classes),
        splits={"train": split},
        layout=None,
        seed=0,
        source={},
        options={},
        writer="",
        shards_checksum="",
        shards_bytes=0,
    )

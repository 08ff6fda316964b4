"""Manifests of datasets that nobody built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo, SplitInfo
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.formats.example_encode import ColumnLayout, RecordLayout
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.storage.file_contents import FileInfo


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


SHARD = ShardInfo(
    split="train", path="train-00000-of-00001.tfrecord", bytes=10, records=2, checksum="c", class_counts=(1, 1),
    index_path="_ringfeed/train-00000-of-00001.index", index_bytes=5, index_checksum="d",
)  # fmt: skip
MANIFEST = Manifest(
    shard_format="tfrecord",
    compression="none",
    schema=Schema(
        features=(Feature(name="größe", dtype="float32", shape=(2,)), Feature(name="y", dtype="string")), label="y"
    ),
    classes=("", "ü"),
    splits={
        "train": SplitInfo(
            records=2,
            shards=1,
            class_counts=(1, 1),
            statistics={
                "größe": FeatureStatistics(count=4, mean=0.1, std=2.0, min=-1e-300, max=1.7e308),
                "y": FeatureStatistics(count=2, vocabulary=("", "ü")),
            },
        )
    },
    layout=RecordLayout(example_bytes=9, columns=(ColumnLayout(name="größe", offset=1, item_bytes=4),)),
    seed=2**63,
    source={"url": "s3://b/x.csv", "fingerprint": "f"},
    options={"label": "y"},
    writer="ringfeed 0.1.0",
    shards_checksum="e",
    shards_bytes=7,
    files={"features.json": FileInfo(bytes=3, checksum="g")},
)

"""The manifest of several datasets as one, as a mixture trains on them: their features, classes and statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import zip_longest

import numpy as np

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Feature, Schema

from .manifest import Manifest, SplitInfo
from .statistics import merge_statistics


def combined_manifest(manifests: Mapping[str, Manifest]) -> Manifest:
    """Return one manifest for several datasets with the same features.

    It has the classes of all datasets, in the order they first appear. A split has the records, class
    counts and statistics of that split of all datasets that have it. Its `shards_checksum` and `shards_rows` are of the
    names of the datasets and their checksums and identities; it has no shard table.

    Raises:
        ConfigError: features or labels differ; the message names two datasets, and what they have.
    """
    first, names = next(iter(manifests.values())), list(manifests)
    check_same_features({name: manifest.schema for name, manifest in manifests.items()})
    for name, manifest in manifests.items():
        if manifest.schema.label != first.schema.label:
            what = f"{names[0]!r} has {first.schema.label!r}, {name!r} has {manifest.schema.label!r}"
            raise ConfigError(f"the datasets of a mixture must have the same label: {what}")
    classes = tuple(dict.fromkeys(value for manifest in manifests.values() for value in manifest.classes))
    splits = dict.fromkeys(split for manifest in manifests.values() for split in manifest.splits)
    shards, rows = (
        checksum(json.dumps([[name, getattr(manifest, key)] for name, manifest in manifests.items()]).encode())
        for key in ("shards_checksum", "identity")
    )
    return Manifest(
        shard_format=first.shard_format,
        compression=first.compression,
        schema=first.schema,
        classes=classes,
        splits={split: _combined_split(split, list(manifests.values()), classes) for split in splits},
        layout=None,
        seed=first.seed,
        source={"url": "", "fingerprint": ""},
        options={},
        writer=first.writer,
        shards_checksum=shards,
        shards_rows=rows,
    )


def check_same_features(schemas: Mapping[str, Schema]) -> None:
    """Refuse datasets with different features (a ConfigError, which names two datasets and the first difference)."""
    (first, schema), *others = schemas.items()
    for name, other in others:
        for mine, theirs in zip_longest(schema.features, other.features):
            if mine != theirs:
                what = f"{first!r} has {_described(mine)}, {name!r} has {_described(theirs)}"
                raise ConfigError(f"the datasets of a mixture must have the same features in the same order: {what}")


def _described(feature: Feature | None) -> str:
    return "no more features" if feature is None else f"{feature.name!r} of {feature.dtype}{list(feature.shape or ())}"


def _combined_split(name: str, manifests: Sequence[Manifest], classes: Sequence[object]) -> SplitInfo:
    numbers = {value: number for number, value in enumerate(classes)}
    having = [manifest for manifest in manifests if name in manifest.splits]
    splits = [manifest.splits[name] for manifest in having]
    counts = np.zeros(len(classes), np.int64)
    for manifest, split in zip(having, splits, strict=True):
        counts[[numbers[value] for value in manifest.classes]] += np.asarray(split.class_counts, np.int64)
    return SplitInfo(
        records=sum(split.records for split in splits),
        shards=sum(split.shards for split in splits),
        class_counts=ClassCounts(counts),
        statistics={
            feature: reduce(merge_statistics, (split.statistics[feature] for split in splits))
            for feature in splits[0].statistics
        },
    )

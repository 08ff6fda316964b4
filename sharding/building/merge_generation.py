"""Merge the manifest of a dataset with the manifest of appended shards: pure functions.

Tested in tests/sharding/building/test_append.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ringfeed.sharding.compute.class_counts import pad_counts
from ringfeed.sharding.dataset.dataset import Dataset
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo, SplitInfo
from ringfeed.sharding.dataset.statistics import merge_statistics
from ringfeed.sharding.dataset.tfds_files import is_tfds_file


def merge_generation(base: Dataset, added: Manifest, shards: Sequence[ShardInfo]) -> tuple[Manifest, list[ShardInfo]]:
    """The manifest and the shards of a dataset with one more generation; not yet sealed.

    Args:
        added: manifest of the new shards alone. Its classes begin with those of `base`, its schema, format and
            compression are the same, and its layout is that of `base` or None.
    """
    manifest = base.manifest
    classes = len(added.classes)
    kept = added.layout == manifest.layout
    before = (entry if kept else replace(entry, layout=manifest.layout) for entry in manifest.all_generations)
    generations = (*before, *added.all_generations)
    merged = replace(
        manifest,
        classes=added.classes,
        splits=_merge_splits(manifest.splits, added.splits, classes),
        layout=manifest.layout if kept else None,
        shards_path=manifest.names.table(len(generations) - 1),
        files={path: info for path, info in manifest.files.items() if not is_tfds_file(path)} | dict(added.files),
        lost=tuple(
            replace(entry, class_counts=tuple(pad_counts(entry.class_counts, classes))) for entry in manifest.lost
        ),
        generations=generations,
    )
    old = [replace(shard, class_counts=pad_counts(shard.class_counts, classes)) for shard in base.shards]
    return merged, [*old, *shards]


def _merge_splits(old: Mapping[str, SplitInfo], new: Mapping[str, SplitInfo], classes: int) -> dict[str, SplitInfo]:
    result = {name: replace(split, class_counts=pad_counts(split.class_counts, classes)) for name, split in old.items()}
    for name, more in new.items():
        before = result.get(name)
        result[name] = more if before is None else _sum(before, more)
    return result


def _sum(a: SplitInfo, b: SplitInfo) -> SplitInfo:
    return SplitInfo(
        records=a.records + b.records,
        shards=a.shards + b.shards,
        class_counts=tuple(x + y for x, y in zip(a.class_counts, b.class_counts, strict=True)),
        statistics={name: merge_statistics(of_a, b.statistics[name]) for name, of_a in a.statistics.items()},
    )

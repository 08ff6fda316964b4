"""The shards that a dataset held before an append, and the folder of each.

What an append writes depends on them if it keeps groups together or drops duplicates. While a repair rebuilds shards,
those damaged in the dataset's folder are read from another one.
Tested in tests/sharding/repairing/test_source_matching.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringfeed.sharding.storage.storage import Storage

from .dataset import Dataset
from .manifest import Manifest, ShardInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierShards:
    """The shards of a dataset, or of its first generations."""

    storage: Storage  # folder of the dataset
    manifest: Manifest  # manifest of the dataset, needed to read the shards
    shards: tuple[ShardInfo, ...]  # the shards as they were written
    # Folder of a shard's two files, by path of the shard, where it is not the dataset's
    folder_overrides: Mapping[str, Storage] = field(default_factory=dict)
    # Whether the new records come from the source of earlier ones, so that none is a duplicate
    same_source: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> EarlierShards:
        """Return all shards of a dataset."""
        return cls(storage=dataset.storage, manifest=dataset.manifest, shards=dataset.shards)

    def folder(self, shard: ShardInfo) -> Storage:
        """Return the folder that holds a shard."""
        return self.folder_overrides.get(shard.path, self.storage)

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
    """The shards of a dataset, or of its first generations.

    Attributes:
        storage: folder of the dataset.
        manifest: manifest of the dataset, needed to read the shards.
        shards: the shards as they were written.
        folder_overrides: folder of a shard's two files, by path of the shard, where it is not the dataset's.
        same_source: whether the new records come from the source of earlier ones, so that none is a duplicate.
    """

    storage: Storage
    manifest: Manifest
    shards: tuple[ShardInfo, ...]
    folder_overrides: Mapping[str, Storage] = field(default_factory=dict)
    same_source: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> EarlierShards:
        """Return all shards of a dataset."""
        return cls(storage=dataset.storage, manifest=dataset.manifest, shards=dataset.shards)

    def folder(self, shard: ShardInfo) -> Storage:
        """Return the folder that holds a shard."""
        return self.folder_overrides.get(shard.path, self.storage)

"""Where the records lie that were there before those of an append, shard by shard.

What is appended depends on them where groups stay together or doubles are passed over. While shards are made again,
those that are damaged in the dataset's folder lie in another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..storage.storage import Storage
from .dataset import Dataset
from .manifest import Manifest, ShardInfo

__all__ = ["EarlierShards"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierShards:
    """The shards of a dataset, or of the first of its generations.

    Attributes:
        storage: of the dataset.
        manifest: of the dataset, by which shards are read.
        shards: as they were written.
        elsewhere: by the path of a shard, the folder that holds its two files, if it is not that of the dataset.
        again: whether the records to come have the source of records that are there, so that none is their double.
    """

    storage: Storage
    manifest: Manifest
    shards: tuple[ShardInfo, ...]
    folder_overrides: Mapping[str, Storage] = field(default_factory=dict)
    same_source: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> EarlierShards:
        """All of a dataset, as it lies."""
        return cls(storage=dataset.storage, manifest=dataset.manifest, shards=dataset.shards)

    def folder(self, shard: ShardInfo) -> Storage:
        """The folder that holds a shard."""
        return self.folder_overrides.get(shard.path, self.storage)

"""Read the groups that a dataset holds and the split of each, so that an append puts no group in two splits.

They are read from the shards, decoding only the group column. No file beside the data records them, so this works for
every dataset that was built with ``--group-by`` and stores the column.
Tested in tests/sharding/building/test_append_kinds.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrays import Int32, Int64
from ringfeed.sharding.dataset.dataset import EarlierShards
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.dataset.shard_records import read_shard
from ringfeed.sharding.engines.executors import run_tasks
from ringfeed.sharding.errors import CorruptionError, DatasetError
from ringfeed.sharding.storage.storage import Storage

_SHARDS_AT_ONCE = 64  # whose groups are merged together


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingGroups:
    """The groups of a dataset and the contents of its splits."""

    values: pa.Array  # distinct values of the group column
    splits: Int32  # split of each group, as an index into the names of the splits, int32 [groups]
    # Records of each class in each split as they were written, int64 [splits, classes]
    class_counts: Int64

    def splits_of(self, values: pa.Array) -> Int32:
        """The split of each group, or -1 if the dataset does not hold it; int32 [values]."""
        places = pc.fill_null(pc.index_in(values, value_set=self.values), -1).to_numpy()
        splits: Int32 = np.append(self.splits, np.int32(-1))[places]
        return splits


def read_existing_groups(
    earlier: EarlierShards, base: Manifest, column: str, names: list[str], pool: Executor
) -> ExistingGroups:
    """Read the groups of a dataset, or of its first generations.

    Args:
        base: manifest of the dataset, as of those generations.
        names: names of the splits, including all splits of the dataset.

    Raises:
        DatasetError: a group is in two splits, or a shard is damaged.
    """
    shards = earlier.shards
    values = pa.array([], base.schema[column].primitive)
    splits = np.empty(0, np.int32)
    for start in range(0, len(shards), _SHARDS_AT_ONCE):
        some = shards[start : start + _SHARDS_AT_ONCE]
        groups = _read(earlier, some, column, pool)
        split_numbers = [np.full(len(f), names.index(s.split), np.int32) for f, s in zip(groups, some, strict=True)]
        encoded = pa.chunked_array([values, *groups]).dictionary_encode().combine_chunks()
        codes, all_splits = encoded.indices.to_numpy(), np.concatenate([splits, *split_numbers])
        values, splits = encoded.dictionary, np.empty(len(encoded.dictionary), np.int32)
        splits[codes] = all_splits
        if (conflicts := np.flatnonzero(splits[codes] != all_splits)).size:
            group = values[int(codes[conflicts[0]])].as_py()
            raise DatasetError(
                f"{earlier.storage.url} has records of {column}={group!r} in two splits, so --group-by {column} no "
                "longer holds; rebuild the dataset from all records"
            )
    written = base.written  # counts records that a repair left out, as the builds did when they split them
    class_counts = np.array([written.get(name, (0,) * len(base.classes)) for name in names], np.int64)
    return ExistingGroups(values=values, splits=splits, class_counts=class_counts)


def _read(earlier: EarlierShards, shards: Sequence[ShardInfo], column: str, pool: Executor) -> list[pa.Array]:
    jobs = [(groups_in_shard, (earlier.folder(shard), earlier.manifest, shard, column)) for shard in shards]
    try:
        return run_tasks(pool, jobs)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}; the splits of the groups are read from the existing shards, so repair them first: "
            f"shard-dataset repair {earlier.storage.locate()}"
        ) from error


def groups_in_shard(storage: Storage, manifest: Manifest, shard: ShardInfo, column: str) -> pa.Array:
    """The distinct values of a column in a shard."""
    values = [batch.column(column).unique() for batch in read_shard(storage, manifest, shard, [column])]
    return pa.chunked_array(values, manifest.schema[column].primitive).unique()

"""The groups that a dataset holds already, and the split of each: what is appended must not put one in two splits.

They are read from the shards, of which only the column of the groups is decoded. Nothing of it is written down beside
the data, so it holds for every dataset that was built with ``--group-by`` and stores the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..dataset.earlier_shards import EarlierShards
from ..dataset.manifest import Manifest, ShardInfo
from ..dataset.shard_records import read_shard
from ..engines.executors import run_tasks
from ..errors import CorruptionError, DatasetError
from ..storage.storage import Storage

__all__ = ["ExistingGroups", "groups_in_shard", "read_existing_groups"]

_AT_ONCE = 64  # shards whose groups are united at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingGroups:
    """Groups, and what is in the splits.

    Attributes:
        values: of the column that names the groups, each once.
        splits: of each, as a place in the order of the splits' names; int32 [groups].
        class_counts: records of each class in each split, as they were written; int64 [splits, classes].
    """

    values: pa.Array
    splits: npt.NDArray[np.int32]
    class_counts: npt.NDArray[np.int64]

    def splits_of(self, values: pa.Array) -> npt.NDArray[np.int32]:
        """The split of each group, -1 of one that is not there; int32 [values]."""
        found = pc.fill_null(pc.index_in(values, value_set=self.values), -1).to_numpy()
        splits: npt.NDArray[np.int32] = np.append(self.splits, np.int32(-1))[found]
        return splits


def read_existing_groups(
    earlier: EarlierShards, base: Manifest, column: str, names: list[str], pool: Executor
) -> ExistingGroups:
    """The groups in a dataset, or in the first of its generations.

    Args:
        earlier: its shards.
        base: what it says of itself, or said when it had fewer generations.
        column: that names the groups.
        names: of the splits, all those of the dataset among them.
        pool: where to read the shards.

    Raises:
        DatasetError: a group is in two splits, or a shard is damaged.
    """
    shards = earlier.shards
    values = pa.array([], base.schema[column].primitive)
    splits = np.empty(0, np.int32)
    for start in range(0, len(shards), _AT_ONCE):
        some = shards[start : start + _AT_ONCE]
        found = _read(earlier, some, column, pool)
        mine = [np.full(len(f), names.index(s.split), np.int32) for f, s in zip(found, some, strict=True)]
        encoded = pa.chunked_array([values, *found]).dictionary_encode().combine_chunks()
        codes, all_splits = encoded.indices.to_numpy(), np.concatenate([splits, *mine])
        values, splits = encoded.dictionary, np.empty(len(encoded.dictionary), np.int32)
        splits[codes] = all_splits
        if (twice := np.flatnonzero(splits[codes] != all_splits)).size:
            group = values[int(codes[twice[0]])].as_py()
            raise DatasetError(
                f"{earlier.storage.url} has records of {column}={group!r} in two splits: it is not divided by "
                f"--group-by {column} any more; build all records anew"
            )
    written = base.written  # a repair may have left records out: what was decided then counted them
    class_counts = np.array([written.get(name, (0,) * len(base.classes)) for name in names], np.int64)
    return ExistingGroups(values=values, splits=splits, class_counts=class_counts)


def _read(earlier: EarlierShards, shards: Sequence[ShardInfo], column: str, pool: Executor) -> list[pa.Array]:
    jobs = [(groups_in_shard, (earlier.folder(shard), earlier.manifest, shard, column)) for shard in shards]
    try:
        return run_tasks(pool, jobs)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}; which split each group is in, is read from the shards that are there: repair them first with: "
            f"shard-dataset repair {earlier.storage.locate()}"
        ) from error


def groups_in_shard(storage: Storage, manifest: Manifest, shard: ShardInfo, column: str) -> pa.Array:
    """The distinct values of a column in a shard."""
    found = [batch.column(column).unique() for batch in read_shard(storage, manifest, shard, [column])]
    return pa.chunked_array(found, manifest.schema[column].primitive).unique()

"""Keep the records that windows borrowed for classes they lack, for the next windows that lack the same classes.

If a class has fewer records than there are windows, many windows lack it, and most of them borrow from the same shards.
Fetching a whole shard each time for a few of its records would read most of the dataset again. So the records that a
shard will probably lend later are kept as well, while there is room.

With thousands of classes, a window lacks most of them and borrows a record or two of each. So records lie in a few
blocks, described by arrays; nothing here loops over classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.pipeline.decode.columns import Columns, compact_columns, concat_columns, take_columns, views_of
from ringfeed.pipeline.select.sample_columns import CLASS_ID
from ringfeed.sharding.compute.kernels import VIEW
from ringfeed.sharding.formats.parquet_pages import FileVectors

Int64 = npt.NDArray[np.int64]
_LIMIT_BYTES = 32 << 20
_LARGEST_SHARE = 4  # records of one class in one shard may take this fraction (1/4) of the limit
_SLACK = 8  # eviction copies all records into one block, so it waits until they exceed the limit by this fraction (1/8)
_CLASS_BITS = 32  # of a key
_KEY, _START, _ROWS, _BYTES, _USED = range(5)  # of `_Block.runs`: shard and class, first row, rows, bytes, last use
_NEVER = 0
_OFFSET_BYTES = 8  # each string and list has one


@dataclass(frozen=True, slots=True)
class _Block:
    """Records that lie together."""

    columns: Columns
    runs: Int64  # runs of adjacent records, each of one class in one shard, sorted by key; int64 [5, runs]

    def find(self, keys: Int64) -> tuple[Int64, Int64]:
        """Return the positions of the keys that have a run here, and the numbers of these runs."""
        runs = np.searchsorted(self.runs[_KEY], keys)
        runs[runs == self.runs.shape[1]] = 0
        matches = np.flatnonzero(self.runs[_KEY, runs] == keys)
        return matches, runs[matches]


class BorrowedRecords:
    """A least-recently-used cache of borrowed records, by shard and class. For one thread at a time.

    Args:
        limit_bytes: most bytes to keep; may be exceeded by an eighth for a while.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._blocks: list[_Block] = []  # each at least twice as long as the next
        self._held_bytes = 0
        self._clock = _NEVER + 1

    def get(self, shards: Int64, class_ids: Int64) -> Columns | None:
        """Return the kept records of (shard, class) pairs in any order; None if there are none.

        Args:
            shards: shard of each pair, [pairs].
            class_ids: class of each pair, ascending, [pairs].
        """
        keys, times = _keys(shards, class_ids), self._times(len(class_ids))
        order = np.argsort(keys)
        keys, times = keys[order], times[order]
        parts = []
        for block in self._blocks:
            matches, runs = block.find(keys)
            if len(matches):
                block.runs[_USED, runs] = times[matches]
                parts.append(take_columns(block.columns, _rows_of(block.runs[:, runs])))
        return compact_columns(concat_columns(parts)) if parts else None

    def keep(self, shard: int, columns: Columns, wanted: Int64, spare: Int64) -> Columns:
        """Keep and return copies of the records that a shard lends, without references to the shard.

        Args:
            shard: lending shard.
            wanted: rows to lend, class after class.
            spare: rows to keep for later, class after class: only while there is room, and the first to be evicted.
        """
        runs, small = self._runs(shard, columns, wanted)
        runs[_USED] = self._times(len(small))
        lent = self._add(columns, wanted, runs[:, small])
        if not small.all():
            lent = concat_columns([lent, take_columns(columns, wanted[_rows_of(runs[:, ~small])])])
        if len(spare) and self._held_bytes < self._limit_bytes:
            runs, small = self._runs(shard, columns, spare)
            for block in self._blocks:
                small[block.find(runs[_KEY])[0]] = False
            runs = runs[:, small]
            self._add(columns, spare, runs[:, np.cumsum(runs[_BYTES]) <= self._limit_bytes - self._held_bytes])
        return lent

    def _runs(self, shard: int, columns: Columns, rows: Int64) -> tuple[Int64, npt.NDArray[np.bool_]]:
        """Return the runs among rows of a shard, sorted by class, and whether each is small enough to keep."""
        class_ids = columns[CLASS_ID][rows]
        starts = np.flatnonzero(np.diff(class_ids, prepend=-1))
        runs = np.empty((5, len(starts)), np.int64)
        runs[_KEY] = _keys(shard, class_ids[starts])
        runs[_START] = starts
        runs[_ROWS] = np.diff(starts, append=len(class_ids))
        runs[_BYTES] = np.add.reduceat(_bytes_of_rows(columns, rows), starts) if len(starts) else 0
        runs[_USED] = _NEVER
        return runs, runs[_BYTES] <= self._limit_bytes // _LARGEST_SHARE

    def _add(self, columns: Columns, rows: Int64, runs: Int64) -> Columns:
        """Keep and return the records of runs among these rows of the columns."""
        added = compact_columns(take_columns(columns, rows if runs[_ROWS].sum() == len(rows) else rows[_rows_of(runs)]))
        if runs.shape[1]:
            self._blocks.append(_Block(added, _packed(runs)))
            self._held_bytes += int(runs[_BYTES].sum())
            while len(self._blocks) > 1 and _length(self._blocks[-2]) < 2 * _length(self._blocks[-1]):
                self._blocks[-2:] = [_joined(self._blocks[-2:])]
            if self._held_bytes > self._limit_bytes + self._limit_bytes // _SLACK:
                self._evict()
        return added

    def _evict(self) -> None:
        used, sizes = (np.concatenate([block.runs[row] for block in self._blocks]) for row in (_USED, _BYTES))
        latest = np.argsort(-used, kind="stable")
        kept = np.zeros(len(used), np.bool_)
        kept[latest[np.cumsum(sizes[latest]) <= self._limit_bytes]] = True
        ends = np.cumsum([block.runs.shape[1] for block in self._blocks])
        parts = []
        for block, own in zip(self._blocks, np.split(kept, ends[:-1]), strict=True):
            runs = block.runs[:, own]
            columns = take_columns(block.columns, _rows_of(runs))
            parts.append(_Block(columns, _packed(runs)))
        self._blocks = [_joined(parts)]
        self._held_bytes = int(sizes[kept].sum())

    def _times(self, count: int) -> Int64:
        """Advance the clock, and return a time for each of the pairs asked for."""
        self._clock += count
        return np.arange(self._clock - count, self._clock)


def _keys(shards: Int64 | int, class_ids: npt.NDArray[np.integer]) -> Int64:
    keys: Int64 = np.int64(1 << _CLASS_BITS) * shards + class_ids
    return keys


def _rows_of(runs: Int64) -> Int64:
    """Return the rows of runs, run after run."""
    ends = np.cumsum(runs[_ROWS])
    rows: Int64 = np.arange(runs[_ROWS].sum()) + np.repeat(runs[_START] - ends + runs[_ROWS], runs[_ROWS])
    return rows


def _packed(runs: Int64) -> Int64:
    """Set the starts of runs that now lie one after the other."""
    runs[_START] = np.cumsum(runs[_ROWS]) - runs[_ROWS]
    return runs


def _joined(blocks: Sequence[_Block]) -> _Block:
    """Join blocks whose columns hold the records of their runs and no others."""
    runs = np.concatenate([block.runs for block in blocks], axis=1)
    lengths = [_length(block) for block in blocks]
    runs[_START] += np.repeat(np.cumsum(lengths) - lengths, [block.runs.shape[1] for block in blocks])
    columns = compact_columns(concat_columns([block.columns for block in blocks]))
    return _Block(columns, runs[:, np.argsort(runs[_KEY], kind="stable")])


def _length(block: _Block) -> int:
    return len(block.columns[CLASS_ID])


def _bytes_of_rows(columns: Columns, rows: Int64) -> Int64:
    """Return the memory that each of the rows takes, in all columns."""
    sizes = np.zeros(len(rows), np.int64)
    for values in columns.values():
        if isinstance(values, np.ndarray | FileVectors):
            shape = values.shape if isinstance(values, FileVectors) else values.shape[1:]
            sizes += prod(shape) * values.dtype.itemsize
        else:
            sizes += _bytes_of_values(values)[rows]
    return sizes


def _bytes_of_values(values: pa.Array) -> Int64:
    sizes: Int64
    if pa.types.is_binary_view(values.type):
        sizes = VIEW.itemsize + views_of(values)["length"].astype(np.int64)
    elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        ends = np.cumsum(pc.list_value_length(values).to_numpy(zero_copy_only=False))
        before = np.append(0, np.cumsum(_bytes_of_values(values.flatten())))
        sizes = _OFFSET_BYTES + np.diff(before[ends], prepend=0)
    elif pa.types.is_primitive(values.type):
        sizes = np.full(len(values), -(-values.type.bit_width // 8))
    else:
        sizes = _OFFSET_BYTES + pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes

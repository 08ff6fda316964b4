"""Records that shards have lent to windows without their class, kept for the next window that lacks it.

A class with fewer records than there are windows is lacked by many of them, which mostly borrow of the same shards: to
fetch a whole shard each time, for a few of its records, would read most of the dataset again. So what a shard is likely
to be asked for later is kept too, while there is room.

Of thousands of classes a window lacks most, and borrows a record or two of each. Records lie in a few blocks, whose
runs are arrays: nothing here loops over classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...sharding.compute.kernels import VIEW
from ...sharding.formats.parquet_pages import InPlace
from ..decode.columns import Columns, compact_columns, concat_columns, take_columns, views_of
from ..select.sample_columns import CLASS_ID

__all__ = ["BorrowedRecords"]

Int64 = npt.NDArray[np.int64]
_LIMIT_BYTES = 32 << 20
_LARGEST_SHARE = 4  # of the room, that the records of one class in one shard may take
_SLACK = 8  # of the room, that is taken beyond it before some is made: that puts all records into one new block
_CLASS_BITS = 32  # of a key
_KEY, _START, _ROWS, _BYTES, _USED = range(5)  # of a run: shard and class, first row, rows, bytes, last time asked for
_NEVER = 0
_OFFSET_BYTES = 4  # of a string or a list


@dataclass(frozen=True, slots=True)
class _Block:
    """Records that lie together.

    Attributes:
        columns: of the records.
        runs: of the records of a class in a shard each, which lie one after the other; by key, int64 [5, runs].
    """

    columns: Columns
    runs: Int64

    def find(self, keys: Int64) -> tuple[Int64, Int64]:
        """Which of the keys have a run here, and the numbers of these runs."""
        runs = np.searchsorted(self.runs[_KEY], keys)
        runs[runs == self.runs.shape[1]] = 0
        found = np.flatnonzero(self.runs[_KEY, runs] == keys)
        return found, runs[found]


class BorrowedRecords:
    """The records of a class in a shard, as long as there is room. For one thread at a time.

    Args:
        limit_bytes: of them all, and an eighth more for a while; those that were not asked for longest make room.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._blocks: list[_Block] = []  # each at least twice as long as the next
        self._held_bytes = 0
        self._clock = _NEVER + 1

    def get(self, shards: Int64, class_ids: Int64) -> Columns | None:
        """The records of classes in shards, of those pairs that are kept, in any order; None if none is.

        Args:
            shards: one for each class, [classes].
            class_ids: ascending, [classes].
        """
        keys, times = _keys(shards, class_ids), self._times(len(class_ids))
        order = np.argsort(keys)
        keys, times = keys[order], times[order]
        parts = []
        for block in self._blocks:
            found, runs = block.find(keys)
            if len(found):
                block.runs[_USED, runs] = times[found]
                parts.append(take_columns(block.columns, _rows_of(block.runs[:, runs])))
        return compact_columns(concat_columns(parts)) if parts else None

    def keep(self, shard: int, columns: Columns, asked: Int64, spare: Int64) -> Columns:
        """The records that a shard lends; what is kept holds nothing else of it.

        Args:
            shard: that lends.
            columns: of all its records.
            asked: rows of those that it lends, class after class.
            spare: likewise, of others: kept while there is room that nobody else needs, and the first to make room.
        """
        runs, small = self._runs(shard, columns, asked)
        runs[_USED] = self._times(len(small))
        lent = self._add(columns, asked, runs[:, small])
        if not small.all():
            lent = concat_columns([lent, take_columns(columns, asked[_rows_of(runs[:, ~small])])])
        if len(spare) and self._held_bytes < self._limit_bytes:
            runs, small = self._runs(shard, columns, spare)
            for block in self._blocks:
                small[block.find(runs[_KEY])[0]] = False
            runs = runs[:, small]
            self._add(columns, spare, runs[:, np.cumsum(runs[_BYTES]) <= self._limit_bytes - self._held_bytes])
        return lent

    def _runs(self, shard: int, columns: Columns, rows: Int64) -> tuple[Int64, npt.NDArray[np.bool_]]:
        """The runs among rows of a shard that are in order of their classes, never asked for; whether each may stay."""
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
        """The records of runs among these rows of the columns, which are kept from now on."""
        own = compact_columns(take_columns(columns, rows if runs[_ROWS].sum() == len(rows) else rows[_rows_of(runs)]))
        if runs.shape[1]:
            self._blocks.append(_Block(own, _packed(runs)))
            self._held_bytes += int(runs[_BYTES].sum())
            while len(self._blocks) > 1 and _length(self._blocks[-2]) < 2 * _length(self._blocks[-1]):
                self._blocks[-2:] = [_joined(self._blocks[-2:])]
            if self._held_bytes > self._limit_bytes + self._limit_bytes // _SLACK:
                self._make_room()
        return own

    def _make_room(self) -> None:
        used, sizes = (np.concatenate([block.runs[row] for block in self._blocks]) for row in (_USED, _BYTES))
        latest = np.argsort(-used, kind="stable")
        left = np.zeros(len(used), np.bool_)
        left[latest[np.cumsum(sizes[latest]) <= self._limit_bytes]] = True
        ends = np.cumsum([block.runs.shape[1] for block in self._blocks])
        parts = []
        for block, own in zip(self._blocks, np.split(left, ends[:-1]), strict=True):
            runs = block.runs[:, own]
            columns = take_columns(block.columns, _rows_of(runs))
            parts.append(_Block(columns, _packed(runs)))
        self._blocks = [_joined(parts)]
        self._held_bytes = int(sizes[left].sum())

    def _times(self, count: int) -> Int64:
        """The next moments, one for each that is asked for."""
        self._clock += count
        return np.arange(self._clock - count, self._clock)


def _keys(shards: Int64 | int, class_ids: npt.NDArray[np.integer]) -> Int64:
    keys: Int64 = np.int64(1 << _CLASS_BITS) * shards + class_ids
    return keys


def _rows_of(runs: Int64) -> Int64:
    """The rows of runs, run after run."""
    ends = np.cumsum(runs[_ROWS])
    rows: Int64 = np.arange(runs[_ROWS].sum()) + np.repeat(runs[_START] - ends + runs[_ROWS], runs[_ROWS])
    return rows


def _packed(runs: Int64) -> Int64:
    """The runs of records that lie one after the other in this order."""
    runs[_START] = np.cumsum(runs[_ROWS]) - runs[_ROWS]
    return runs


def _joined(blocks: Sequence[_Block]) -> _Block:
    """One block of several, whose columns hold nothing but what their runs tell of."""
    runs = np.concatenate([block.runs for block in blocks], axis=1)
    lengths = [_length(block) for block in blocks]
    runs[_START] += np.repeat(np.cumsum(lengths) - lengths, [block.runs.shape[1] for block in blocks])
    columns = compact_columns(concat_columns([block.columns for block in blocks]))
    return _Block(columns, runs[:, np.argsort(runs[_KEY], kind="stable")])


def _length(block: _Block) -> int:
    return len(block.columns[CLASS_ID])


def _bytes_of_rows(columns: Columns, rows: Int64) -> Int64:
    """What each of the rows takes in memory, of all columns."""
    sizes = np.zeros(len(rows), np.int64)
    for values in columns.values():
        if isinstance(values, np.ndarray | InPlace):
            shape = values.shape if isinstance(values, InPlace) else values.shape[1:]
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

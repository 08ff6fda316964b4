"""Which shards lend classes to windows that lack them: the next that have records, as their stream goes on the tape.

Pure functions of the order and of the numbers of records; one for a plan, which has many windows of a class, and one
for a window that is opened, which may lack many classes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .epoch_order import EpochOrder

__all__ = ["choose_donors", "first_shards_with"]

Int64 = npt.NDArray[np.int64]
_SHARDS_FIRST = 16
_CELLS_AT_ONCE = 1 << 20


def choose_donors(order: EpochOrder, streams: Int64, last_shards: Int64, records: npt.NDArray[np.integer]) -> Int64:
    """The shards that lend a class to windows without it.

    Args:
        order: of the epoch.
        streams: of the windows, [windows].
        last_shards: of each window that lacks the class, the shard of its last segment; [windows].
        records: of the class in each shard of the split; not all are 0.

    Returns:
        int64 [windows].
    """
    tape, _ = order.tape
    lenders = np.flatnonzero(records[tape] > 0)
    places = order.slots[last_shards]
    ahead, behind = np.searchsorted(lenders, places + 1), np.searchsorted(lenders, places) - 1
    chosen: Int64 = np.where(order.is_reversed[streams], behind, ahead) % len(lenders)
    return tape[lenders[chosen]]


def first_shards_with(counts: npt.NDArray[np.integer], shards: Int64, class_ids: Int64) -> Int64:
    """Of each class, the first of some shards that has records of it; -1 where none has.

    Most are found among the first few shards, so these are looked at first, and more and more for those that are left.

    Args:
        counts: records of each class in each shard of the split, [shards, classes].
        shards: some of these, in order.
        class_ids: [n].

    Returns:
        int64 [n].

    >>> counts = np.array([[0, 1, 0], [2, 1, 0], [1, 0, 0]])
    >>> first_shards_with(counts, np.array([2, 0, 1]), np.array([0, 1, 2])).tolist()
    [2, 0, -1]
    """
    result = np.full(len(class_ids), -1, np.int64)
    left = np.arange(len(class_ids))
    start, size = 0, _SHARDS_FIRST
    while len(left) and start < len(shards):
        some = shards[start : start + size]
        there = counts[np.ix_(some, class_ids[left])] > 0
        first = there.argmax(axis=0)
        found = there[first, np.arange(len(left))]
        result[left[found]] = some[first[found]]
        left = left[~found]
        start += len(some)
        size = max(min(2 * size, _CELLS_AT_ONCE // max(len(left), 1)), 1)
    return result

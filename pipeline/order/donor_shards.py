"""Choose the shards that lend classes to windows that lack them: the next shards on the tape that have records.

Pure functions of the order and the record counts: `choose_donors` for a plan, with many windows per class, and
`first_shards_with` for an opened window, which may lack many classes.
Tested in tests/pipeline/streams/test_borrowed_records.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .epoch_order import EpochOrder

Int64 = npt.NDArray[np.int64]
_SHARDS_FIRST = 16
_CELLS_AT_ONCE = 1 << 20


def choose_donors(order: EpochOrder, streams: Int64, last_shards: Int64, records: npt.NDArray[np.integer]) -> Int64:
    """Return the shard that lends a class to each window that lacks it.

    Args:
        streams: stream of each window, [windows].
        last_shards: shard of each window's last segment, [windows].
        records: records of the class in each shard of the split; not all 0.

    Returns:
        Shards, int64 [windows].
    """
    tape, _ = order.tape
    lenders = np.flatnonzero(records[tape] > 0)
    slots = order.slots[last_shards]
    after, before = np.searchsorted(lenders, slots + 1), np.searchsorted(lenders, slots) - 1
    chosen: Int64 = np.where(order.is_reversed[streams], before, after) % len(lenders)
    return tape[lenders[chosen]]


def first_shards_with(counts: npt.NDArray[np.integer], shards: Int64, class_ids: Int64) -> Int64:
    """Return the first of some shards with records of each class; -1 where no shard has any.

    Most classes occur in the first few shards, so blocks of shards are searched, and grow as fewer classes are left.

    Args:
        counts: records of each class in each shard of the split, [shards, classes].
        shards: shards to search, in order.
        class_ids: classes to find, [n].

    Returns:
        Shards, int64 [n].

    >>> counts = np.array([[0, 1, 0], [2, 1, 0], [1, 0, 0]])
    >>> first_shards_with(counts, np.array([2, 0, 1]), np.array([0, 1, 2])).tolist()
    [2, 0, -1]
    """
    result = np.full(len(class_ids), -1, np.int64)
    left = np.arange(len(class_ids))
    start, size = 0, _SHARDS_FIRST
    while len(left) and start < len(shards):
        block = shards[start : start + size]
        present = counts[np.ix_(block, class_ids[left])] > 0
        first = present.argmax(axis=0)
        is_present = present[first, np.arange(len(left))]
        result[left[is_present]] = block[first[is_present]]
        left = left[~is_present]
        start += len(block)
        size = max(min(2 * size, _CELLS_AT_ONCE // max(len(left), 1)), 1)
    return result

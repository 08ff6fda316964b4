"""Find the windows that lack a class that their batches need, and the shards that lend it: the next ones on the tape
that have records. Pure, except for indexes.

`choose_donors` is for a plan, with many windows per class, `first_shards_with` for an opened window, which may lack
many classes.

Tested in tests/pipeline/streams/test_borrowed_records.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.compute.class_counts import count_matrix
from ringfeed.sharding.compute.grouping import group
from ringfeed.sharding.dataset.manifest import ShardInfo

from .class_balance import ClassSchedule
from .epoch_order import EpochOrder
from .windows import StreamWindows, Window

Int64 = npt.NDArray[np.int64]
_WINDOWS_AT_ONCE = 256
_SHARDS_FIRST = 16
_CELLS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitContents:
    """The shards and classes of a split."""

    shards: Sequence[ShardInfo]  # shards, in order
    classes: Sequence[Any]  # values of the label
    class_counts: Sequence[int]  # records of each class in the split
    # Returns the class of each record of a shard, from its index. Called only for shards that the cut between two
    # streams divides, where the manifest cannot tell whether a class lies in a part.
    class_ids: Callable[[int], npt.NDArray[np.int32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingClass:
    """A window without a record of a class that its batches need, and so borrows from another shard.

    Attributes:
        stream: stream of the window, in ``[0, streams)``.
        window: number of the window in its stream, from 0.
        class_value: missing class.
        donor: path of the shard that lends it.

    >>> MissingClass(stream=0, window=2, class_value="late", donor="window 1").class_value
    'late'
    """

    stream: int
    window: int
    class_value: Any
    donor: str


def find_missing_classes(
    order: EpochOrder, schedule: ClassSchedule, split: SplitContents
) -> tuple[list[MissingClass], list[tuple[int, int]]]:
    """Return the classes that windows lack, and the (stream, shard) pairs that lend them."""
    shards = split.shards
    counts = count_matrix([shard.class_counts for shard in shards])
    class_ids = functools.lru_cache(maxsize=2)(split.class_ids)
    lacking = [
        (stream, window.number, window.segments[-1].shard, _lacking(window, doubtful, counts, class_ids))
        for stream in range(order.geometry.streams)
        for window, doubtful in _doubtful(order.windows(stream), schedule.weights > 0, counts, order.shard_records)
    ]
    if not lacking:
        return [], []
    of_class = np.concatenate([entry[-1] for entry in lacking])
    places = np.array([entry[:3] for entry in lacking]).repeat([len(entry[-1]) for entry in lacking], axis=0)
    donors = np.empty(len(of_class), np.int64)
    for class_id, own in group(of_class):
        donors[own] = choose_donors(order, places[own, 0], places[own, 2], counts[:, class_id])
    missing = [
        MissingClass(stream=stream, window=number, class_value=split.classes[class_id], donor=shards[donor].path)
        for stream, number, class_id, donor in zip(
            *(numbers.tolist() for numbers in (places[:, 0], places[:, 1], of_class, donors)), strict=True
        )
    ]
    pairs = np.unique(np.stack([places[:, 0], donors], axis=1), axis=0)
    return missing, [(stream, donor) for stream, donor in pairs.tolist()]


def _doubtful(
    windows: StreamWindows,
    needed: npt.NDArray[np.bool_],
    counts: npt.NDArray[np.unsignedinteger],
    shard_records: Sequence[int],
) -> Iterator[tuple[Window, Int64]]:
    """Yield windows with the needed classes that no segment is sure to hold.

    By the pigeonhole principle, a segment has one if its shard has more records of the class than lie outside it.
    """
    segments = windows.segments
    outside = np.asarray(shard_records)[segments.shards] - segments.lengths
    for first in range(0, len(windows), _WINDOWS_AT_ONCE):
        bounds = windows.bounds[first : first + _WINDOWS_AT_ONCE + 1]
        own = slice(int(bounds[0]), int(bounds[-1]))
        certain = counts[segments.shards[own]] > outside[own, None]
        complete = np.logical_or.reduceat((certain | ~needed).all(axis=1), bounds[:-1] - bounds[0])
        for number in np.flatnonzero(~complete & windows.served[first : first + _WINDOWS_AT_ONCE]).tolist():
            present = certain[bounds[number] - bounds[0] : bounds[number + 1] - bounds[0]].any(axis=0)
            doubtful = np.flatnonzero(needed & ~present)
            if len(doubtful):
                yield windows[first + number], doubtful


def _lacking(
    window: Window,
    doubtful: Int64,
    counts: npt.NDArray[np.unsignedinteger],
    class_ids: Callable[[int], npt.NDArray[np.int32]],
) -> Int64:
    """Return those of the doubtful classes that no segment holds, according to the indexes of the shards."""
    for segment in window.segments:
        if counts[segment.shard, doubtful].any():
            doubtful = doubtful[~np.isin(doubtful, class_ids(segment.shard)[segment.start : segment.stop])]
    return doubtful


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

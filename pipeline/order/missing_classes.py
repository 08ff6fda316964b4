"""Find the windows that lack a class that their batches need, and the shards that lend it. Pure, except for indexes.

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
from .donor_shards import choose_donors
from .epoch_order import EpochOrder
from .windows import StreamWindows, Window

Int64 = npt.NDArray[np.int64]
_WINDOWS_AT_ONCE = 256


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

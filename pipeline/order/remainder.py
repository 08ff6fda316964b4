"""The records that the remainder of an epoch drops or repeats. Pure: no shard is opened.

Tested in tests/pipeline/order/test_epoch_order.py and tests/pipeline/test_changing_ranks.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.dataset.manifest import ShardInfo

from .epoch_order import EpochOrder
from .windows import Segment

Rows = npt.NDArray[np.int64]  # [n, 2]: shard, and row in it


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRange:
    """Records ``[start, stop)`` of a shard, given by its path.

    >>> RecordRange(shard="train-00000-of-00004.tfrecord", start=10, stop=12).stop
    12
    """

    shard: str
    start: int
    stop: int


def dropped_ranges(order: EpochOrder, shards: Sequence[ShardInfo]) -> tuple[RecordRange, ...]:
    """Return the records that an epoch drops: from the last windows of its streams, and after the last stream."""
    geometry = order.geometry
    if not geometry.dropped:
        return ()
    (start, _), (_, end) = order.stream_range(0), order.stream_range(geometry.streams - 1)
    rows = [_rows(order.segments(end, start + geometry.records).to_segments())]
    for stream in range(geometry.streams):
        windows = order.windows(stream)
        ending = windows[windows.number_at(windows.samples - 1) :]
        rows += [_rows(window.segments)[order.full_permutation(window)[window.samples :]] for window in ending]
    return _ranges(np.unique(np.concatenate(rows), axis=0), shards)


def wrapped_ranges(order: EpochOrder, shards: Sequence[ShardInfo]) -> tuple[RecordRange, ...]:
    """Return the records that fill up the last batch of an epoch: the first ones of each stream.

    A range is listed as many times as its records are repeated.
    """
    if not order.geometry.wrapped:
        return ()
    rows = np.concatenate([_wrapped_rows(order, stream) for stream in range(order.geometry.streams)])
    rows, times = np.unique(rows, axis=0, return_counts=True)
    return tuple(span for repeat in range(int(times.max())) for span in _ranges(rows[times > repeat], shards))


def _wrapped_rows(order: EpochOrder, stream: int) -> Rows:
    windows = order.windows(stream)
    positions = np.arange(windows.samples, order.geometry.steps * order.geometry.piece) % windows.samples
    rows = [np.empty((0, 2), np.int64)]
    for number in np.unique(np.searchsorted(windows.stops, positions, side="right")).tolist():
        window = windows[number]
        own = positions[(positions >= window.start) & (positions < window.stop)] - window.start
        rows.append(_rows(window.segments)[order.permutation(window)[own]])
    return np.concatenate(rows)


def _rows(segments: Sequence[Segment]) -> Rows:
    runs = [
        np.stack([np.full(segment.rows, segment.shard), np.arange(segment.start, segment.stop)], axis=1)
        for segment in segments
    ]
    return np.concatenate([np.empty((0, 2), np.int64), *runs])


def _ranges(rows: Rows, shards: Sequence[ShardInfo]) -> tuple[RecordRange, ...]:
    """Merge sorted, distinct rows into ranges."""
    cuts = np.flatnonzero((np.diff(rows[:, 0]) != 0) | (np.diff(rows[:, 1]) != 1)) + 1
    return tuple(
        RecordRange(shard=shards[run[0, 0]].path, start=int(run[0, 1]), stop=int(run[-1, 1]) + 1)
        for run in np.split(rows, cuts)
        if len(run)
    )

"""Which records of an epoch its remainder concerns: those that are dropped, and those that come again.

Pure: no shard is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...sharding.dataset.manifest import ShardInfo
from .epoch_order import EpochOrder
from .windows import Window

__all__ = ["RecordRange", "dropped_ranges", "wrapped_ranges"]

Rows = npt.NDArray[np.int64]  # [n, 2]: shard, and row in it


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRange:
    """Records ``[start, stop)`` of a shard, by its path."""

    shard: str
    start: int
    stop: int


def dropped_ranges(order: EpochOrder, shards: Sequence[ShardInfo]) -> tuple[RecordRange, ...]:
    """The records that no window of an epoch serves: of the last windows of its streams, and behind all streams."""
    geometry = order.geometry
    if not geometry.dropped:
        return ()
    (start, _), (_, end) = order.stream_range(0), order.stream_range(geometry.streams - 1)
    found = [_rows(*(column.tolist() for column in order.segments(end, start + geometry.records)))]
    for stream in range(geometry.streams):
        windows = order.windows(stream)
        ending = windows[windows.number_at(windows.samples - 1) :]
        found += [_held(window)[order.full_permutation(window)[window.samples :]] for window in ending]
    return _ranges(np.unique(np.concatenate(found), axis=0), shards)


def wrapped_ranges(order: EpochOrder, shards: Sequence[ShardInfo]) -> tuple[RecordRange, ...]:
    """The records that fill up the last batch of an epoch: of each stream, those that it began with.

    A range is there as often as its records come again.
    """
    if not order.geometry.wrapped:
        return ()
    rows = np.concatenate([_wrapped_rows(order, stream) for stream in range(order.geometry.streams)])
    rows, times = np.unique(rows, axis=0, return_counts=True)
    return tuple(found for again in range(int(times.max())) for found in _ranges(rows[times > again], shards))


def _wrapped_rows(order: EpochOrder, stream: int) -> Rows:
    windows = order.windows(stream)
    positions = np.arange(windows.samples, order.geometry.steps * order.geometry.piece) % windows.samples
    found = [np.empty((0, 2), np.int64)]
    for number in np.unique(np.searchsorted(windows.stops, positions, side="right")).tolist():
        window = windows[number]
        own = positions[(positions >= window.start) & (positions < window.stop)] - window.start
        found.append(_held(window)[order.permutation(window)[own]])
    return np.concatenate(found)


def _held(window: Window) -> Rows:
    """The records of a window, in the order of its segments."""
    segments = window.segments
    return _rows([s.shard for s in segments], [s.start for s in segments], [s.stop - s.start for s in segments])


def _rows(shards: Sequence[int], firsts: Sequence[int], lengths: Sequence[int]) -> Rows:
    runs = [
        np.stack([np.full(length, shard), np.arange(first, first + length)], axis=1)
        for shard, first, length in zip(shards, firsts, lengths, strict=True)
    ]
    return np.concatenate([np.empty((0, 2), np.int64), *runs])


def _ranges(rows: Rows, shards: Sequence[ShardInfo]) -> tuple[RecordRange, ...]:
    """Rows, sorted and each there once, as ranges."""
    cuts = np.flatnonzero((np.diff(rows[:, 0]) != 0) | (np.diff(rows[:, 1]) != 1)) + 1
    return tuple(
        RecordRange(shard=shards[run[0, 0]].path, start=int(run[0, 1]), stop=int(run[-1, 1]) + 1)
        for run in np.split(rows, cuts)
        if len(run)
    )

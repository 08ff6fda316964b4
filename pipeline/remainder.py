"""Which records of an epoch its remainder concerns: those that are dropped, and those that come again.

Pure: no shard is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..sharding.manifest import ShardInfo
from .order import EpochOrder

__all__ = ["RecordRange", "dropped_ranges", "wrapped_ranges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRange:
    """Records ``[start, stop)`` of a shard, by its path."""

    shard: str
    start: int
    stop: int


def dropped_ranges(order: EpochOrder, shards: Sequence[ShardInfo]) -> tuple[RecordRange, ...]:
    """The records that no window of an epoch holds: the end of its tape."""
    geometry = order.geometry
    if not geometry.dropped:
        return ()
    columns = order.segments(geometry.records - geometry.dropped, geometry.records)
    return tuple(
        RecordRange(shard=shards[shard].path, start=first, stop=first + length)
        for shard, first, length in zip(*(column.tolist() for column in columns), strict=True)
    )


def wrapped_ranges(order: EpochOrder, shards: Sequence[ShardInfo]) -> tuple[RecordRange, ...]:
    """The records that fill up the last batch of an epoch: of each stream, those that it began with.

    A range is there as often as its records come again.
    """
    if not order.geometry.wrapped:
        return ()
    rows = np.concatenate([_wrapped_rows(order, stream) for stream in range(order.geometry.streams)])
    rows, times = np.unique(rows, axis=0, return_counts=True)
    ranges = []
    for again in range(int(times.max())):
        left = rows[times > again]
        cuts = np.flatnonzero((np.diff(left[:, 0]) != 0) | (np.diff(left[:, 1]) != 1)) + 1
        ranges += [
            RecordRange(shard=shards[run[0, 0]].path, start=int(run[0, 1]), stop=int(run[-1, 1]) + 1)
            for run in np.split(left, cuts)
        ]
    return tuple(ranges)


def _wrapped_rows(order: EpochOrder, stream: int) -> npt.NDArray[np.int64]:
    """Shard and row of each record that a stream serves again, [samples, 2]."""
    windows = order.windows(stream)
    positions = np.arange(windows.samples, order.geometry.steps * order.geometry.piece) % windows.samples
    found = []
    for number in np.unique(np.searchsorted(windows.stops, positions, side="right")).tolist():
        window = windows[number]
        own = positions[(positions >= window.start) & (positions < window.stop)] - window.start
        held = [
            np.stack([np.full(s.stop - s.start, s.shard), np.arange(s.start, s.stop)], axis=1) for s in window.segments
        ]
        found.append(np.concatenate(held)[order.permutation(window)[own]])
    return np.concatenate([np.empty((0, 2), np.int64), *found])

"""The windows of one stream, cut from the tape by array arithmetic: no loop runs over all shards of a dataset.

All ranges are half-open.
Tested in tests/pipeline/order/test_epoch_order.py.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Positions: TypeAlias = range | Int64  # ascending positions of a stream or a window; a range where they are adjacent


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows ``[start, stop)`` of a shard, given by its position in the split."""

    shard: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTable:
    """Segments in columns, int64 [segments] each."""

    shards: Int64  # shard of each segment
    firsts: Int64  # first row of each segment
    lengths: Int64  # rows of each segment

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, own: slice | npt.NDArray[np.bool_]) -> SegmentTable:
        return SegmentTable(shards=self.shards[own], firsts=self.firsts[own], lengths=self.lengths[own])

    def __add__(self, other: SegmentTable) -> SegmentTable:
        return SegmentTable(
            shards=np.concatenate([self.shards, other.shards]),
            firsts=np.concatenate([self.firsts, other.firsts]),
            lengths=np.concatenate([self.lengths, other.lengths]),
        )

    def to_segments(self) -> tuple[Segment, ...]:
        """Return the segments one by one."""
        columns = zip(self.shards.tolist(), self.firsts.tolist(), self.lengths.tolist(), strict=True)
        return tuple(Segment(shard=shard, start=first, stop=first + length) for shard, first, length in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Segments that a stream has open together, to serve its positions ``[start, stop)``.

    The records of a window are numbered through its segments, from 0. In natural order the window serves each record
    once, except those that the epoch drops.
    """

    stream: int
    number: int
    start: int
    stop: int
    segments: tuple[Segment, ...]

    @property
    def samples(self) -> int:
        """Number of samples served."""
        return self.stop - self.start

    @property
    def records(self) -> int:
        """Number of records held."""
        return sum(segment.rows for segment in self.segments)


class StreamWindows(Sequence[Window]):
    """The windows of a stream, in order, each made on demand.

    A window consists of whole segments and closes once it holds `min_records`. A rest below `sliver_records` at the end
    joins the last window: a window of its own would be too small to shuffle or to hold every class.

    Args:
        stream: number of the stream.
        segments: segments of the stream, in order.
        min_records: records that close a window, above 0.
        sliver_records: records below which the rest makes no window of its own.
        samples: samples that the stream serves; default: as many as it has records.
        spread: whether each window serves samples in proportion to its records; otherwise the last windows serve fewer.

    Attributes:
        segments: the argument.
        bounds: first segment of each window, and the end of the last; int64 [windows + 1].
        stops: position of the stream at which each window ends, int64 [windows].

    >>> table = SegmentTable(shards=np.arange(4), firsts=np.zeros(4, int), lengths=np.array([10, 9, 10, 2]))
    >>> windows = StreamWindows(0, table, min_records=15, sliver_records=5)
    >>> [(window.start, window.stop, len(window.segments)) for window in windows]
    [(0, 19, 2), (19, 31, 2)]
    """

    def __init__(
        self,
        stream: int,
        segments: SegmentTable,
        *,
        min_records: float,
        sliver_records: float,
        samples: int | None = None,
        spread: bool = False,
    ) -> None:
        self._stream = stream
        self.segments = segments
        before = np.concatenate([[0], np.cumsum(segments.lengths)])  # records before each segment, and in all
        ends, full, count = before.tolist(), math.ceil(min_records), len(segments)
        bounds = [0]
        while (following := bisect_left(ends, ends[bounds[-1]] + full)) < count:
            bounds.append(following)
        if before[-1] - before[bounds[-1]] < sliver_records and len(bounds) > 1:
            bounds.pop()
        self.bounds = np.array([*bounds, count], np.int64)
        self.stops: Int64 = before[self.bounds[1:]]
        if samples is not None and spread:
            self.stops = self.stops * samples // max(int(before[-1]), 1)
        elif samples is not None:
            self.stops = np.minimum(self.stops, samples)

    def followed_by(self, *others: StreamWindows) -> StreamWindows:
        """Return windows that are these and then others, which serve all of their records."""
        result = copy.copy(self)
        for other in others:
            result.bounds = np.concatenate([result.bounds, other.bounds[1:] + len(result.segments)])
            result.stops = np.concatenate([result.stops, other.stops + result.samples])
            result.segments = result.segments + other.segments
        return result

    @property
    def samples(self) -> int:
        """Number of samples that the stream serves."""
        return int(self.stops[-1])

    @property
    def served(self) -> npt.NDArray[np.bool_]:
        """Whether each window serves a sample; the last ones may fall into what the epoch drops. [windows]"""
        return np.diff(self.stops, prepend=0) > 0

    @property
    def served_segments(self) -> SegmentTable:
        """The segments of windows that serve a sample."""
        return self.segments[np.repeat(self.served, np.diff(self.bounds))]

    def number_at(self, position: int) -> int:
        """Return the number of the window that serves a position, in ``[0, samples)``."""
        return bisect_right(self.stops, position)

    def range_of(self, number: int) -> tuple[int, int]:
        """Return the positions ``[start, stop)`` that a window serves."""
        return int(self.stops[number - 1]) if number else 0, int(self.stops[number])

    def __len__(self) -> int:
        return len(self.stops)

    @overload
    def __getitem__(self, index: int) -> Window: ...
    @overload
    def __getitem__(self, index: slice) -> list[Window]: ...
    def __getitem__(self, index: int | slice) -> Window | list[Window]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        start, stop = self.range_of(number)
        segments = self.segments[int(self.bounds[number]) : int(self.bounds[number + 1])].to_segments()
        return Window(stream=self._stream, number=number, start=start, stop=stop, segments=segments)

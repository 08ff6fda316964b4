"""The windows of one stream, cut from the tape by arithmetic on arrays: no loop runs over all shards of a dataset.

All ranges are half-open.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Positions", "Segment", "StreamWindows", "Window"]

Int64 = npt.NDArray[np.int64]
Positions: TypeAlias = range | Int64  # of a stream or a window, ascending; where they follow on one another a range


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows ``[start, stop)`` of a shard, by the shard's position in the split."""

    shard: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Segments that a stream has open together, and the positions ``[start, stop)`` of the stream it serves.

    The records of a window are numbered through its segments, from 0 on; in natural order it serves each once, but for
    those that the epoch drops.
    """

    stream: int
    number: int
    start: int
    stop: int
    segments: tuple[Segment, ...]

    @property
    def samples(self) -> int:
        """Samples that it serves."""
        return self.stop - self.start

    @property
    def records(self) -> int:
        """Records that it holds."""
        return sum(segment.stop - segment.start for segment in self.segments)


class StreamWindows(Sequence[Window]):
    """The windows of a stream, in order; each is made when it is asked for.

    A window is of whole segments, and closes once it holds `enough` records; a `sliver` that is left joins the last.
    So the slivers that cuts leave make no windows of their own, too small to shuffle or to hold every class.

    Args:
        stream: its number.
        shards: of its segments, int64 [segments].
        firsts: the first row of each segment, int64 [segments].
        lengths: rows of each segment, int64 [segments].
        enough: records, above 0.
        sliver: records.
        samples: that the stream serves; default: as many as records.
        spread: whether each window serves of these in proportion to its records; else the last ones serve fewer.

    Attributes:
        shards: of the segments, in order.
        lengths: of the segments.
        bounds: where each window begins among the segments, and the last ends; int64 [windows + 1].
        stops: the position of the stream at which each window ends; int64 [windows].

    >>> windows = StreamWindows(0, np.arange(4), np.zeros(4, int), np.array([10, 9, 10, 2]), enough=15, sliver=5)
    >>> [(window.start, window.stop, len(window.segments)) for window in windows]
    [(0, 19, 2), (19, 31, 2)]
    """

    def __init__(
        self,
        stream: int,
        shards: Int64,
        firsts: Int64,
        lengths: Int64,
        *,
        enough: float,
        sliver: float,
        samples: int | None = None,
        spread: bool = False,
    ) -> None:
        self._stream = stream
        self._firsts = firsts
        self.lengths = lengths
        before = np.concatenate([[0], np.cumsum(lengths)])  # records before each segment, and all
        ends, full, count = before.tolist(), math.ceil(enough), len(lengths)
        bounds = [0]
        while (following := bisect_left(ends, ends[bounds[-1]] + full)) < count:  # the segment that begins the next one
            bounds.append(following)
        if before[-1] - before[bounds[-1]] < sliver and len(bounds) > 1:
            bounds.pop()
        self.shards = shards
        self.bounds = np.array([*bounds, count], np.int64)
        self.stops: Int64 = before[self.bounds[1:]]
        if samples is not None and spread:
            self.stops = self.stops * samples // max(int(before[-1]), 1)
        elif samples is not None:
            self.stops = np.minimum(self.stops, samples)

    @property
    def samples(self) -> int:
        """Samples that the stream serves."""
        return int(self.stops[-1])

    @property
    def served(self) -> npt.NDArray[np.bool_]:
        """Whether a window serves any sample; those behind what an epoch drops serve none. [windows]"""
        return np.diff(self.stops, prepend=0) > 0

    @property
    def served_segments(self) -> npt.NDArray[np.bool_]:
        """Whether a segment lies in such a window, [segments]."""
        return np.repeat(self.served, np.diff(self.bounds))

    def number_at(self, position: int) -> int:
        """The window that serves a position, in ``[0, samples)``."""
        return bisect_right(self.stops, position)

    def range_of(self, number: int) -> tuple[int, int]:
        """The positions ``[start, stop)`` that a window serves."""
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
        own = slice(int(self.bounds[number]), int(self.bounds[number + 1]))
        columns = (self.shards[own].tolist(), self._firsts[own].tolist(), self.lengths[own].tolist())
        start, stop = self.range_of(number)
        return Window(
            stream=self._stream,
            number=number,
            start=start,
            stop=stop,
            segments=tuple(
                Segment(shard=shard, start=first, stop=first + length)
                for shard, first, length in zip(*columns, strict=True)
            ),
        )

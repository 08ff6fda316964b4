"""One stream of an epoch at work: its windows are opened ahead of need, what is asked for is gathered from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..decode.columns import Column, Columns, concat_columns, copy_columns
from ..fetch.threads import Threads
from ..metrics.stage_counters import Counters
from ..order.class_balance import ClassSchedule
from ..order.epoch_order import EpochOrder, StreamSlice
from ..order.windows import Positions, Window
from ..select.sample_columns import WEIGHT
from .length_buckets import LengthBuckets
from .open_window import OpenWindow, WindowOpener
from .prefetch_budget import PrefetchBudget, UpcomingWindow
from .shard_fetcher import ShardFetcher

__all__ = ["OpenStreams", "StreamReader"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Asked:
    """A window that was asked for, and the bytes that it counts for as one ahead of need."""

    opened: Future[OpenWindow]
    size: int


@dataclass(frozen=True)
class OpenStreams:
    """The streams of a split, of any epoch, and the threads that fetch and plan for them.

    Attributes:
        order: of an epoch.
        streams: that are read.
        schedule: of classes in an epoch, or None for the natural mix.
        class_counts: gives the records of each class in each shard of the split, [shards, classes].
        fetcher: of the split's shards.
        planner: threads that plan windows; others than the fetcher's.
        counters: of the loader.
        ahead: what may be fetched ahead of need.
        buckets: how records are put together by length, or None.
    """

    order: Callable[[int], EpochOrder]
    streams: range
    schedule: Callable[[int], ClassSchedule | None]
    class_counts: Callable[[], npt.NDArray[np.unsignedinteger]]
    fetcher: ShardFetcher
    planner: Threads
    counters: Counters
    ahead: PrefetchBudget
    buckets: LengthBuckets | None = None
    _process: int = field(init=False, default_factory=os.getpid)

    def reader(self, epoch: int, part: StreamSlice, start_step: int, *, scattered: bool = False) -> StreamReader:
        """One stream of an epoch, from a step on; see `StreamReader`."""
        order = self.order(epoch)
        opener = WindowOpener(
            order,
            self.streams,
            self.schedule(epoch),
            self.class_counts,
            self.fetcher,
            self.planner,
            self.counters,
            self.buckets,
        )
        return StreamReader(
            order,
            opener,
            self.fetcher,
            self.counters,
            self.ahead,
            part,
            start_step,
            self.buckets,
            scattered=scattered,
        )

    def close(self) -> None:
        """Begin nothing more, and let the threads end; in a process that was forked meanwhile there are none."""
        if os.getpid() != self._process:  # and locks may be held, for ever
            return
        self.planner.close()
        self.fetcher.close()


class StreamReader:
    """Serves a slice of each piece of one stream.

    Args:
        order: of the epoch.
        opener: of its windows.
        fetcher: of the split's shards.
        counters: of the loader.
        ahead: what may be fetched ahead of need, shared by the streams.
        stream_slice: which stream, and which samples of each piece.
        start_step: the first step that will be asked for.
        buckets: how records are put together by length, or None.
        scattered: whether single positions are asked for, by `at`, and not all of a run of steps, by `take`.
    """

    def __init__(
        self,
        order: EpochOrder,
        opener: WindowOpener,
        fetcher: ShardFetcher,
        counters: Counters,
        ahead: PrefetchBudget,
        stream_slice: StreamSlice,
        start_step: int,
        buckets: LengthBuckets | None = None,
        *,
        scattered: bool = False,
    ) -> None:
        self._order = order
        self._opener = opener
        self._fetcher = fetcher
        self._counters = counters
        self._slice = stream_slice
        self._whole = stream_slice.width == order.geometry.piece and not stream_slice.weighted and not scattered
        self._windows = order.windows(stream_slice.stream)
        self._lookahead = ahead
        self._ahead: dict[int, _Asked] = {}
        self._open: OpenWindow | None = None
        self._number = -1  # of the open window
        self._first = start_step * order.geometry.piece  # position; nothing before it is asked for
        wrapping = order.geometry.remainder == "wrap"
        self._last = (order.geometry.steps * order.geometry.piece if wrapping else self._windows.samples) - 1
        number = self._number_at(min(self._first, self._last))
        if buckets is not None:  # a span is drawn whole
            self._first -= self._first % (buckets.steps * order.geometry.piece)
        self._ahead[number] = self._request(number, 0)
        self._upcoming = self._after(number)
        ahead.add(self)

    @property
    def upcoming(self) -> UpcomingWindow | None:
        """The first window that was not asked for yet; None behind the last."""
        return None if self._upcoming is None else self._upcoming[1]

    def ask(self) -> None:
        """Ask for the first window that was not asked for yet, ahead of need."""
        if self._upcoming is not None:
            number, upcoming = self._upcoming
            self._ahead[number] = self._request(number, upcoming.size)
            self._upcoming = self._after(number)

    def close(self) -> None:
        """Let go of what is open and of what was asked for; nothing more is taken."""
        for asked in self._ahead.values():
            self._lookahead.release(asked.size)
        self._ahead.clear()
        self._open = self._upcoming = None

    def take(self, first_step: int, steps: int) -> Columns:
        """The samples of a run of steps, step after step; later runs only.

        Returns:
            Columns of ``steps * slice.width`` rows: the features, `CLASS_ID`, and where the slice is weighted `WEIGHT`.
        """
        if self._whole:
            piece = self._order.geometry.piece
            return self.at(range(first_step * piece, (first_step + steps) * piece))
        positions = self._positions(first_step, steps)
        columns = self.at(np.minimum(positions, self._last))
        if self._slice.weighted:
            counts = np.tile(self._slice.is_real(), steps) & (positions <= self._last)
            columns[WEIGHT] = counts.astype(np.float32)
        return columns

    def at(self, positions: Positions) -> dict[str, Column]:
        """The samples at ascending positions of the stream; later ones only."""
        parts: list[Columns] = []
        for number, at in self._by_window(positions):
            if parts:
                parts[-1] = copy_columns(parts[-1])  # and the window before is let go of
            parts.append(self._gather(number, at))
        return concat_columns(parts)

    def _positions(self, first_step: int, steps: int) -> Int64:
        starts = np.arange(first_step, first_step + steps, dtype=np.int64) * self._order.geometry.piece
        return (starts[:, None] + self._slice.offsets()).reshape(-1)

    def _number_at(self, position: int) -> int:
        """The window of a position; those that it falls in again behind the stream's end are counted on."""
        laps, position = divmod(position, self._windows.samples)
        return laps * len(self._windows) + self._windows.number_at(position)

    def _by_window(self, positions: Positions) -> Iterator[tuple[int, Positions]]:
        """The windows that ascending positions fall in, and the positions in each, from its own start."""
        start = 0
        while start < len(positions):
            number = self._number_at(int(positions[start]))
            laps, own = divmod(number, len(self._windows))
            begin, end = (laps * self._windows.samples + edge for edge in self._windows.range_of(own))
            if isinstance(positions, range):
                stop = min(end - positions.start, len(positions))
                yield number, range(positions[start] - begin, positions[stop - 1] + 1 - begin)
            else:
                stop = int(np.searchsorted(positions, end))
                yield number, positions[start:stop] - begin
            start = stop

    def _gather(self, number: int, positions: Positions) -> Columns:
        if self._open is None or self._number != number:
            self._open = None  # let go of the old window before the new one is taken in
            self._number = number
            self._open = self._enter(number)
        with self._counters.busy("gather", items=len(positions)):
            return self._open.take(positions)

    def _enter(self, number: int) -> OpenWindow:
        """A window that is needed now; those that were asked for and passed over are let go."""
        if number not in self._ahead:
            self._ahead[number] = self._request(number, 0)
            if self._upcoming is not None and self._upcoming[0] <= number:
                self._upcoming = self._after(number)
        passed = [asked for asked in self._ahead if asked < number]
        for asked in [*passed, number]:
            self._lookahead.release(self._ahead[asked].size)
        for asked in passed:
            del self._ahead[asked]
        self._lookahead.fill()
        return self._wait(self._ahead.pop(number).opened)

    def _after(self, number: int) -> tuple[int, UpcomingWindow] | None:
        """The next window that serves anything, and what it takes to ask for it."""
        last = self._number_at(self._last)
        while (number := number + 1) <= last:
            window = self._windows[number % len(self._windows)]
            if window.samples:
                size = self._fetcher.bytes_of(window.segments)
                return number, UpcomingWindow(step=self._step(number, window), size=size)
        return None

    def _step(self, number: int, window: Window) -> int:
        laps = number // len(self._windows)
        return (laps * self._windows.samples + window.start) // self._order.geometry.piece

    def _request(self, number: int, size: int) -> _Asked:
        window = self._windows[number % len(self._windows)]
        return _Asked(
            opened=self._opener.begin(window, self._first, self._step(number, window), whole=self._whole), size=size
        )

    def _wait(self, future: Future[OpenWindow]) -> OpenWindow:
        if future.done():
            return future.result()
        with self._counters.waiting("gather"):
            return future.result()

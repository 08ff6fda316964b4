"""Read one stream of an epoch: open its windows ahead of need, gather the requested samples from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline.decode.columns import Column, Columns, concat_columns, copy_columns
from ringfeed.pipeline.order.class_balance import ClassSchedule
from ringfeed.pipeline.order.epoch_order import EpochOrder, StreamSlice
from ringfeed.pipeline.order.windows import Positions, Window
from ringfeed.pipeline.select.sample_columns import WEIGHT

from .open_window import OpenWindow
from .prefetch_budget import PrefetchBudget, UpcomingWindow
from .stream_context import StreamContext
from .window_opener import WindowOpener

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Request:
    """A requested window, and the bytes it takes from the prefetch budget."""

    window: Future[OpenWindow]
    size: int


@dataclass(frozen=True, kw_only=True)
class OpenStreams:
    """The streams of a split, for any epoch, and the threads that fetch and plan for them."""

    order: Callable[[int], EpochOrder]  # returns the order of an epoch
    schedule: Callable[[int], ClassSchedule | None]  # returns the classes of an epoch; None for the natural mix
    context: StreamContext  # shards, threads and counters
    budget: PrefetchBudget  # bytes that may be prefetched
    _process: int = field(init=False, default_factory=os.getpid)

    def reader(self, epoch: int, part: StreamSlice, start_step: int, *, scattered: bool = False) -> StreamReader:
        """Return a reader of one stream of an epoch from a step on, and begin it; see `StreamReader`."""
        reader = StreamReader(self._opener(epoch), self.budget, part, start_step, scattered=scattered)
        reader.begin()
        return reader

    def epochs(
        self, epochs: range, parts: Sequence[StreamSlice], start_step: int, steps_per_epoch: int
    ) -> Iterator[tuple[int, Sequence[StreamReader]]]:
        """Yield each epoch, and the readers of its streams, which are closed when the next one is asked for.

        The windows of the next epoch are prefetched as soon as all windows of this one are requested. An error in
        planning it is raised when its turn comes.

        Args:
            epochs: numbers of the epochs.
            parts: a slice of each stream.
            start_step: first step of the first epoch.
            steps_per_epoch: steps of an epoch.
        """

        def readers_of(epoch: int, opener: WindowOpener) -> list[StreamReader]:
            first, before = (start_step if epoch == epochs.start else 0), (epoch - epochs.start) * steps_per_epoch
            return [StreamReader(opener, self.budget, part, first, steps_before=before) for part in parts]

        def read_ahead(epoch: int) -> None:
            with suppress(Exception):  # raised again by the second attempt, when the epoch begins
                ahead[epoch] = readers_of(epoch, self._opener(epoch))

        ahead: dict[int, list[StreamReader]] = {}
        for epoch in epochs:
            readers = ahead.pop(epoch, None) or readers_of(epoch, self._opener(epoch))
            self.budget.then = partial(read_ahead, epoch + 1) if epoch + 1 in epochs else None
            for reader in readers:
                reader.begin()
            yield epoch, readers
            for reader in readers:
                reader.close()

    def _opener(self, epoch: int) -> WindowOpener:
        return WindowOpener(self.order(epoch), self.schedule(epoch), self.context)

    def close(self) -> None:
        """Start no more work, and let the threads end.

        A forked process has none of the threads, and may find locks held for ever: there this does nothing.
        """
        if os.getpid() == self._process:
            self.context.planner.close()
            self.context.fetcher.close()


class StreamReader:
    """Serves a slice of each piece of one stream.

    Args:
        opener: opener of the epoch's windows.
        budget: bytes that may be prefetched, shared by the streams.
        stream_slice: the stream, and the samples of each piece.
        start_step: first step that will be read.
        scattered: whether single positions are read, by `at`, and not runs of steps, by `take`.
        steps_before: steps of earlier epochs of the same reading, whose windows come first.
    """

    def __init__(
        self,
        opener: WindowOpener,
        budget: PrefetchBudget,
        stream_slice: StreamSlice,
        start_step: int,
        *,
        scattered: bool = False,
        steps_before: int = 0,
    ) -> None:
        order, buckets = opener.order, opener.context.buckets
        self._opener = opener
        self._counters = opener.context.counters
        self._slice = stream_slice
        self._steps_before = steps_before
        self._piece = order.geometry.piece
        self._contiguous = stream_slice.width == self._piece and not stream_slice.weighted and not scattered
        self._windows = order.windows(stream_slice.stream)
        self._budget = budget
        self._requests: dict[int, _Request] = {}
        self._open: OpenWindow | None = None
        self._number = -1  # of the open window
        self._first = start_step * self._piece  # first position that will be read
        wraps = order.geometry.remainder == "wrap"
        self._last = (order.geometry.steps * self._piece if wraps else self._windows.samples) - 1
        number = self._number_at(min(self._first, self._last))
        if buckets is not None:  # a span is drawn as a whole
            self._first -= self._first % (buckets.steps * self._piece)
        self._first_number = number
        self._upcoming = self._next_window(number - 1)
        budget.add(self)

    def begin(self) -> None:
        """Request the window of the first step, which is needed now, unless it was prefetched."""
        if self._first_number not in self._requests:
            self._request_now(self._first_number)

    @property
    def upcoming(self) -> UpcomingWindow | None:
        return None if self._upcoming is None else self._upcoming[1]

    def prefetch(self) -> None:
        if self._upcoming is not None:
            number, upcoming = self._upcoming
            self._requests[number] = self._request(number, upcoming.size)
            self._upcoming = self._next_window(number)

    def close(self) -> None:
        """Release the open window and all requests. Nothing can be read afterwards."""
        for request in self._requests.values():
            self._budget.release(request.size)
        self._requests.clear()
        self._open = self._upcoming = None

    def take(self, first_step: int, steps: int) -> Columns:
        """Return the samples of a run of steps, step after step. Runs must ascend from call to call.

        Returns:
            Columns of ``steps * slice.width`` rows: the features, `CLASS_ID`, and `WEIGHT` where the slice is weighted.
        """
        if self._contiguous:
            return self.at(range(first_step * self._piece, (first_step + steps) * self._piece))
        starts = np.arange(first_step, first_step + steps, dtype=np.int64) * self._piece
        positions = (starts[:, None] + self._slice.offsets()).reshape(-1)
        columns = self.at(np.minimum(positions, self._last))
        if self._slice.weighted:
            is_real = np.tile(self._slice.is_real(), steps) & (positions <= self._last)
            columns[WEIGHT] = is_real.astype(np.float32)
        return columns

    def at(self, positions: Positions) -> dict[str, Column]:
        """Return the samples at ascending positions of the stream. Positions must ascend from call to call, too."""
        parts: list[Columns] = []
        for number, offsets in self._by_window(positions):
            if parts:
                parts[-1] = copy_columns(parts[-1])  # lets go of the previous window
            parts.append(self._gather(number, offsets))
        return concat_columns(parts)

    def _number_at(self, position: int) -> int:
        """Return the window of a position; after the end of the stream, windows are counted on from its beginning."""
        laps, position = divmod(position, self._windows.samples)
        return laps * len(self._windows) + self._windows.number_at(position)

    def _by_window(self, positions: Positions) -> Iterator[tuple[int, Positions]]:
        """Yield the windows that ascending positions fall in, and the positions relative to the window's start."""
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
            self._open = None  # before the next window takes memory
            self._number = number
            self._open = self._enter(number)
        with self._counters.busy("gather", items=len(positions)):
            return self._open.take(positions)

    def _enter(self, number: int) -> OpenWindow:
        """Return a window that is needed now; drop requests for earlier ones."""
        if number not in self._requests:
            self._request_now(number)
        earlier = [requested for requested in self._requests if requested < number]
        for requested in [*earlier, number]:
            self._budget.release(self._requests[requested].size)
        for requested in earlier:
            del self._requests[requested]
        self._budget.fill()
        window = self._requests.pop(number).window
        if window.done():
            return window.result()
        with self._counters.waiting("gather"):
            return window.result()

    def _request_now(self, number: int) -> None:
        """Request a window that is needed now, whatever the budget."""
        self._requests[number] = self._request(number, 0)
        if self._upcoming is not None and self._upcoming[0] <= number:
            self._upcoming = self._next_window(number)

    def _next_window(self, number: int) -> tuple[int, UpcomingWindow] | None:
        """Return the next window that serves samples, with its step and bytes."""
        last = self._number_at(self._last)
        while (number := number + 1) <= last:
            window = self._windows[number % len(self._windows)]
            if window.samples:
                size = self._opener.context.fetcher.bytes_of(window.segments)
                return number, UpcomingWindow(step=self._step(number, window), size=size)
        return None

    def _step(self, number: int, window: Window) -> int:
        laps = number // len(self._windows)
        return self._steps_before + (laps * self._windows.samples + window.start) // self._piece

    def _request(self, number: int, size: int) -> _Request:
        window = self._windows[number % len(self._windows)]
        opened = self._opener.begin(window, self._first, self._step(number, window), contiguous=self._contiguous)
        return _Request(window=opened, size=size)

"""One stream of an epoch at work: its windows are opened and planned in background threads, ahead of need; the samples
asked for are gathered from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from .balance import ClassSchedule, RecordDrawer
from .buckets import BucketedPicks, Buckets, Picks
from .columns import Column, Columns, concat_columns, slice_columns, take_columns, take_from_segments
from .counters import Counters
from .lookahead import Lookahead, Upcoming
from .order import EpochOrder, StreamSlice
from .planning import open_after
from .quarantine import stand_ins
from .shards import OpenShard, ShardFetcher
from .windows import Window

__all__ = ["CLASS_ID", "WEIGHT", "OpenStreams", "StreamReader", "choose_donors"]

CLASS_ID = "class_id"
WEIGHT = "sample_weight"
Int64 = npt.NDArray[np.int64]
ClassNumbers = npt.NDArray[np.integer]
_DRAWN_FIRST = 4096  # samples of a window: the first batch waits for them


class _NaturalPicks:
    """Each record once, in random order."""

    def __init__(self, order: Int64) -> None:
        self._order = order

    def at(self, positions: Int64) -> Int64:
        return self._order[positions]


class _BalancedPicks:
    """Records of the wanted classes: the first are drawn at once, the rest once no window waits to be planned.

    Args:
        wanted: the class of each position of the window.
        drawer: of the window's records.
        first: the first position that will be asked for.
        planner: threads that draw.
    """

    def __init__(self, wanted: ClassNumbers, drawer: RecordDrawer, first: int, planner: Executor) -> None:
        self._first = first
        if first:
            drawer.skip(wanted[:first])
        self._rows = drawer.draw(wanted[first : first + _DRAWN_FIRST])
        rest = wanted[first + _DRAWN_FIRST :]
        self._draw_rest = partial(drawer.draw, rest)
        self._rest = planner.submit(self._draw_rest) if len(rest) else None

    def at(self, positions: Int64) -> Int64:
        if self._rest is not None and positions[-1] >= self._first + len(self._rows):
            rest = self._draw_rest() if self._rest.cancel() else self._rest.result()
            self._rows, self._rest = np.concatenate([self._rows, rest]), None
        return self._rows[positions - self._first]


@dataclass(frozen=True)
class _OpenWindow:
    """A window in memory: its records, numbered through its segments, and which of them each position serves."""

    window: Window
    segments: Sequence[Columns]
    starts: Sequence[int]
    picks: Picks


@dataclass(frozen=True)
class _Asked:
    """A window that was asked for, and the bytes that it counts for as one ahead of need."""

    opened: Future[_OpenWindow]
    size: int


@dataclass(frozen=True)
class OpenStreams:
    """The streams of a split, of any epoch, and the threads that fetch and plan for them.

    Attributes:
        order: of an epoch.
        schedule: of classes in an epoch, or None for the natural mix.
        class_counts: gives the records of each class in each shard of the split, [shards, classes].
        fetcher: of the split's shards.
        planner: threads that plan windows; others than the fetcher's.
        counters: of the loader.
        ahead: what may be fetched ahead of need.
        buckets: how records are put together by length, or None.
    """

    order: Callable[[int], EpochOrder]
    schedule: Callable[[int], ClassSchedule | None]
    class_counts: Callable[[], npt.NDArray[np.unsignedinteger]]
    fetcher: ShardFetcher
    planner: Executor
    counters: Counters
    ahead: Lookahead
    buckets: Buckets | None = None

    def reader(self, epoch: int, part: StreamSlice, start_step: int) -> StreamReader:
        """One stream of an epoch, from a step on; see `StreamReader`."""
        return StreamReader(
            self.order(epoch),
            self.schedule(epoch),
            self.class_counts,
            self.fetcher,
            self.planner,
            self.counters,
            self.ahead,
            part,
            start_step,
            self.buckets,
        )

    def close(self) -> None:
        """Begin nothing more, and let the threads end."""
        self.planner.shutdown(wait=False, cancel_futures=True)
        self.fetcher.close()


class StreamReader:
    """Serves a slice of each piece of one stream.

    Args:
        order: of the epoch.
        schedule: of classes, or None for the natural mix.
        class_counts: gives the records of each class in each shard of the split, [shards, classes]; asked only where a
            window lacks a class.
        fetcher: of the split's shards.
        planner: threads that plan windows; others than the fetcher's.
        counters: of the loader.
        ahead: what may be fetched ahead of need, shared by the streams.
        stream_slice: which stream, and which samples of each piece.
        start_step: the first step that will be asked for.
        buckets: how records are put together by length, or None.
    """

    def __init__(
        self,
        order: EpochOrder,
        schedule: ClassSchedule | None,
        class_counts: Callable[[], npt.NDArray[np.unsignedinteger]],
        fetcher: ShardFetcher,
        planner: Executor,
        counters: Counters,
        ahead: Lookahead,
        stream_slice: StreamSlice,
        start_step: int,
        buckets: Buckets | None = None,
    ) -> None:
        self._order = order
        self._schedule = schedule
        self._class_counts = class_counts
        self._fetcher = fetcher
        self._planner = planner
        self._counters = counters
        self._slice = stream_slice
        self._windows = order.windows(stream_slice.stream)
        self._lookahead = ahead
        self._ahead: dict[int, _Asked] = {}
        self._open: _OpenWindow | None = None
        self._number = -1  # of the open window
        self._first = start_step * order.geometry.piece  # position; nothing before it is asked for
        wrapping = order.geometry.remainder == "wrap"
        self._last = (order.geometry.steps * order.geometry.piece if wrapping else self._windows.samples) - 1
        self._buckets = buckets
        number = self._number_at(min(self._first, self._last))
        if buckets is not None:  # a span is drawn whole
            self._first -= self._first % (buckets.steps * order.geometry.piece)
        self._ahead[number] = self._request(number, 0)
        self._upcoming = self._after(number)
        ahead.add(self)

    @property
    def upcoming(self) -> Upcoming | None:
        """The first window that was not asked for yet; None behind the last."""
        return None if self._upcoming is None else self._upcoming[1]

    def ask(self) -> None:
        """Ask for the first window that was not asked for yet, ahead of need."""
        if self._upcoming is not None:
            number, upcoming = self._upcoming
            self._ahead[number] = self._request(number, upcoming.size)
            self._upcoming = self._after(number)

    def take(self, first_step: int, steps: int) -> Columns:
        """The samples of a run of steps, step after step; later runs only.

        Returns:
            Columns of ``steps * slice.width`` rows: the features, `CLASS_ID`, and where the slice is weighted `WEIGHT`.
        """
        positions = self._positions(first_step, steps)
        columns = self.at(np.minimum(positions, self._last))
        if self._slice.weighted:
            counts = np.tile(self._slice.counts(), steps) & (positions <= self._last)
            columns[WEIGHT] = counts.astype(np.float32)
        return columns

    def at(self, positions: Int64) -> dict[str, Column]:
        """The samples at ascending positions of the stream; later ones only."""
        return concat_columns([self._gather(number, at) for number, at in self._by_window(positions)])

    def _positions(self, first_step: int, steps: int) -> Int64:
        starts = np.arange(first_step, first_step + steps, dtype=np.int64) * self._order.geometry.piece
        return (starts[:, None] + self._slice.places()).reshape(-1)

    def _number_at(self, position: int) -> int:
        """The window of a position; those that it falls in again behind the stream's end are counted on."""
        laps, position = divmod(position, self._windows.samples)
        return laps * len(self._windows) + self._windows.number_at(position)

    def _by_window(self, positions: Int64) -> Iterator[tuple[int, Int64]]:
        """The windows that ascending positions fall in, and the positions in each, from its own start."""
        start = 0
        while start < len(positions):
            number = self._number_at(int(positions[start]))
            laps, own = divmod(number, len(self._windows))
            before = laps * self._windows.samples
            stop = int(np.searchsorted(positions, before + self._windows.stops[own]))
            yield number, positions[start:stop] - (before + self._windows[own].start)
            start = stop

    def _gather(self, number: int, positions: Int64) -> Columns:
        if self._open is None or self._number != number:
            self._open = None  # let go of the old window before the new one is taken in
            self._number = number
            self._open = self._enter(number)
        with self._counters.busy("gather", items=len(positions)):
            rows = self._open.picks.at(positions)
            return take_from_segments(self._open.segments, self._open.starts, rows)

    def _enter(self, number: int) -> _OpenWindow:
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

    def _after(self, number: int) -> tuple[int, Upcoming] | None:
        """The next window that serves anything, and what it takes to ask for it."""
        last = self._number_at(self._last)
        while (number := number + 1) <= last:
            window = self._windows[number % len(self._windows)]
            if window.samples:
                size = self._fetcher.bytes_of([segment.shard for segment in window.segments])
                return number, Upcoming(step=self._step(number, window), size=size)
        return None

    def _step(self, number: int, window: Window) -> int:
        laps = number // len(self._windows)
        return (laps * self._windows.samples + window.start) // self._order.geometry.piece

    def _request(self, number: int, size: int) -> _Asked:
        window = self._windows[number % len(self._windows)]
        step = self._step(number, window)
        shards = [self._fetcher.request(segment.shard, step) for segment in window.segments]
        return _Asked(opened=open_after(shards, partial(self._open_window, window), self._planner), size=size)

    def _wait(self, future: Future[_OpenWindow]) -> _OpenWindow:
        if future.done():
            return future.result()
        with self._counters.waiting("gather"):
            return future.result()

    def _open_window(self, window: Window, shards: Sequence[Future[OpenShard]]) -> _OpenWindow:
        parts = list(zip(window.segments, shards, strict=True))
        opened = [self._fetcher.wait_unless_bad(segment.shard, future) for segment, future in parts]
        lent = self._stand_in(window, opened)
        with self._counters.busy("plan", items=window.samples):
            segments: list[Columns] = [
                slice_columns(_with_classes(shard), segment.start, segment.stop)
                for shard, segment in zip(opened, window.segments, strict=True)
                if shard is not None
            ]
            segments += [_with_classes(shard) for shard in lent]
            if self._schedule is None:
                natural = _NaturalPicks(self._natural_rows(window, opened, lent))
                return _open(window, segments, self._by_length(natural, window, segments, None))
            drawer = self._drawer(self._schedule, window, segments)
        lacking = np.flatnonzero((self._schedule.weights > 0) & (drawer.counts == 0))
        if lacking.size:
            segments += [self._borrow(window, int(class_id)) for class_id in lacking]
            drawer = self._drawer(self._schedule, window, segments)
        with self._counters.busy("plan"):
            first = max(self._first - window.start, 0)
            wanted = self._wanted(self._schedule, window)
            drawn = _BalancedPicks(wanted, drawer, first, self._planner)
            picks = self._by_length(drawn, window, segments, wanted)
            return _open(window, segments, picks)

    def _by_length(
        self, picks: Picks, window: Window, segments: Sequence[Columns], wanted: ClassNumbers | None
    ) -> Picks:
        if self._buckets is None:
            return picks
        return BucketedPicks(picks, self._order, window, segments, self._buckets, wanted)

    def _stand_in(self, window: Window, opened: Sequence[OpenShard | None]) -> list[OpenShard]:
        """The shard that helps out where a window has fewer records left than it has lost; none where it has enough."""
        lost = [
            segment.stop - segment.start for segment, shard in zip(window.segments, opened, strict=True) if not shard
        ]
        if 2 * sum(lost) <= sum(segment.stop - segment.start for segment in window.segments):
            return []
        return [self._lent(window, np.asarray(self._order.shard_records, np.int64))]

    def _natural_rows(self, window: Window, opened: Sequence[OpenShard | None], lent: Sequence[OpenShard]) -> Int64:
        order = self._order.permutation(window)
        if None not in opened:
            return order
        lengths = [segment.stop - segment.start for segment in window.segments]
        key = self._order.key("stand-ins", window.stream, window.number)
        return stand_ins(lengths, [shard is None for shard in opened], sum(len(s.class_ids) for s in lent), key)[order]

    def _drawer(self, schedule: ClassSchedule, window: Window, segments: Sequence[Columns]) -> RecordDrawer:
        class_ids = np.concatenate([segment[CLASS_ID] for segment in segments])
        key = self._order.key("window", window.stream, window.number)
        return RecordDrawer(class_ids, len(schedule.weights), key)

    def _wanted(self, schedule: ClassSchedule, window: Window) -> ClassNumbers:
        """The class of each of the window's positions."""
        piece = self._order.geometry.piece
        first = window.start // piece
        steps = np.arange(first, -(-window.stop // piece), dtype=np.int64)
        classes = schedule.classes_at(steps, range(window.stream * piece, (window.stream + 1) * piece)).reshape(-1)
        return classes[window.start - first * piece :][: window.samples]

    def _borrow(self, window: Window, class_id: int) -> Columns:
        """The records of a class that the window lacks, from another shard."""
        opened = self._lent(window, self._class_counts()[:, class_id])
        return take_columns(_with_classes(opened), np.flatnonzero(opened.class_ids == class_id))

    def _lent(self, window: Window, records: npt.NDArray[np.integer]) -> OpenShard:
        """The next shard on the tape, behind the window, that has such records and can be read."""
        last = np.array([window.segments[-1].shard])
        while True:
            left = records if self._fetcher.quarantine is None else self._fetcher.quarantine.left(records)
            shard = int(choose_donors(self._order, last, left)[0])
            opened = self._fetcher.wait_unless_bad(shard, self._fetcher.request(shard))
            if opened is not None:
                return opened


def _with_classes(shard: OpenShard) -> Columns:
    return {**shard.columns, CLASS_ID: shard.class_ids}


def _open(window: Window, segments: Sequence[Columns], picks: Picks) -> _OpenWindow:
    ends = np.cumsum([len(segment[CLASS_ID]) for segment in segments])
    return _OpenWindow(window, segments, [0, *ends[:-1].tolist()], picks)


def choose_donors(order: EpochOrder, last_shards: Int64, records: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """The shards that lend a class to windows without it: the next on the tape, around its end, that have records.

    Args:
        order: of the epoch.
        last_shards: of each window that lacks the class, the shard of its last segment; [windows].
        records: of the class in each shard of the split; not all are 0.

    Returns:
        int64 [windows].
    """
    tape, _ = order.tape()
    lenders = np.flatnonzero(records[tape] > 0)
    following = np.searchsorted(lenders, order.slots()[last_shards] + 1)
    return tape[lenders[following % len(lenders)]]

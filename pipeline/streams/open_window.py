"""A window opened: its shards' records in memory, and which of them serves each of its positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ...sharding.compute.grouping import group, stable_order
from ..decode.columns import Column, Columns, concat_columns, slice_columns, take_columns, take_from_segments
from ..decode.row_views import has_viewable_rows
from ..decode.shard_opener import OpenShard
from ..fetch.quarantine import replacement_rows
from ..fetch.threads import Threads, run_after
from ..metrics.stage_counters import Counters
from ..order.class_balance import ClassSchedule, RecordSampler
from ..order.donor_shards import choose_donors, first_shards_with
from ..order.epoch_order import EpochOrder
from ..order.windows import Positions, Segment, Window
from ..select.sample_columns import CLASS_ID
from .length_buckets import BucketedPicks, LengthBuckets, Picks
from .shard_fetcher import ShardFetcher

__all__ = ["OpenWindow", "WindowOpener"]

Int64 = npt.NDArray[np.int64]
ClassNumbers = npt.NDArray[np.integer]
_TOGETHER = 1 << 16  # samples that are drawn at a time, of a window of fewer records


class _WindowPicks:
    """Which record serves each position of a window, from the first on that will be asked for.

    Args:
        rows: of these positions.
        first: of them.
    """

    def __init__(self, rows: Int64, first: int = 0) -> None:
        self.rows = rows
        self.first = first

    def at(self, positions: Positions) -> Int64:
        if isinstance(positions, range):
            return self.rows[positions.start - self.first : positions.stop - self.first]
        return self.rows[positions - self.first]


class _DrawnPicks:
    """The same, of a window that serves more samples than it has records, maybe a thousand times: drawn as it goes on.

    Args:
        drawer: of the records, which has come to the first position.
        wanted: the class of each of the positions ``[start, stop)``.
        first: position that will be asked for.
        stop: of the window's positions.
        together: how many are drawn at a time.
    """

    def __init__(
        self, drawer: RecordSampler, wanted: Callable[[int, int], ClassNumbers], first: int, stop: int, together: int
    ) -> None:
        self._drawer = drawer
        self._wanted = wanted
        self._first, self._rows = first, np.empty(0, np.int64)  # those that were drawn last
        self._stop = stop
        self._together = together

    def at(self, positions: Positions) -> Int64:
        begin, end = int(positions[0]), int(positions[-1]) + 1
        drawn = self._first + len(self._rows)
        if drawn < end:
            first, parts = min(begin, drawn), [self._rows[begin - self._first :]]
            while drawn < end:
                until = min(drawn + self._together, self._stop)
                parts.append(self._drawer.draw(self._wanted(drawn, until)))
                drawn = until
            self._first, self._rows = first, np.concatenate(parts)
        rows: Int64 = self._rows[np.asarray(positions) - self._first]
        return rows


@dataclass(frozen=True)
class OpenWindow:
    """A window in memory: its records, numbered through its segments, and which of them each position serves.

    It holds the shards that it was asked for, so that another stream that needs one of them finds it there.

    Attributes:
        window: of a stream.
        shards: that its segments lie in.
        segments: its records.
        starts: number of the first record of each segment.
        picks: the record of each position.
        served: columns of which the rows of all positions are there in order, from `first` on; none if not asked for.
        first: position.
    """

    window: Window
    shards: Sequence[Future[OpenShard]]
    segments: Sequence[Columns]
    starts: Sequence[int]
    picks: Picks
    served: Columns
    first: int

    def take(self, positions: Positions) -> dict[str, Column]:
        """The samples at ascending positions; each call goes on from the one before."""
        if not self.served or not isinstance(positions, range):
            return take_from_segments(self.segments, self.starts, self.picks.at(positions))
        served = slice_columns(self.served, positions.start - self.first, positions.stop - self.first)
        others = [{name: segment[name] for name in segment if name not in served} for segment in self.segments]
        if others[0]:
            served |= take_from_segments(others, self.starts, self.picks.at(positions))
        return {name: served[name] for name in self.segments[0]}


class WindowOpener:
    """Opens the windows of an epoch. Any thread may ask.

    Args:
        order: of the epoch.
        streams: that are read; what they need of a shard at the same time is fetched once.
        schedule: of classes, or None for the natural mix.
        class_counts: gives the records of each class in each shard of the split, [shards, classes]; asked only where a
            window lacks a class.
        fetcher: of the split's shards.
        planner: threads that plan windows; others than the fetcher's.
        counters: of the loader.
        buckets: how records are put together by length, or None.
    """

    def __init__(
        self,
        order: EpochOrder,
        streams: range,
        schedule: ClassSchedule | None,
        class_counts: Callable[[], npt.NDArray[np.unsignedinteger]],
        fetcher: ShardFetcher,
        planner: Threads,
        counters: Counters,
        buckets: LengthBuckets | None,
    ) -> None:
        self._order = order
        self._streams = streams
        self._schedule = schedule
        self._class_counts = class_counts
        self._fetcher = fetcher
        self._planner = planner
        self._counters = counters
        self._buckets = buckets

    def begin(self, window: Window, first_position: int, step: int, *, whole: bool) -> Future[OpenWindow]:
        """Begin to open a window, in background threads.

        Args:
            window: of a stream.
            first_position: of the stream; nothing before it will be asked for.
            step: that needs it.
            whole: whether everything from then on will be asked for, in ranges.
        """
        segments: Sequence[Segment] = window.segments
        if not self._fetcher.exact:
            segments = [self._order.shared_segment(segment, self._streams) for segment in segments]
        shards = [self._fetcher.request(segment, step) for segment in segments]
        return run_after(shards, partial(self._open, window, first_position, whole), self._planner)

    def _open(
        self, window: Window, first_position: int, whole: bool, shards: Sequence[Future[OpenShard]]
    ) -> OpenWindow:
        parts = list(zip(window.segments, shards, strict=True))
        opened = [self._fetcher.wait_unless_bad(segment.shard, future) for segment, future in parts]
        lent = self._stand_in(window, opened)
        with self._counters.busy("plan", items=window.samples):
            segments: list[Columns] = [
                slice_columns(_with_classes(shard), segment.start - shard.first, segment.stop - shard.first)
                for shard, segment in zip(opened, window.segments, strict=True)
                if shard is not None
            ]
            segments += [_with_classes(shard) for shard in lent]
            if self._schedule is None:
                natural = _WindowPicks(self._natural_rows(window, opened, lent))
                picks = self._by_length(natural, window, segments, None)
                return _numbered(window, shards, segments, picks, whole=whole)
            drawer = self._drawer(self._schedule, window, segments)
        lacking = np.flatnonzero((self._schedule.weights > 0) & (drawer.counts == 0))
        if lacking.size:
            segments.append(self._borrow(self._schedule, window, lacking))
        with self._counters.busy("plan"):
            if lacking.size:
                drawer = self._drawer(self._schedule, window, segments)
            first = max(first_position - window.start, 0)
            wanted = partial(self._wanted, self._schedule, window)
            together = max(window.records, _TOGETHER)
            for start in range(0, first, together):
                drawer.skip(wanted(start, min(start + together, first)))
            drawn: Picks
            if window.samples > window.records:
                drawn = _DrawnPicks(drawer, wanted, first, window.samples, together)
            else:
                drawn = _WindowPicks(drawer.draw(wanted(first, window.samples)), first)
            picks = self._by_length(drawn, window, segments, wanted)
            return _numbered(window, shards, segments, picks, whole=whole)

    def _by_length(
        self,
        picks: Picks,
        window: Window,
        segments: Sequence[Columns],
        wanted: Callable[[int, int], ClassNumbers] | None,
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
        held: dict[int, OpenShard] = {}
        self._lent(window, np.asarray(self._order.shard_records, np.int64), held)
        return list(held.values())

    def _natural_rows(self, window: Window, opened: Sequence[OpenShard | None], lent: Sequence[OpenShard]) -> Int64:
        order = self._order.permutation(window)
        if None not in opened:
            return order
        lengths = [segment.stop - segment.start for segment in window.segments]
        key = self._order.key("stand-ins", window.stream, window.number)
        return replacement_rows(lengths, [shard is None for shard in opened], sum(len(s.class_ids) for s in lent), key)[
            order
        ]

    def _drawer(self, schedule: ClassSchedule, window: Window, segments: Sequence[Columns]) -> RecordSampler:
        class_ids = np.concatenate([segment[CLASS_ID] for segment in segments])
        key = self._order.key("window", window.stream, window.number)
        return RecordSampler(class_ids, len(schedule.weights), key)

    def _wanted(self, schedule: ClassSchedule, window: Window, start: int, stop: int) -> ClassNumbers:
        """The class of each of the window's positions ``[start, stop)``."""
        piece, begin = self._order.geometry.piece, window.start + start
        first = begin // piece
        steps = np.arange(first, -(-(window.start + stop) // piece), dtype=np.int64)
        classes = schedule.classes_at(steps, range(window.stream * piece, (window.stream + 1) * piece)).reshape(-1)
        return classes[begin - first * piece :][: stop - start]

    def _borrow(self, schedule: ClassSchedule, window: Window, lacking: Int64) -> Columns:
        """The records of the classes that the window lacks, class after class, from other shards."""
        lent = self._fetcher.borrowed
        with self._counters.busy("plan"):
            donors = self._donors(window, lacking)
            kept = lent.get(donors, lacking)
            pieces = [] if kept is None else [kept]
            if kept is not None:
                there = np.zeros(len(schedule.weights), np.bool_)
                there[kept[CLASS_ID]] = True
                left = ~there[lacking]
                lacking, donors = lacking[left], donors[left]
        while lacking.size:
            asked = [
                (shard, classes, self._fetcher.request(self._fetcher.whole(shard)))
                for shard, classes in ((shard, lacking[places]) for shard, places in group(donors))
            ]
            bad: list[Int64] = []
            for shard, classes, future in asked:
                opened = self._fetcher.wait_unless_bad(shard, future)  # a wait for the store, which is no planning
                if opened is None:
                    bad.append(classes)
                    continue
                with self._counters.busy("plan"):
                    rows = _rows_to_lend(opened.class_ids, classes, self._lent_later(schedule, shard))
                    pieces.append(lent.keep(shard, _with_classes(opened), *rows))
            lacking = np.sort(np.concatenate(bad)) if bad else lacking[:0]
            donors = self._donors(window, lacking) if bad else donors[:0]
        with self._counters.busy("plan"):
            borrowed = concat_columns(pieces)
            return take_columns(borrowed, stable_order(borrowed[CLASS_ID]))

    def _donors(self, window: Window, classes: Int64) -> Int64:
        """For each class the next shard behind the window that has it and is not known to be bad."""
        of_class, quarantine = self._class_counts(), self._fetcher.quarantine
        following = self._order.shards_after(window.segments[-1].shard, window.stream)
        readable = following if quarantine is None else quarantine.readable_shards(following)
        donors = first_shards_with(of_class, readable, classes)
        if quarantine is not None:
            for class_id in classes[donors < 0].tolist():
                quarantine.readable_counts(of_class[:, class_id])  # which says that all are bad
        return donors

    def _lent_later(self, schedule: ClassSchedule, shard: int) -> npt.NDArray[np.bool_]:
        """Which classes windows may borrow from a shard: none that those beside it on the tape both have; [classes]."""
        no_nearer: npt.NDArray[np.bool_] = (self._class_counts()[self._order.neighbours(shard)] == 0).any(axis=0)
        return no_nearer & (schedule.weights > 0)

    def _next_lender(self, window: Window, records: npt.NDArray[np.integer]) -> int:
        """The next shard behind the window that has records and is not known to be bad."""
        left = records if self._fetcher.quarantine is None else self._fetcher.quarantine.readable_counts(records)
        stream, last = np.array([window.stream]), np.array([window.segments[-1].shard])
        return int(choose_donors(self._order, stream, last, left)[0])

    def _lent(self, window: Window, records: npt.NDArray[np.integer], held: dict[int, OpenShard]) -> int:
        """The same, once it is known that it can be read; it joins `held`."""
        while True:
            shard = self._next_lender(window, records)
            if shard in held:
                return shard
            opened = self._fetcher.wait_unless_bad(shard, self._fetcher.request(self._fetcher.whole(shard)))
            if opened is not None:
                held[shard] = opened
                return shard


def _with_classes(shard: OpenShard) -> Columns:
    return {**shard.columns, CLASS_ID: shard.class_ids}


def _numbered(
    window: Window, shards: Sequence[Future[OpenShard]], segments: Sequence[Columns], picks: Picks, *, whole: bool
) -> OpenWindow:
    ends = np.cumsum([len(segment[CLASS_ID]) for segment in segments])
    starts = [0, *ends[:-1].tolist()]
    if not whole or not isinstance(picks, _WindowPicks):
        return OpenWindow(window, shards, segments, starts, picks, {}, 0)
    served = take_from_segments([_in_order(segment) for segment in segments], starts, picks.rows)
    return OpenWindow(window, shards, segments, starts, picks, served, picks.first)


def _in_order(segment: Columns) -> Columns:
    """The columns whose rows had better be put in the order of positions at once: numbers, and where larger rows lie.

    What is looked up a few thousand rows at a time has left the processor's cache before the next ones are.
    """
    return {
        name: values
        for name, values in segment.items()
        if has_viewable_rows(values) or (isinstance(values, np.ndarray) and values.ndim == 1)
    }


def _rows_to_lend(class_ids: npt.NDArray[np.int32], asked: Int64, later: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Rows of a shard that are lent now, and others that may be later; class after class both.

    Args:
        class_ids: of its records.
        asked: classes that are lent now.
        later: whether each class may be, [classes].
    """
    now = np.zeros(len(later), np.bool_)
    now[asked] = True
    chosen = (np.flatnonzero(classes[class_ids]) for classes in (now, later & ~now))
    first, second = (rows[stable_order(class_ids[rows])] for rows in chosen)
    return first, second

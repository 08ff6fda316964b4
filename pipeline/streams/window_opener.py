"""Open windows in background threads: fetch their shards, borrow what is missing, decide which record serves where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from ringfeed.pipeline.decode.columns import Columns, slice_columns
from ringfeed.pipeline.decode.shard_opener import OpenShard
from ringfeed.pipeline.fetch.quarantine import replacement_rows
from ringfeed.pipeline.fetch.threads import run_after
from ringfeed.pipeline.order.class_balance import ClassSchedule, RecordSampler
from ringfeed.pipeline.order.epoch_order import EpochOrder
from ringfeed.pipeline.order.missing_classes import choose_donors
from ringfeed.pipeline.order.windows import Segment, Window
from ringfeed.pipeline.select.sample_columns import CLASS_ID

from .class_borrower import ClassBorrower, labelled_columns
from .length_buckets import BucketedPicks
from .open_window import OpenWindow, assemble_window
from .row_picks import ArrayPicks, ClassNumbers, Int64, Picks, SampledPicks
from .stream_context import StreamContext

_SAMPLE_BLOCK = 1 << 16  # samples drawn at a time, in a window of fewer records


class WindowOpener:
    """Opens the windows of an epoch. Any thread may call it.

    Args:
        order: order of the epoch.
        schedule: classes of the epoch; None for the natural mix.
        context: shards, threads and counters of the streams.
    """

    def __init__(self, order: EpochOrder, schedule: ClassSchedule | None, context: StreamContext) -> None:
        self.order = order
        self.context = context
        self._schedule = schedule
        self._fetcher = context.fetcher
        self._counters = context.counters

    def begin(self, window: Window, first_position: int, step: int, *, contiguous: bool) -> Future[OpenWindow]:
        """Begin to open a window in background threads.

        Args:
            first_position: first position of the stream that will be read.
            step: step that needs the window.
            contiguous: whether all positions from there on will be read, as ranges.
        """
        segments: Sequence[Segment] = window.segments
        if not self._fetcher.exact:
            segments = [self.order.shared_segment(segment, self.context.streams) for segment in segments]
        shards = [self._fetcher.request(segment, step) for segment in segments]
        return run_after(shards, partial(self._open, window, first_position, contiguous), self.context.planner)

    def _open(
        self, window: Window, first_position: int, contiguous: bool, shards: Sequence[Future[OpenShard]]
    ) -> OpenWindow:
        parts = list(zip(window.segments, shards, strict=True))
        opened = [self._fetcher.wait_unless_bad(segment.shard, future) for segment, future in parts]
        substitute = self._substitute(window, opened)
        with self._counters.busy("plan", items=window.samples):
            segments: list[Columns] = [
                slice_columns(labelled_columns(shard), segment.start - shard.first, segment.stop - shard.first)
                for shard, segment in zip(opened, window.segments, strict=True)
                if shard is not None
            ]
            if substitute is not None:
                segments.append(labelled_columns(substitute))
        picks: Picks
        if self._schedule is None:
            classes_of = None
            with self._counters.busy("plan"):
                picks = ArrayPicks(self._natural_rows(window, opened, substitute))
        else:
            classes_of = partial(self._classes_of, self._schedule, window)
            picks = self._balanced_picks(self._schedule, classes_of, window, segments, first_position)
        with self._counters.busy("plan"):
            if self.context.buckets is not None:
                picks = BucketedPicks(picks, self.order, window, segments, self.context.buckets, classes_of)
            return assemble_window(shards, segments, picks, contiguous=contiguous)

    def _substitute(self, window: Window, opened: Sequence[OpenShard | None]) -> OpenShard | None:
        """Return a shard whose records help replace lost ones, if a window has lost more records than it has left."""
        lost = sum(segment.rows for segment, shard in zip(window.segments, opened, strict=True) if shard is None)
        if 2 * lost <= window.records:
            return None
        records = np.asarray(self.order.shard_records, np.int64)
        stream, last = np.array([window.stream]), np.array([window.segments[-1].shard])
        while True:
            readable = self._fetcher.quarantine.readable_counts(records)
            shard = int(choose_donors(self.order, stream, last, readable)[0])
            substitute = self._fetcher.wait_unless_bad(shard, self._fetcher.request(self._fetcher.whole(shard)))
            if substitute is not None:
                return substitute

    def _natural_rows(self, window: Window, opened: Sequence[OpenShard | None], substitute: OpenShard | None) -> Int64:
        """Return the record that serves each position in natural order."""
        order = self.order.permutation(window)
        if None not in opened:
            return order
        lengths, bad = [segment.rows for segment in window.segments], [shard is None for shard in opened]
        spare = 0 if substitute is None else len(substitute.class_ids)
        key = self.order.key("stand-ins", window.stream, window.number)
        return replacement_rows(lengths, bad, spare, key)[order]

    def _balanced_picks(
        self,
        schedule: ClassSchedule,
        classes_of: Callable[[int, int], ClassNumbers],
        window: Window,
        segments: list[Columns],
        first_position: int,
    ) -> Picks:
        """Return the picks of a window by class. Appends the records of classes that it lacks to `segments`."""
        with self._counters.busy("plan"):
            sampler = self._sampler(schedule, window, segments)
        lacking = np.flatnonzero((schedule.weights > 0) & (sampler.counts == 0))
        if lacking.size:
            segments.append(ClassBorrower(self.order, schedule, self.context).borrow(window, lacking))
        with self._counters.busy("plan"):
            if lacking.size:
                sampler = self._sampler(schedule, window, segments)
            first = max(first_position - window.start, 0)
            block = max(window.records, _SAMPLE_BLOCK)
            for start in range(0, first, block):
                sampler.skip(classes_of(start, min(start + block, first)))
            if window.samples > window.records:
                return SampledPicks(sampler, classes_of, first, window.samples, block)
            return ArrayPicks(sampler.draw(classes_of(first, window.samples)), first)

    def _sampler(self, schedule: ClassSchedule, window: Window, segments: Sequence[Columns]) -> RecordSampler:
        class_ids = np.concatenate([segment[CLASS_ID] for segment in segments])
        key = self.order.key("window", window.stream, window.number)
        return RecordSampler(class_ids, len(schedule.weights), key)

    def _classes_of(self, schedule: ClassSchedule, window: Window, start: int, stop: int) -> ClassNumbers:
        """Return the class of each of a window's positions ``[start, stop)``."""
        piece, begin = self.order.geometry.piece, window.start + start
        first = begin // piece
        steps = np.arange(first, -(-(window.start + stop) // piece), dtype=np.int64)
        classes = schedule.classes_at(steps, range(window.stream * piece, (window.stream + 1) * piece)).reshape(-1)
        return classes[begin - first * piece :][: stop - start]

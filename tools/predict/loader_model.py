"""A rank's loader in the model: streams that open windows ahead of need, fetch threads, a planner, a gathering thread.

The decisions are the loader's own: `EpochOrder` says which shards each window has, `PrefetchBudget` which windows are
fetched ahead, `AdaptiveLimit` how many fetches run at once. Only the work is simulated: an event for each shard, window
and block of batches, none for each record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import simpy

from ringfeed.pipeline.deliver.chunk_sizes import chunk_ranges
from ringfeed.pipeline.fetch.adaptive_limit import AdaptiveLimit
from ringfeed.pipeline.order.epoch_order import EpochOrder, StreamSlice
from ringfeed.pipeline.order.windows import StreamWindows
from ringfeed.pipeline.streams.prefetch_budget import PrefetchBudget, UpcomingWindow
from ringfeed.tools.measure.costs import Costs, draw
from ringfeed.tools.measure.dataset_shape import DatasetShape

from .resources import Buffer, CacheModel, Host, Pool, Process

_DRAWS = 256  # samples drawn at a time
_FILES = 2  # of a shard: data and index


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """Resolved settings: fetch threads at first and at most, steps of the first and of the largest chunk, ..."""

    least_threads: int
    most_threads: int
    prefetch_bytes: int
    first_chunk_steps: int
    chunk_steps: int
    ready_batches: int
    steps: int


@dataclass(slots=True, kw_only=True)
class _Held:
    """A shard, or a part of one, that windows hold."""

    key: tuple[int, int, int]
    arrived: simpy.Event
    size: int
    holders: int = 0


@dataclass(slots=True, kw_only=True)
class _Totals:
    """What a loader has done."""

    fetched_bytes: int = 0
    requests: int = 0
    held_bytes: int = 0
    peak_bytes: int = 0
    waits: float = 0.0

    def hold(self, change: int) -> None:
        self.held_bytes += change
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)


class _Random:
    """Draws of one loader, made many at a time."""

    def __init__(self, samples: tuple[float, ...], random: np.random.Generator) -> None:
        self._samples, self._random = samples, random
        self._drawn: list[float] = []

    def __call__(self) -> float:
        if not self._drawn:
            self._drawn = draw(self._samples, self._random, _DRAWS).tolist()
        return self._drawn.pop()


class LoaderModel:
    """The loader of one rank, for one epoch.

    Args:
        env: clock of the simulation.
        host: where it runs.
        dataset: sizes of the shards.
        order: order of the epoch.
        slices: the rank's samples of each global batch.
        settings: its numbers.
        costs: measured costs.
        cache: the cache; None for none.
        random: generator of the draws.

    Attributes:
        totals: what it has done so far.
        batches: batches that are ready.
    """

    def __init__(
        self,
        env: simpy.Environment,
        host: Host,
        dataset: DatasetShape,
        order: EpochOrder,
        slices: tuple[StreamSlice, ...],
        settings: LoaderSettings,
        costs: Costs,
        cache: CacheModel | None,
        random: np.random.Generator,
    ) -> None:
        self._env, self._host, self._dataset, self._costs, self._cache = env, host, dataset, costs, cache
        self._settings = settings
        self._local_batch = sum(part.width for part in slices)
        self._pool = Pool(env, AdaptiveLimit(settings.least_threads, settings.most_threads))
        self._planner = simpy.Resource(env)
        self._latency = _Random(costs.store.latency_seconds, random)
        self._byte_seconds = _Random(costs.byte_seconds, random)
        self._budget = PrefetchBudget(settings.prefetch_bytes)
        self._held: dict[tuple[int, int, int], _Held] = {}
        self._parts: Counter[int] = Counter()  # of each shard that are held
        self.totals = _Totals()
        self._streams = [_Stream(self, order.windows(part.stream), order.geometry.piece) for part in slices]
        self.batches = Buffer(env, settings.steps)
        env.process(self._produce())

    def _produce(self) -> Process:
        """Gather chunk after chunk, as `Loader` does."""
        settings, costs, cores = self._settings, self._costs, self._host.cores
        yield self._env.timeout(costs.start_seconds)
        for stream in self._streams:
            stream.begin()
            self._budget.add(stream)
        for chunk in chunk_ranges(0, settings.steps, settings.chunk_steps, settings.first_chunk_steps):
            for stream in self._streams:
                for arrived in stream.enter(chunk.start, len(chunk)):
                    start = self._env.now
                    yield arrived
                    self.totals.waits += self._env.now - start
            yield cores.work(costs.gather_seconds * len(chunk) * self._local_batch)
            self.batches.put(len(chunk))
            yield from self.batches.wait_for_room(settings.ready_batches)

    def budget_fill(self, released: int) -> None:
        """Return bytes to the budget and prefetch what fits."""
        self._budget.release(released)
        self._budget.fill()

    def request(self, windows: StreamWindows, number: int, step: int) -> _Window:
        """Begin to fetch and plan a window of a stream."""
        table, first, stop = windows.segments, int(windows.bounds[number]), int(windows.bounds[number + 1])
        held = []
        for shard, start, rows in zip(
            table.shards[first:stop].tolist(),
            table.firsts[first:stop].tolist(),
            table.lengths[first:stop].tolist(),
            strict=True,
        ):
            held.append(self._hold(shard, start, rows, step))
        window = _Window(planned=simpy.Event(self._env), held=held)
        self._env.process(self._plan(window, int(table.lengths[first:stop].sum())))
        return window

    def segment_bytes(self, shard: int, rows: int) -> int:
        """Bytes read for some rows of a shard, with its index."""
        data, index = int(self._dataset.data_bytes[shard]), int(self._dataset.index_bytes[shard])
        return (data * rows // int(self._dataset.records[shard]) if self._dataset.in_parts else data) + index

    def release(self, window: _Window) -> None:
        """Let go of a window's shards."""
        for held in window.held:
            held.holders -= 1
            if not held.holders:
                self.totals.hold(-held.size)
                del self._held[held.key]
                self._parts[held.key[0]] -= 1

    def _hold(self, shard: int, start: int, rows: int, step: int) -> _Held:
        key = (shard, start, rows) if self._dataset.in_parts else (shard, 0, 0)
        held = self._held.get(key)
        if held is None:
            has_index = self._parts[shard] > 0  # of another part, which shares it
            size = self.segment_bytes(shard, rows) - has_index * int(self._dataset.index_bytes[shard])
            task = partial(self._fetch, shard, size, _FILES - has_index)
            held = self._held[key] = _Held(key=key, arrived=self._pool.submit(step, task, size), size=size)
            self._parts[shard] += 1
            self.totals.hold(size)
        held.holders += 1
        return held

    def _plan(self, window: _Window, records: int) -> Process:
        for held in window.held:
            if not held.arrived.triggered:
                yield held.arrived
        if self._costs.plan_seconds:
            with self._planner.request() as turn:
                yield turn
                yield self._host.cores.work(self._costs.plan_seconds * records)
        window.planned.succeed()

    def _fetch(self, shard: int, size: int, files: int) -> Process:
        """Bring a shard: from the cache, or the store; check and decode it."""
        costs, cores, cache = self._costs, self._host.cores, self._cache
        if cache is None:
            yield from self._from_store(size, files)
            yield cores.work(files * costs.file_seconds + size * self._byte_seconds())
            return
        while shard in cache.arriving:  # another rank fetches it, and perhaps cannot keep it
            yield cache.arriving[shard]
        if cache.has(shard):
            yield cores.work(files * costs.file_seconds + size * costs.hit_byte_seconds)
            return
        cache.arriving[shard] = simpy.Event(self._env)
        yield from self._from_store(size, files)
        yield cores.work(files * costs.file_seconds + size * (self._byte_seconds() + costs.fill_byte_seconds))
        cache.put(shard, size)
        cache.arriving.pop(shard).succeed()

    def _from_store(self, size: int, files: int) -> Process:
        self.totals.requests += files
        self.totals.fetched_bytes += size
        latency = sum(self._latency() for _ in range(files))
        if latency:
            yield self._env.timeout(latency)
        yield self._host.link.work(size)


@dataclass(slots=True, kw_only=True)
class _Window:
    """A requested window: the event that it is planned, its shards, and the bytes it takes from the budget."""

    planned: simpy.Event
    held: list[_Held] = field(default_factory=list)
    budget: int = 0


class _Stream:
    """Mirrors `StreamReader`: which window is open, which are requested, which comes next."""

    def __init__(self, loader: LoaderModel, windows: StreamWindows, piece: int) -> None:
        self._loader, self._windows, self._piece = loader, windows, piece
        self._stops: list[int] = windows.stops.tolist()
        self._requested: dict[int, _Window] = {}
        self._open: _Window | None = None
        self._number = -1
        self._next = 0
        self.upcoming = self._find_upcoming()

    def _find_upcoming(self) -> UpcomingWindow | None:
        """The first window not requested yet; see `PrefetchingStream`."""
        if self._next >= len(self._stops):
            return None
        start = self._stops[self._next - 1] if self._next else 0
        first, stop = int(self._windows.bounds[self._next]), int(self._windows.bounds[self._next + 1])
        table = self._windows.segments
        size = sum(
            self._loader.segment_bytes(shard, rows)
            for shard, rows in zip(table.shards[first:stop].tolist(), table.lengths[first:stop].tolist(), strict=True)
        )
        return UpcomingWindow(step=start // self._piece, size=size)

    def begin(self) -> None:
        """Request the first window."""
        self._request(0)

    def prefetch(self) -> None:
        """Request the upcoming window; see `PrefetchingStream`."""
        assert self.upcoming is not None
        self._request(self.upcoming.size)

    def _request(self, budget: int) -> None:
        number = self._next
        start = self._stops[number - 1] if number else 0
        window = self._loader.request(self._windows, number, start // self._piece)
        window.budget = budget
        self._requested[number] = window
        self._next = self._next_serving(number)
        self.upcoming = self._find_upcoming()

    def _next_serving(self, number: int) -> int:
        """The next window that serves samples."""
        number += 1
        while number < len(self._stops) and self._stops[number] == self._stops[number - 1]:
            number += 1
        return number

    def enter(self, step: int, steps: int) -> Iterator[Any]:
        """Yield the events to wait for before samples of some steps can be gathered, window by window."""
        last = min((step + steps) * self._piece, self._stops[-1]) - 1
        while self._number < 0 or self._stops[self._number] <= last:
            number = 0 if self._number < 0 else self._next_serving(self._number)
            if number >= len(self._stops):
                return
            if self._open is not None:
                self._loader.release(self._open)
            if number not in self._requested:
                self._request(0)
            window = self._requested.pop(number)
            self._number, self._open = number, window
            self._loader.budget_fill(window.budget)
            if not window.planned.triggered:
                yield window.planned

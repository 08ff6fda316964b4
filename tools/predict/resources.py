"""Resources of the model, on SimPy: shared rates, a pool's queue, a buffer, a barrier of ranks, hosts with caches."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import simpy

from ringfeed.pipeline.fetch.adaptive_limit import AdaptiveLimit

Process = Generator[Any, Any, None]


class SharedRate:
    """Processor sharing: each of n jobs advances at ``min(per_job, capacity / n)`` units a second.

    Cores (1 core-second a second per thread) and links (bytes a second per connection) are of this kind. With the
    virtual time that Kleinrock's processor sharing has, an arrival or departure costs O(log n).

    Args:
        env: clock of the simulation.
        capacity: rate of all jobs together.
        per_job: highest rate of one job.
    """

    def __init__(self, env: simpy.Environment, capacity: float, per_job: float) -> None:
        self._env = env
        self._capacity, self._per_job = capacity, per_job
        self._jobs: list[tuple[float, int, int, simpy.Event]] = []  # virtual end, number, threads, event
        self._numbers = count()
        self._running = 0
        self._virtual = self._updated = 0.0
        self._version = 0
        self.done = 0.0

    def work(self, amount: float, threads: int = 1) -> simpy.Event:
        """Start as many equal jobs as `threads`, each of this amount; the event is triggered when they end."""
        event = simpy.Event(self._env)
        if amount <= 0 or (math.isinf(self._per_job) and math.isinf(self._capacity)):
            self.done += max(amount, 0.0) * threads
            return event.succeed()
        self._advance()
        heapq.heappush(self._jobs, (self._virtual + amount, next(self._numbers), threads, event))
        self._running += threads
        self.done += amount * threads
        self._schedule()
        return event

    def _rate(self) -> float:
        return min(self._per_job, self._capacity / self._running)

    def _advance(self) -> None:
        now = self._env.now
        if self._running:
            self._virtual += (now - self._updated) * self._rate()
        self._updated = now

    def _schedule(self) -> None:
        self._version += 1
        if not self._jobs:
            return
        version, delay = self._version, (self._jobs[0][0] - self._virtual) / self._rate()
        wake = self._env.timeout(max(delay, 0.0))
        wake.callbacks.append(lambda _: self._finish(version))

    def _finish(self, version: int) -> None:
        if version != self._version:  # the rate has changed since
            return
        self._advance()
        self._virtual = max(self._virtual, self._jobs[0][0])  # rounding may have stopped short of it
        while self._jobs and self._jobs[0][0] <= self._virtual:
            _, _, threads, event = heapq.heappop(self._jobs)
            self._running -= threads
            event.succeed()
        self._schedule()


class Pool:
    """A loader's fetch threads: the most urgent task first, as many at a time as an `AdaptiveLimit` allows.

    Args:
        env: clock of the simulation.
        limit: the loader's own limit, fed with simulated times.
    """

    def __init__(self, env: simpy.Environment, limit: AdaptiveLimit) -> None:
        self._env, self._limit = env, limit
        self._waiting: list[tuple[int, int, Callable[[], Process], int, simpy.Event]] = []
        self._numbers = count()
        self._running = 0

    def submit(self, step: int, task: Callable[[], Process], size: int) -> simpy.Event:
        """Run a task when its turn comes; the event is triggered when it ends.

        Args:
            step: step that needs it; the earliest goes first.
            task: starts the process.
            size: bytes that it brings.
        """
        event = simpy.Event(self._env)
        heapq.heappush(self._waiting, (step, next(self._numbers), task, size, event))
        self._begin()
        return event

    def _begin(self) -> None:
        while self._waiting and self._running < self._limit.value:
            _, _, task, size, event = heapq.heappop(self._waiting)
            self._running += 1
            self._env.process(self._run(task, size, event))

    def _run(self, task: Callable[[], Process], size: int, event: simpy.Event) -> Process:
        yield from task()
        event.succeed()
        self._running -= 1
        self._limit.add(size, self._env.now, queued=bool(self._waiting))
        self._begin()


class Barrier:
    """Where all ranks wait for each other, step after step: the collective.

    Args:
        env: clock of the simulation.
        ranks: how many arrive.
    """

    def __init__(self, env: simpy.Environment, ranks: int) -> None:
        self._env, self._ranks = env, ranks
        self._arrived = 0
        self._opened = simpy.Event(env)

    def arrive(self, seconds: float) -> simpy.Event:
        """Wait for all others, and then for the seconds that the collective takes."""
        opened = self._opened
        self._arrived += 1
        if self._arrived == self._ranks:
            self._arrived, self._opened = 0, simpy.Event(self._env)
            if seconds <= 0:
                opened.succeed()
            else:
                self._env.timeout(seconds).callbacks.append(lambda _: opened.succeed())
        return opened


class Buffer:
    """Batches that are ready, in order.

    Args:
        env: clock of the simulation.
        total: batches in all.

    Attributes:
        produced: batches put so far.
    """

    def __init__(self, env: simpy.Environment, total: int) -> None:
        self._env, self._total = env, total
        self.produced = self._asked = 0
        self._changed = simpy.Event(env)

    def put(self, batches: int) -> None:
        """Add batches."""
        self.produced += batches
        self._change()

    def take(self, batches: int) -> Process:
        """Wait for batches and take them; who asks first gets them first."""
        target = self._asked = self._asked + batches
        while self.produced < min(target, self._total):
            yield self._changed
        self._change()

    def wait_for_room(self, most: int) -> Process:
        """Wait until no more batches than that are ready."""
        while self.produced - self._asked > most:
            yield self._changed

    def _change(self) -> None:
        changed, self._changed = self._changed, simpy.Event(self._env)
        changed.succeed()


@dataclass(slots=True, kw_only=True)
class CacheModel:
    """A cache of shards that evicts the least recently used; it lives longer than a simulated epoch.

    Attributes:
        limit_bytes: most bytes that it holds.
        hits, misses: what has been asked for so far.
        held_bytes: what it holds.
        arriving: an event for each shard on its way into the cache, for which other ranks wait.
    """

    limit_bytes: int
    hits: int = 0
    misses: int = 0
    _held: OrderedDict[int, int] = field(default_factory=OrderedDict)
    held_bytes: int = 0
    arriving: dict[int, simpy.Event] = field(default_factory=dict)

    def has(self, shard: int) -> bool:
        """Return whether a shard is there, and count it."""
        if shard in self._held:
            self._held.move_to_end(shard)
            self.hits += 1
            return True
        self.misses += 1
        return False

    def put(self, shard: int, size: int) -> None:
        """Keep a shard, and evict what does not fit beside it. One that is too large is not kept."""
        if size > self.limit_bytes or shard in self._held:
            return
        self._held[shard] = size
        self.held_bytes += size
        while self.held_bytes > self.limit_bytes:
            self.held_bytes -= self._held.popitem(last=False)[1]


class Host:
    """One host in one epoch.

    Args:
        env: clock of the simulation.
        cores: its cores.
        bytes_per_second: rate of its link, and what the store has for it.
        connection_bytes_per_second: rate of one connection.
    """

    def __init__(
        self, env: simpy.Environment, cores: int, bytes_per_second: float, connection_bytes_per_second: float
    ) -> None:
        self.cores = SharedRate(env, cores, 1.0)
        self.link = SharedRate(env, bytes_per_second, connection_bytes_per_second)

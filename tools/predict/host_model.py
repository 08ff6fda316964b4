"""The hosts of the model: cores and link; and caches, each of one rank or shared by the ranks of a host.

Tested in tests/tools/predict/test_simulator.py.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import simpy

from .resources import SharedRate

__all__ = ["CacheModel", "Host"]


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

"""The trial of a remote store: its latency, and its rate by the number of reads at once, without the loader."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from ...sharding.dataset.manifest import ShardInfo
from ...sharding.storage.storage import Storage

__all__ = ["PIECE_BYTES", "StoreTrial", "try_store"]

PIECE_BYTES = 4 << 20  # of a read, or the whole shard
_SMALL_BYTES = 1 << 10
_LATENCY_READS = 9
_THREADS = (1, 4, 8, 16, 32)
_GAIN = 1.1  # more reads at once are tried while the rate grows by this factor


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTrial:
    """What a store gives.

    Attributes:
        latency_seconds: median time of a read of 1 KiB, in seconds.
        bytes_per_second: rate by the number of reads at once, each of up to 4 MiB.
    """

    latency_seconds: float
    bytes_per_second: Mapping[int, float]

    @property
    def best_threads(self) -> int:
        """The fewest reads at once that reach 95 % of the highest rate."""
        return min(n for n, rate in self.bytes_per_second.items() if rate >= 0.95 * self.best_bytes_per_second)

    @property
    def best_bytes_per_second(self) -> float:
        """The highest rate."""
        return max(self.bytes_per_second.values())


def try_store(storage: Storage, shards: Sequence[ShardInfo], seconds: float) -> StoreTrial:
    """Read random parts of shards, first few bytes, then as many as come, with more and more reads at once.

    Raises:
        RingfeedError: the store does not answer, or does not read parts of files.
    """
    chosen = random.Random(0)
    latencies = []
    for _ in range(_LATENCY_READS):
        start = time.perf_counter()
        _read_part(storage, chosen.choice(shards), chosen, _SMALL_BYTES)
        latencies.append(time.perf_counter() - start)
    rates: dict[int, float] = {}
    for threads in _THREADS:
        rates[threads] = _rate(storage, shards, chosen, threads, seconds / len(_THREADS))
        if threads > 1 and rates[threads] < _GAIN * max(rate for n, rate in rates.items() if n < threads):
            break
    return StoreTrial(latency_seconds=median(latencies), bytes_per_second=rates)


def _rate(storage: Storage, shards: Sequence[ShardInfo], chosen: random.Random, threads: int, seconds: float) -> float:
    """Bytes a second of so many threads, each of which reads part after part, at least one."""
    start = time.perf_counter()

    def read_parts(seed: int) -> int:
        own = random.Random(seed)
        total = _read_part(storage, own.choice(shards), own, PIECE_BYTES)
        while time.perf_counter() - start < seconds:
            total += _read_part(storage, own.choice(shards), own, PIECE_BYTES)
        return total

    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read_parts, [chosen.getrandbits(32) for _ in range(threads)]))
    return total / (time.perf_counter() - start)


def _read_part(storage: Storage, shard: ShardInfo, chosen: random.Random, size: int) -> int:
    start = chosen.randrange(max(shard.bytes - size, 0) + 1)
    return len(storage.read_range(shard.path, start, min(start + size, shard.bytes)))

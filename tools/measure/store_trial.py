"""The trial of a remote store: its latency, and its rate by size and number of reads at once, without the loader."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import median

from ringfeed.pipeline import Loader
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.errors import RangesError
from ringfeed.sharding.storage.storage import Storage

PIECE_BYTES = 4 << 20  # of a read, or the whole shard
_SMALL_BYTES = 1 << 10
_LATENCY_READS = 9
_THREADS = (1, 4, 8, 16, 32)
_SIZES = (64 << 10, 256 << 10, 1 << 20)
_GAIN = 1.1  # more reads at once are tried while the rate grows by this factor
_SIZE_SHARE = 0.4  # of the seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTrial:
    """Reads of one size.

    Attributes:
        latency_seconds: median time of a read, one at a time.
        one: bytes a second, one read at a time.
        best: bytes a second, with as many reads at once as suit the store.
    """

    latency_seconds: float
    one: float
    best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTrial:
    """What a store gives.

    Attributes:
        latency_seconds: median time of a read of 1 KiB, in seconds.
        bytes_per_second: rate by the number of reads at once, each of up to 4 MiB.
        sizes: reads by their size in bytes.
        read_seconds: time of each read of up to 4 MiB with the best number at once.
        latencies: time of each read of 1 KiB.
    """

    latency_seconds: float
    bytes_per_second: Mapping[int, float]
    sizes: Mapping[int, SizeTrial]
    read_seconds: tuple[float, ...]
    latencies: tuple[float, ...] = ()

    @property
    def best_threads(self) -> int:
        """The fewest reads at once that reach 95 % of the highest rate."""
        return min(n for n, rate in self.bytes_per_second.items() if rate >= 0.95 * self.best_bytes_per_second)

    @property
    def best_bytes_per_second(self) -> float:
        """The highest rate."""
        return max(self.bytes_per_second.values())

    def rate_of(self, threads: float) -> float:
        """Bytes a second with some number of reads at once, between the numbers that were tried.

        >>> StoreTrial(latency_seconds=0.1, bytes_per_second={1: 10.0, 4: 40.0}, sizes={}, read_seconds=()).rate_of(2)
        20.0
        """
        tried = sorted(self.bytes_per_second)
        upper = next((n for n in tried if n >= threads), tried[-1])
        lower = max((n for n in tried if n <= threads), default=tried[0])
        if upper == lower:
            return self.bytes_per_second[upper]
        share = (threads - lower) / (upper - lower)
        return self.bytes_per_second[lower] * (1 - share) + self.bytes_per_second[upper] * share

    def thread_seconds(self, reads: int, size: int, threads: float) -> float:
        """Seconds, summed over threads, that so many of them take at once for some reads of `size` bytes in all.

        >>> trial = StoreTrial(latency_seconds=0.1, bytes_per_second={1: 10.0, 4: 40.0}, sizes={}, read_seconds=())
        >>> trial.thread_seconds(2, 100, 4)
        10.2
        """
        return reads * self.latency_seconds + size * max(threads, 1.0) / self.rate_of(threads)


def try_store(storage: Storage, shards: Sequence[ShardInfo], seconds: float) -> StoreTrial:
    """Read random parts of shards, first few bytes, then as many as come, with more and more reads at once.

    Raises:
        RingfeedError: the store does not answer, or does not read parts of files.
    """
    reader = _Reader(storage, shards)
    start = time.perf_counter()
    for _ in range(_LATENCY_READS):
        reader.read(_SMALL_BYTES)
        if time.perf_counter() - start > seconds / 4:
            break
    latencies = tuple(reader.times[1:] or reader.times)  # the first made the connection
    rates: dict[int, float] = {}
    read_seconds: tuple[float, ...] = ()
    for threads in _THREADS:
        rates[threads] = reader.rate(threads, PIECE_BYTES, seconds * (1 - _SIZE_SHARE) / len(_THREADS))
        if rates[threads] == max(rates.values()):
            read_seconds = tuple(reader.times)
        if threads > 1 and rates[threads] < _GAIN * max(rate for n, rate in rates.items() if n < threads):
            break
    trial = StoreTrial(
        latency_seconds=median(latencies), bytes_per_second=rates, sizes={}, read_seconds=read_seconds,
        latencies=latencies,
    )  # fmt: skip
    largest = max(shard.bytes for shard in shards)
    sizes = {}
    for size in (size for size in _SIZES if size < min(largest, PIECE_BYTES)):
        one = reader.rate(1, size, seconds * _SIZE_SHARE / len(_SIZES) / 2)
        latency = median(reader.times)
        best = reader.rate(trial.best_threads, size, seconds * _SIZE_SHARE / len(_SIZES) / 2)
        sizes[size] = SizeTrial(latency_seconds=latency, one=one, best=best)
    return replace(trial, sizes=sizes)


def try_store_of(loader: Loader, seconds: float) -> StoreTrial | None:
    """Measure the store that a loader reads; None if it does not read parts of files."""
    dataset = open_dataset(loader.arguments["url"])
    try:
        return try_store(dataset.storage, dataset.split_shards(loader.arguments["split"]), seconds)
    except RangesError:
        return None


class _Reader:
    """Reads random parts of shards; `times` are the seconds of each read since the last call of `rate`."""

    def __init__(self, storage: Storage, shards: Sequence[ShardInfo]) -> None:
        self._storage, self._shards = storage, shards
        self._random = random.Random(0)
        self.times: list[float] = []

    def rate(self, threads: int, size: int, seconds: float) -> float:
        """Bytes a second of so many threads, each reading part after part, at least one."""
        self.times = []
        start = time.perf_counter()

        def read_parts(_: int) -> int:
            total = self.read(size)
            while time.perf_counter() - start < seconds:
                total += self.read(size)
            return total

        with ThreadPoolExecutor(threads) as pool:
            total = sum(pool.map(read_parts, range(threads)))
        return total / (time.perf_counter() - start)

    def read(self, size: int) -> int:
        """Read so many bytes, or a whole shard."""
        shard = self._random.choice(self._shards)
        first = self._random.randrange(max(shard.bytes - size, 0) + 1)
        start = time.perf_counter()
        read = len(self._storage.read_range(shard.path, first, min(first + size, shard.bytes)))
        self.times.append(time.perf_counter() - start)
        return read

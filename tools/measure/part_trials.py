"""Trials of the loader's parts alone: checksums, decoding, handing over, and the loader with all shards at hand.

Together with the store alone they are the ceilings that the loader cannot exceed.
Tested in tests/tools/profile/test_measure.py.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ringfeed.pipeline import Cache, Loader, MemoryCache
from ringfeed.pipeline.decode.shard_opener import ShardOpener
from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.pipeline.repeated_chunk import repeated_chunk
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.storage.temporary_folder import temporary_folder
from ringfeed.tools.signals import deferred_signals

from .estimates import Estimate
from .loader_trial import try_loader
from .trial import Trial, repeat

_CHOICES = 8  # shards to choose a small one from
_MOST_CACHE_BYTES = 4 << 30  # on disk, for the time of a trial


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTrial:
    """Opening shards that are in memory, again and again, in as many threads as there are cores.

    Attributes:
        verify: records a second whose checksums are computed.
        decode: records a second that are decoded.
        shards: shards that were opened.
    """

    verify: float
    decode: float
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmTrial:
    """The loader's epoch with its shards on the local disk.

    Attributes:
        first_batch_seconds: seconds until the first batch.
        rate: samples a second after it.
        steps: batches that were read; 0 where there was no time to fill a cache, and the figures are simulated.
        cached: whether this is what a cache on disk would bring; otherwise the shards are local.
    """

    first_batch_seconds: float
    rate: Estimate
    steps: int
    cached: bool


def try_warm(loader: Loader, seconds: float) -> WarmTrial | None:
    """Read the beginning of an epoch twice, and measure the second time; None if there is no room for a cache.

    A remote dataset goes through a cache in a temporary folder, as `--cache` would keep it.

    Args:
        loader: the loader.
        seconds: time for both readings.
    """
    with ExitStack() as stack:
        cached = loader.arguments["url"].local_path is None and loader.arguments["cache"] is None
        if cached:
            folder = str(stack.enter_context(temporary_folder()))
            free = os.statvfs(folder)
            limit = min(_MOST_CACHE_BYTES, free.f_bavail * free.f_frsize // 2)
            if limit < sum(loader.plan().bytes_per_rank[loader.arguments["rank"] :][:1]):
                return None
            loader = Loader(**dict(loader.arguments) | {"cache": Cache(folder, limit)})
        before = try_loader(loader, seconds * 0.6, steps=None)
        again = int(seconds * 0.4 * (before.steps - 1) / before.seconds)  # no more than was read before
        after = try_loader(loader, seconds, steps=min(max(again, 2), before.steps))
        return WarmTrial(
            first_batch_seconds=after.first_batch_seconds,
            rate=after.estimate(loader),
            steps=after.steps,
            cached=cached,
        )


def try_hand_over(loader: Loader, seconds: float) -> tuple[float, Trial]:
    """Hand the same chunk over again and again, with nothing to read: the most that Python and TensorFlow take.

    Returns:
        Seconds until the first batch of an epoch, and the trial after it.
    """
    repeated = repeated_chunk(loader)

    def batches() -> Any:
        while True:
            yield from repeated.epoch(0)

    with deferred_signals() as deliver_signals:
        each = batches()

        def call() -> None:
            deliver_signals()
            next(each)

        call()  # the first call may trace
        begin = time.perf_counter()
        next(iter(repeated.epoch(1)))
        return time.perf_counter() - begin, repeat(call, loader.local_batch_size, seconds)


def try_opening(loader: Loader, seconds: float, fetch_bytes_per_second: float | None) -> OpenTrial | None:
    """Open shards that are in memory; None if fetching one takes longer than there is time.

    Args:
        loader: the loader.
        seconds: time to spend, about.
        fetch_bytes_per_second: what one read at a time brings of a remote store; None for a local one.
    """
    context = loader.read_context(locate_features=loader.locates_features)
    shards = [shard for shard in context.dataset.split_shards(loader.arguments["split"]) if shard.records]
    shard = min(random.Random(0).choices(shards, k=_CHOICES), key=lambda shard: shard.bytes)
    if fetch_bytes_per_second is not None and shard.bytes / fetch_bytes_per_second > seconds:
        return None
    counters = Counters()
    cache = MemoryCache(shard.bytes + shard.index_bytes + 1) if fetch_bytes_per_second is not None else None
    context = replace(context, counters=counters, cache=cache, selection=None, hedging=False)
    opener = ShardOpener(context)
    try:
        opener.whole(shard)
        first = counters.snapshot()
        threads = os.cpu_count() or 1
        count = _open_again(opener, shard, threads, seconds)
    finally:
        opener.close()
    now = counters.snapshot()
    verified, decoded = now["verify"].busy_seconds, now["open"].busy_seconds - first["open"].busy_seconds
    if cache is None:
        verified -= first["verify"].busy_seconds
    checks = count if cache is None else 1  # a cache in memory checks nothing
    return OpenTrial(
        verify=shard.records * checks * threads / max(verified, 1e-9),
        decode=shard.records * count * threads / max(decoded, 1e-9),
        shards=count,
    )


def _open_again(opener: ShardOpener, shard: ShardInfo, threads: int, seconds: float) -> int:
    """Open a shard again and again in some threads; return how often."""
    end = time.perf_counter() + seconds

    def work(_: int) -> int:
        opened = 0
        while opened == 0 or time.perf_counter() < end:
            opener.whole(shard)
            opened += 1
        return opened

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads)))

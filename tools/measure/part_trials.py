"""The loader's parts alone: checksums and decoding by its counters; trials of handing over, and with shards at hand.

Together with the store alone they are the ceilings that the loader cannot exceed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from ringfeed.pipeline import Cache, Loader, StageStats
from ringfeed.pipeline.repeated_chunk import repeated_chunk
from ringfeed.sharding.storage.temporary_folder import temporary_folder
from ringfeed.tools.signals import deferred_signals

from .estimates import Estimate
from .loader_trial import try_loader
from .trial import Trial, repeat

_BEGINS = 3  # epochs, of whose first batches the middle one counts
_MOST_CACHE_BYTES = 4 << 30  # on disk, for the time of a trial


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTrial:
    """Opening shards on all cores, with nothing beside it.

    Attributes:
        verify: records a second whose checksums are computed.
        decode: records a second that are decoded.
        shards: shards, and parts of such, that were opened.
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
        begins = []
        for epoch in range(_BEGINS):
            begun = time.perf_counter()
            next(iter(repeated.epoch(epoch)))
            begins.append(time.perf_counter() - begun)
        return median(begins), repeat(call, loader.local_batch_size, seconds)


def opening_rates(stats: Mapping[str, StageStats], record_bytes: float) -> OpenTrial:
    """Say by a loader's counters how fast all cores would check and decode its records, if they did nothing else.

    Args:
        stats: the counters.
        record_bytes: stored bytes of a record, as far as they are read.
    """
    records = (stats["fetch"].bytes + stats["cache"].bytes) / record_bytes * (os.cpu_count() or 1)
    return OpenTrial(
        verify=records / max(stats["verify"].cpu_seconds, 1e-9),
        decode=records / max(stats["open"].cpu_seconds, 1e-9),
        shards=stats["open"].items,
    )

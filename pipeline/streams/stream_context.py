"""What the streams of a split share in every epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline.fetch.threads import Threads
from ringfeed.pipeline.metrics.stage_counters import Counters

from .length_buckets import LengthBuckets
from .shard_fetcher import ShardFetcher


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContext:
    """What the streams of a split share in every epoch."""

    streams: range  # streams to read. What several of them need of a shard at the same time is fetched once.
    # Returns the records of each class in each shard, [shards, classes]; called only where a window lacks a class
    class_counts: Callable[[], npt.NDArray[np.unsignedinteger]]
    fetcher: ShardFetcher  # fetcher of the split's shards
    planner: Threads  # threads that plan windows, separate from the fetcher's
    counters: Counters
    buckets: LengthBuckets | None = None  # how to batch records by length; None for no such batching

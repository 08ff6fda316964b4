"""Group shards into buckets, whose records are partitioned and assembled together.

Tested in tests/sharding/building/test_build.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringfeed.sharding.assignment.assignment import Assignment
from ringfeed.sharding.compute.arrays import Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucketing:
    """Runs of consecutive shards. The bytes written do not depend on it."""

    assignment: Assignment  # assignment of records to shards
    shards_per_bucket: int  # shards in each bucket but the last

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return -(-self.assignment.shards // self.shards_per_bucket)

    def shards(self, bucket: int) -> range:
        """The shards of a bucket."""
        start = bucket * self.shards_per_bucket
        return range(start, min(start + self.shards_per_bucket, self.assignment.shards))

    def first_places(self) -> Int64:
        """The first place of each shard within its bucket, int64 [shards]."""
        sizes = np.concatenate([split.all_shard_records() for split in self.assignment.splits])
        firsts: Int64 = np.cumsum(sizes) - sizes
        result: Int64 = firsts - firsts[np.arange(len(sizes)) // self.shards_per_bucket * self.shards_per_bucket]
        return result

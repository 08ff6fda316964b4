"""How long processes wait for a store, and for one another at a destination.

A `Storage` carries its timings, as it does its retries. What a store itself is asked to keep to are its options.
Tested in tests/sharding/storage/test_lease.py and tests/sharding/storage/s3/test_timeouts.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTimings:
    """The time limits of a storage.

    Attributes:
        request_seconds: a request is given up after this long, plus what its bytes take.
        request_bytes_per_second: rate at which its bytes may take time; slow, because many requests share a link.
        late_seconds: a read is late after this long, until the latencies of others say more; see `hedged_reads.py`.
        least_late_seconds: no read is late before, because a second request then gains little.
        beat_seconds: between two heartbeats of the holder of a lease.
        silent_seconds: a holder elsewhere is dead after this long without one: six beats.
        takeover_seconds: the least time that a new holder needs before it changes the destination.
        check_seconds: between two looks at the lease file by processes that work for its holder; less than
            `silent_seconds`, for which others wait before they take over.

    >>> StoreTimings().request_limit_seconds(1 << 20)
    308.0
    """

    request_seconds: float = 300.0
    request_bytes_per_second: int = 1 << 17
    late_seconds: float = 5.0
    least_late_seconds: float = 0.2
    beat_seconds: float = 5.0
    silent_seconds: float = 30.0
    takeover_seconds: float = 2.0
    check_seconds: float = 5.0

    def request_limit_seconds(self, size: int) -> float:
        """Return how long to wait at most for a request: by default 5 minutes, and 8 s for each MiB."""
        return self.request_seconds + size / self.request_bytes_per_second

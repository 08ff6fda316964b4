"""An empty cache to measure with, beside the place where a loader's own is to be.

Tested in tests/tools/measure/test_cost_trials.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringfeed.pipeline.fetch.shard_cache import ShardCache, open_cache
from ringfeed.sharding.storage.temporary_folder import temporary_folder

__all__ = ["trial_cache"]


@contextmanager
def trial_cache(place: str, limit_bytes: int | None = None) -> Iterator[ShardCache | None]:
    """Make an empty cache in memory if `place` says so, else in a folder beside that one; it is removed at the end."""
    if place == "memory":
        yield open_cache(place, limit_bytes)
        return
    parent = Path(place).absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(parent) as folder:
        yield open_cache(str(folder), limit_bytes)

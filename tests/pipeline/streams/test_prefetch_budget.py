"""What is prefetched within the budget, and that it changes no sample."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.pipeline.streams.prefetch_budget import PrefetchBudget, UpcomingWindow, default_prefetch_bytes
from ringfeed.sharding import ConfigError, open_dataset


class Stream:
    """A stream of windows that are needed at certain steps."""

    def __init__(self, name: str, windows: list[UpcomingWindow], asked: list[tuple[str, int]]) -> None:
        self.name = name
        self.windows = windows
        self.asked = asked

    @property
    def upcoming(self) -> UpcomingWindow | None:
        return self.windows[0] if self.windows else None

    def prefetch(self) -> None:
        self.asked.append((self.name, self.windows.pop(0).step))


class TestPrefetchBudget:
    def test_the_windows_needed_soonest_are_requested_while_they_fit(self) -> None:
        asked: list[tuple[str, int]] = []
        ahead = PrefetchBudget(100)
        for name, steps in (("a", (10, 20, 30)), ("b", (15, 16, 40))):
            ahead.add(Stream(name, [UpcomingWindow(step=step, size=30) for step in steps], asked))
        ahead.fill()
        assert asked == [("a", 10), ("b", 15), ("b", 16)]
        ahead.fill()
        assert len(asked) == 3
        ahead.release(30)
        ahead.fill()
        assert asked[3:] == [("a", 20)]
        ahead.release(120)
        ahead.fill()
        assert asked[4:] == [("a", 30), ("b", 40)]

    @given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 100))
    def test_it_holds_no_more_than_its_limit(self, sizes: list[int], limit: int) -> None:
        asked: list[tuple[str, int]] = []
        ahead = PrefetchBudget(limit)
        ahead.add(Stream("a", [UpcomingWindow(step=step, size=size) for step, size in enumerate(sizes)], asked))
        released = 0
        for _ in range(len(sizes) + 1):
            ahead.fill()
            assert sum(sizes[: len(asked)]) - released <= limit
            if released < sum(sizes[: len(asked)]):
                ahead.release(1)
                released += 1


@pytest.mark.parametrize(
    ("window", "streams", "memory", "expected"),
    [
        (1 << 20, 1, 64 << 30, 256 << 20),  # small shards: enough of them to keep the disk busy
        (1 << 20, 1, 4 << 30, 128 << 20),  # of a small memory a 32nd
        (256 << 20, 1, 64 << 30, 640 << 20),  # large shards: two windows
        (256 << 20, 1, 4 << 30, 320 << 20),  # one window for each stream in any case
        (64 << 20, 16, 64 << 30, 2 << 30),
    ],
)
def test_mapped_shards_are_read_further_ahead(window: int, streams: int, memory: int, expected: int) -> None:
    mapped = default_prefetch_bytes(window, streams, is_local=True, is_mapped=True, memory_bytes=memory)
    assert mapped == expected
    assert default_prefetch_bytes(window, streams, is_local=True, memory_bytes=memory) == int(1.25 * window * streams)


@pytest.mark.parametrize(("shard_format", "cache"), [("tfrecord", "memory"), ("parquet", None)])
def test_shards_that_are_copied_are_not(make_dataset: Callable[..., str], shard_format: str, cache: str | None) -> None:
    limits = []
    for url, kept in ((make_dataset(1000), None), (make_dataset(1000, shard_format=shard_format), cache)):
        with Loader(url, batch_size=10, cache=kept).open_streams() as streams:
            limits.append(streams.budget.limit_bytes)
    assert limits[0] >= 32 << 20 > limits[1]


def order(url: str, **options: Any) -> list[list[int]]:
    loader = Loader(url, batch_size=12, seed=4, streams=4, **options)
    rows = [np.array(c["id"]).reshape(steps, -1) for steps, c in loader.chunks(1, 5)]
    return np.concatenate(rows).tolist()


@pytest.mark.parametrize("balance", ["natural", "uniform"])
def test_samples_do_not_depend_on_prefetching(make_dataset: Callable[..., str], balance: str) -> None:
    url = make_dataset(1000, shards=20)
    expected = order(url, balance=balance, fetch_threads=1, prefetch_bytes=0)
    for threads, ahead in ((None, None), (3, 1), (1, 30_000), (7, 1 << 30)):
        assert order(url, balance=balance, fetch_threads=threads, prefetch_bytes=ahead) == expected


def test_prefetching_stays_within_the_budget(make_dataset: Callable[..., str]) -> None:
    url = make_dataset(1000, shards=20)
    shard = open_dataset(url).shards[0]
    for fits in (0, 3, 8):
        limit = int((shard.bytes + shard.index_bytes) * (fits + 0.5))
        loader = Loader(url, batch_size=5, streams=1, prefetch_bytes=limit)
        chunks = loader.chunks(0)
        steps, _ = next(chunks)
        files = 2 * (math.ceil(steps * 5 / shard.records) + fits)  # of windows that were entered, and of those ahead
        deadline = time.monotonic() + 60
        while loader.stats()["fetch"].items < files and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert loader.stats()["fetch"].items == files


def test_invalid_limits_are_refused(make_dataset: Callable[..., str]) -> None:
    for options in ({"fetch_threads": 0}, {"prefetch_bytes": -1}):
        with pytest.raises(ConfigError, match="must be at least"):
            Loader(make_dataset(1000), batch_size=10, **options)  # type: ignore[arg-type]

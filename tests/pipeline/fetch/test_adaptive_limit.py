"""How many fetches run at a time, in which order, and how much they bring ahead of need; the samples are the same."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.pipeline.fetch import fetch_pool
from ringfeed.pipeline.fetch.adaptive_limit import AdaptiveLimit
from ringfeed.pipeline.fetch.fetch_pool import FetchPool
from ringfeed.pipeline.fetch.threads import Threads, run_after
from ringfeed.pipeline.streams.prefetch_budget import PrefetchBudget, UpcomingWindow
from ringfeed.sharding import ConfigError, open_dataset


def run(limit: AdaptiveLimit, fetches: int, rate: Callable[[int], float], *, queued: bool = True) -> set[int]:
    """Let fetches of a byte end, at the rate of the store with so many at a time; return the limits on the way."""
    now, seen = 0.0, set()
    for _ in range(fetches):
        now += 1 / rate(limit.value)
        limit.add(1, now, queued=queued)
        seen.add(limit.value)
    return seen


class TestClimber:
    @given(st.integers(1, 8), st.integers(0, 60), st.integers(1, 100))
    def test_it_climbs_to_where_the_store_gives_no_more(self, least: int, more: int, serves: int) -> None:
        limit = AdaptiveLimit(least, least + more)
        seen = run(limit, 1500, lambda running: min(running, serves))
        assert min(seen) >= least
        assert max(seen) <= least + more
        assert min(limit.value, serves) >= 0.75 * min(serves, least + more)  # of the rate that can be had
        assert limit.value <= 1 + 1.25 * max(least, 2 * serves)

    @given(st.integers(1, 8), st.integers(1, 60))
    def test_it_stays_low_where_more_does_not_help(self, least: int, more: int) -> None:
        limit = AdaptiveLimit(least, least + more)
        run(limit, 1000, lambda _: 5.0)
        assert limit.value <= least + max(1, least // 4)

    @given(st.integers(1, 30), st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=200))
    def test_a_fixed_number_stays(self, threads: int, fetches: list[tuple[float, bool]]) -> None:
        limit, now = AdaptiveLimit(threads, threads), 0.0
        for seconds, queued in fetches:
            now += seconds
            limit.add(1, now, queued=queued)
            assert limit.value == threads

    def test_a_slow_consumer_says_nothing_of_the_store(self) -> None:
        limit = AdaptiveLimit(4, 32)
        assert run(limit, 500, float, queued=False) == {4}


class TestFetchPool:
    def test_what_is_needed_sooner_goes_first(self) -> None:
        pool: FetchPool[None] = FetchPool(AdaptiveLimit(1, 1), 1)
        begun, order = threading.Event(), []
        pool.submit(0, lambda: begun.wait(60) and None, 1)
        futures = [pool.submit(step, lambda step=step: order.append(step), 1) for step in (7, 3, 9, 5, 3)]  # type: ignore[misc]
        pool.hasten(futures[2], 1)
        pool.hasten(futures[0], 8)  # it is needed at 7 all the same
        begun.set()
        for future in futures:
            future.result(60)
        assert order == [9, 3, 3, 5, 7]
        pool.hasten(futures[0], 0)
        pool.close()

    def test_no_more_run_than_the_limit_says_and_it_climbs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limit, now = AdaptiveLimit(2, 12), 0.0

        def clock() -> float:  # of a store that serves as many at a time as are asked for
            nonlocal now
            now += 0.01 / limit.value
            return now

        monkeypatch.setattr(fetch_pool, "time", SimpleNamespace(monotonic=clock))
        pool: FetchPool[None] = FetchPool(limit, 12)
        running, seen, changed = [0], [0], threading.Condition()

        def fetch() -> None:
            with changed:
                running[0] += 1
                seen[0] = max(seen[0], running[0])
                changed.notify_all()
                if limit.value >= 4:  # so many run, however late some are
                    changed.wait_for(lambda: seen[0] >= 4, 60)
            time.sleep(0.01)
            with changed:
                running[0] -= 1

        futures = [pool.submit(step, fetch, 1000) for step in range(150)]
        for future in futures:
            future.result(60)
        assert 4 <= seen[0] <= 12
        assert limit.value == 12
        pool.close()

    def test_errors_arrive_and_closing_cancels(self) -> None:
        pool: FetchPool[None] = FetchPool(AdaptiveLimit(1, 1), 1)
        released = threading.Event()
        failing = pool.submit(0, lambda: 1 / 0 and None, 1)
        with pytest.raises(ZeroDivisionError):
            failing.result(60)
        pool.submit(0, lambda: released.wait(60) and None, 1)
        waiting = pool.submit(1, lambda: None, 1)
        pool.close()
        assert waiting.cancelled()
        assert pool.submit(0, lambda: None, 1).cancelled()
        released.set()


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


class TestLookahead:
    def test_what_is_needed_soonest_is_asked_for_while_it_fits(self) -> None:
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


class TestPlanning:
    def test_what_is_ready_first_is_opened_first(self) -> None:
        slow: Future[int] = Future()
        fast: Future[int] = Future()
        threads = Threads(1, "plan")
        late = run_after([slow, fast], lambda parts: sum(part.result() for part in parts), threads)
        soon = run_after([fast], lambda parts: parts[0].result(), threads)
        fast.set_result(2)
        assert soon.result(60) == 2
        assert not late.done()
        slow.set_exception(KeyError("x"))
        with pytest.raises(KeyError):
            late.result(60)
        threads.close()
        gone = run_after([fast], lambda _: 0, threads)
        assert gone.cancelled()


def order(url: str, **options: Any) -> list[list[int]]:
    loader = Loader(url, batch_size=12, seed=4, streams=4, **options)
    rows = [np.array(c["id"]).reshape(steps, -1) for steps, c in loader.chunks(1, 5)]
    return np.concatenate(rows).tolist()


@pytest.mark.parametrize("balance", ["natural", "uniform"])
def test_the_samples_do_not_depend_on_what_is_fetched_ahead(make_dataset: Callable[..., str], balance: str) -> None:
    url = make_dataset(1000, shards=20)
    expected = order(url, balance=balance, fetch_threads=1, prefetch_bytes=0)
    for threads, ahead in ((None, None), (3, 1), (1, 30_000), (7, 1 << 30)):
        assert order(url, balance=balance, fetch_threads=threads, prefetch_bytes=ahead) == expected


def test_what_is_fetched_ahead_stays_within_its_bytes(make_dataset: Callable[..., str]) -> None:
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


def test_impossible_limits_are_refused(make_dataset: Callable[..., str]) -> None:
    for options in ({"fetch_threads": 0}, {"prefetch_bytes": -1}):
        with pytest.raises(ConfigError, match="must be at least"):
            Loader(make_dataset(1000), batch_size=10, **options)  # type: ignore[arg-type]

"""The order and number of running fetches, and closing the pool."""

import threading
import time
from types import SimpleNamespace

import pytest

from ringfeed.pipeline.fetch import fetch_pool
from ringfeed.pipeline.fetch.adaptive_limit import AdaptiveLimit
from ringfeed.pipeline.fetch.fetch_pool import FetchPool


class TestFetchPool:
    def test_the_most_urgent_task_runs_first(self) -> None:
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

    def test_no_more_tasks_run_than_the_limit_which_rises(self, monkeypatch: pytest.MonkeyPatch) -> None:
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

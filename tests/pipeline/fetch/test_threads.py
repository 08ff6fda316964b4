"""Background threads end when their work does, whoever closes them and at any moment."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest

from ringfeed.pipeline import Loader
from ringfeed.pipeline.deliver.background_iterator import prefetch
from ringfeed.pipeline.fetch.adaptive_limit import AdaptiveLimit
from ringfeed.pipeline.fetch.fetch_pool import FetchPool
from ringfeed.pipeline.fetch.hedged_reads import Hedging
from ringfeed.pipeline.fetch.threads import Threads, run_after, start_thread
from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.sharding import RingfeedError
from ringfeed.sharding.storage.timings import StoreTimings

SHARDS = 100


@pytest.fixture(scope="module")
def url(make_dataset: Callable[..., str]) -> str:
    """Of many shards: a reader that has come to any of them has others to ask for."""
    return make_dataset(2000, shards=SHARDS, shard_format="parquet")


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=True).stdout


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 24])
def test_a_program_exits_while_it_holds_an_iterator(url: str, prefetch_bytes: int) -> None:
    script = """if True:
        import sys
        from ringfeed.pipeline import Loader

        loader = Loader(sys.argv[1], batch_size=16, prefetch_bytes=0)
        batches = loader.numpy_epoch(0, prefetch_bytes=int(sys.argv[2]))
        print(len(next(batches)["id"]))
    """
    assert run(script, url, str(prefetch_bytes)) == "16\n"


def test_another_thread_can_read_after_the_main_thread_has_ended(url: str) -> None:
    script = """if True:
        import sys, threading
        from ringfeed.pipeline import Loader

        def read():
            threading.main_thread().join()
            print(*(sum(1 for _ in loader.numpy_epoch(epoch)) for epoch in range(2)))

        loader = Loader(sys.argv[1], batch_size=16)
        threading.Thread(target=read).start()
    """
    assert run(script, url) == "125 125\n"


def test_a_thread_that_cannot_be_started_is_reported(url: str) -> None:
    script = """if True:
        import resource, sys, threading
        from ringfeed.pipeline import Loader
        from ringfeed.sharding import RingfeedError

        def error_of(prefetch_bytes):
            try:
                list(loader.numpy_epoch(0, prefetch_bytes=prefetch_bytes))
            except RingfeedError as error:
                return error

        loader = Loader(sys.argv[1], batch_size=16)
        list(loader.numpy_epoch(0))
        threading.stack_size(64 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (32 << 30, resource.RLIM_INFINITY))
        print(error_of(0), error_of(1 << 24), sep="\\n")
        threading.stack_size(0)
        print(sum(1 for _ in loader.numpy_epoch(0)))
    """
    first, second, steps = run(script, url).splitlines()
    assert first == second
    assert first.startswith("the loader cannot start a thread: can't start new thread; raise the limit (`ulimit -u`")
    assert steps == "125"


def test_running_threads_take_the_work_of_those_that_cannot_be_started() -> None:
    threads, begun, release = Threads(3, "test"), threading.Event(), threading.Event()
    done: list[int] = []

    def wait() -> None:
        begun.set()
        release.wait(60)

    threads.submit(wait)
    assert begun.wait(60)
    size = threading.stack_size(1 << 46)  # more than there are addresses
    try:
        for number in range(3):
            threads.submit(lambda number=number: done.append(number))  # type: ignore[misc]
        assert done == []
        release.set()
        until(lambda: len(done) == 3)
    finally:
        threading.stack_size(size)
    assert done == [0, 1, 2]
    threads.close()
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(wait)


def test_no_work_waits_for_a_thread_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, begun, release, done = Threads(1, "test"), threading.Event(), threading.Event(), threading.Event()

    def start(function: Callable[[], None], name: str) -> threading.Thread:
        if begun.is_set():
            return start_thread(function, name)
        begun.set()
        release.wait(60)
        raise RingfeedError("the system starts none")

    def submit_first() -> None:
        with pytest.raises(RingfeedError, match="the system starts none"):
            threads.submit(lambda: refused.append(1))
        told.set()

    monkeypatch.setattr("ringfeed.pipeline.fetch.threads.start_thread", start)
    refused: list[int] = []
    told = threading.Event()
    first = threading.Thread(target=submit_first)
    second = threading.Thread(target=threads.submit, args=(done.set,))
    first.start()
    assert begun.wait(60)
    second.start()
    second.join(0.2)  # as long as it takes to hand over
    release.set()
    assert done.wait(60)
    first.join(60)
    assert told.is_set()
    assert refused == []


class Interrupted(int):
    """A number; while it is added a signal comes."""

    def __radd__(self, other: int) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return other + int(self)


def test_a_signal_handler_may_read_counters_at_any_moment() -> None:
    counters = Counters()
    seen: list[Any] = []

    def handle(_: int, __: FrameType | None) -> None:
        seen.append(counters.snapshot()["open"])

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        counters.add("open", items=Interrupted(3))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) == 1
    assert counters.snapshot()["open"].items == 3


def test_a_signal_handler_may_read_the_state_at_any_moment(url: str) -> None:
    loader = Loader(url, batch_size=16)
    with loader._quarantine._lock:  # as where the signal comes
        assert loader.state(0, 5)["step"] == 5


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_garbage_collector_may_close_an_iterator_in_a_thread_of_the_loader(elsewhere: bool) -> None:
    held: list[Generator[int, None, None]] = []
    before = set(threading.enumerate())
    closed, threads = threading.Event(), Threads(1, "test")

    def let_go(done: Future[None]) -> None:
        held.clear()
        done.set_result(None)

    def numbers() -> Generator[int, None, None]:
        try:
            yield 0
            until(lambda: bool(held))
            done: Future[None] = Future()
            if elsewhere:
                threads.submit(lambda: let_go(done))  # which this one waits for
            else:
                let_go(done)
            done.result()
            yield 1
        finally:
            closed.set()

    items = prefetch(numbers(), lambda _: 10, 1000, lambda _: None)
    assert next(items) == 0
    held.append(items)
    del items
    assert closed.wait(60)
    until(lambda: not any(t.name.startswith("ringfeed-") for t in set(threading.enumerate()) - before))


class Closing(int):
    """A step; where it is compared with another, the garbage collector closes the pool."""

    pool: FetchPool[None] | None = None

    def __lt__(self, other: int) -> bool:
        if self.pool is not None:
            self.pool.close()
        return int(self) < other


def test_the_garbage_collector_may_close_a_pool_while_its_tasks_change() -> None:
    pool, begun, release = FetchPool[None](AdaptiveLimit(1, 1), 1), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        release.wait(60)

    steps = [Closing(step) for step in range(5)]
    first, *others = [pool.submit(step, wait, 10) for step in steps]
    assert begun.wait(60)
    for step in steps:
        step.pool = pool
    release.set()
    assert first.result(60) is None
    until(lambda: all(future.cancelled() for future in others))
    assert pool.submit(0, wait, 10).cancelled()


@pytest.mark.parametrize(
    "closed",
    [FetchPool(AdaptiveLimit(1, 1), 1), Threads(1, "test"), Hedging(Counters(), StoreTimings(), second=True)],
    ids=lambda closed: type(closed).__name__,
)
def test_the_garbage_collector_may_close_an_object_that_its_thread_has_locked(
    closed: FetchPool[None] | Threads | Hedging,
) -> None:
    def close() -> None:
        with closed._lock:
            closed.close()

    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_work_runs_as_soon_as_its_own_parts_are_done() -> None:
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

"""Items are made ahead in order, within the limit in bytes, and no thread is left behind."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator

import pytest

from ringfeed.pipeline.deliver.background_iterator import prefetch

Threads = Callable[[], list[str]]


@pytest.fixture
def threads() -> Threads:
    """The threads that the test began; an iterator that another left may have its own still."""
    before = set(threading.enumerate())
    return lambda: [t.name for t in set(threading.enumerate()) - before if t.name.startswith("ringfeed-prefetch")]


class Numbers:
    """Counts from 0, and remembers how far it came and whether it was closed."""

    def __init__(self, stop: int, fail_at: int = -1) -> None:
        self.stop, self.fail_at = stop, fail_at
        self.made = 0
        self.closed = False

    def __iter__(self) -> Generator[int, None, None]:
        try:
            for number in range(self.stop):
                if number == self.fail_at:
                    raise RuntimeError("no further")
                self.made += 1
                yield number
        finally:
            self.closed = True


def ahead(numbers: Numbers, limit_bytes: int, queued: Callable[[int], None] = lambda change: None) -> Generator[int]:
    return prefetch(iter(numbers), lambda number: 10, limit_bytes, queued, join_seconds=60)


@pytest.mark.parametrize("limit_bytes", [0, 1, 10, 25, 10_000])
def test_items_come_in_order_whatever_the_limit(limit_bytes: int, threads: Threads) -> None:
    depth = [0]
    numbers = Numbers(500)
    assert list(ahead(numbers, limit_bytes, lambda change: depth.append(depth[-1] + change))) == list(range(500))
    assert depth[-1] == 0
    assert numbers.closed
    assert threads() == []


@pytest.mark.parametrize(("limit_bytes", "most"), [(0, 1), (1, 2), (25, 4), (40, 5)])
def test_no_more_is_made_ahead_than_the_limit_and_one(limit_bytes: int, most: int) -> None:
    numbers = Numbers(100)
    items = ahead(numbers, limit_bytes)
    for taken in range(1, 20):
        next(items)
        deadline = time.monotonic() + 60
        while numbers.made < taken - 1 + most and time.monotonic() < deadline:
            time.sleep(0.001)
        assert numbers.made == taken - 1 + most
    items.close()


def test_an_error_comes_after_the_items_before_it(threads: Threads) -> None:
    numbers = Numbers(10, fail_at=3)
    items = ahead(numbers, 10_000)
    assert [next(items), next(items), next(items)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="no further"):
        next(items)
    assert numbers.closed
    assert threads() == []


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_a_collected_iterator_leaves_no_thread(taken: int, threads: Threads) -> None:
    numbers = Numbers(1_000_000)
    items = ahead(numbers, 100)
    assert [next(items) for _ in range(taken)] == list(range(taken))
    del items
    assert threads() == []
    assert numbers.closed == bool(taken)
    assert numbers.made < 100


def test_a_forked_process_can_close_an_iterator_of_its_parent() -> None:
    script = """if True:
        import os, threading
        from ringfeed.pipeline.deliver.background_iterator import prefetch

        going_on, at_work = threading.Event(), threading.Event()

        def slow():
            yield 0
            at_work.set()
            going_on.wait()
            yield 1

        items = prefetch(slow(), lambda number: 10, 100, lambda change: None)
        next(items)
        at_work.wait()
        child = os.fork()
        if not child:
            items.close()
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        going_on.set()
        print(list(items))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.split() == ["7", "[1]"]


def test_an_interrupt_leaves_no_lock_taken() -> None:
    script = """if True:
        import sys, threading
        from ringfeed.pipeline.deliver import background_iterator as prefetch

        lock = threading.Condition.__enter__

        def interrupted(condition):
            lock(condition)
            if sys._getframe(1).f_code.co_name in ("take", "start_filling"):
                raise KeyboardInterrupt

        items = prefetch.prefetch((number for number in range(500)), lambda number: 10, 100, lambda change: None)
        next(items)
        threading.Condition.__enter__ = interrupted
        try:
            print(len(list(items)))
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout == "499\n", done.stderr

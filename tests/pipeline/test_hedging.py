"""Second requests: sent when the first is late, few, and the first answer wins; and nothing is waited for for ever."""

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline import hedging
from ringfeed.pipeline.counters import Counters
from ringfeed.pipeline.hedging import Hedging, Latencies
from ringfeed.sharding import StorageError


@pytest.fixture
def late_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hedging, "_UNUSUAL_SECONDS", 0.02)


def in_turn(*reads: Callable[[], str]) -> Callable[[], str]:
    """A read that is the first of these when it is first done, then the second."""
    rest = iter(reads)
    return lambda: next(rest)()


def fail() -> str:
    raise ConnectionResetError("as planned")


@pytest.mark.usefixtures("late_at_once")
class TestHedging:
    def test_the_first_answer_wins(self) -> None:
        counters, released = Counters(), threading.Event()
        read = in_turn(lambda: "late" if released.wait(10) else "never", lambda: "second")
        assert Hedging(counters, second=True).call(read, Latencies(), 5, "s3://b/x") == "second"
        stats = counters.snapshot()
        assert (stats["hedge"].items, stats["hedge"].bytes, stats["hedge_win"].items) == (1, 5, 1)
        released.set()

    def test_a_late_first_answer_counts_too(self) -> None:
        counters, released = Counters(), threading.Event()
        read = in_turn(lambda: time.sleep(0.1) or "first", lambda: "no" if released.wait(10) else "never")  # type: ignore[func-returns-value]
        assert Hedging(counters, second=True).call(read, Latencies(), 5, "s3://b/x") == "first"
        assert (counters.snapshot()["hedge"].items, counters.snapshot()["hedge_win"].items) == (1, 0)
        released.set()

    def test_a_request_that_fails_leaves_the_other(self) -> None:
        call = Hedging(Counters(), second=True).call
        slow_failure, late = lambda: time.sleep(0.1) or fail(), lambda: time.sleep(0.2) or "late"  # type: ignore[func-returns-value]
        assert call(in_turn(slow_failure, late), Latencies(), 5, "s3://b/x") == "late"
        with pytest.raises(ConnectionResetError, match="as planned"):
            call(in_turn(slow_failure, fail), Latencies(), 5, "s3://b/x")

    def test_without_it_none_is_sent(self) -> None:
        counters = Counters()
        read = in_turn(lambda: time.sleep(0.1) or "first")  # type: ignore[func-returns-value]
        assert Hedging(counters, second=False).call(read, Latencies(), 5, "s3://b/x") == "first"
        assert counters.snapshot()["hedge"].items == 0

    def test_what_never_comes_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hedging, "_LIMIT_SECONDS", 0.1)
        released = threading.Event()
        for second in (True, False):
            with pytest.raises(StorageError, match=r"cannot read s3://b/x: no answer within .* the same command again"):
                Hedging(Counters(), second=second).call(lambda: released.wait(10), Latencies(), 5, "s3://b/x")
        released.set()

    def test_closing_ends_all_waits(self) -> None:
        released = threading.Event()
        reads = Hedging(Counters(), second=True)
        threading.Timer(0.1, reads.close).start()
        for _ in range(2):
            with pytest.raises(StorageError, match="the loader was closed"):
                reads.call(lambda: released.wait(10), Latencies(), 5, "s3://b/x")
        released.set()


@given(st.integers(0, 400), st.integers(1, 5))
def test_few_reads_are_sent_twice(reads: int, late_every: int) -> None:
    kind, hedges = Latencies(), 0
    for number in range(reads):
        kind.begin()
        hedges += number % late_every == 0 and kind.may_hedge()
    assert hedges <= 2 + 0.05 * reads


@given(st.lists(st.floats(0.001, 100), min_size=8, max_size=60))
def test_late_is_later_than_nearly_all(seconds: list[float]) -> None:
    kind = Latencies()
    for taken in seconds:
        kind.add(taken)
    late = kind.begin()
    assert late >= 0.2
    assert sum(taken > late for taken in seconds) <= 0.05 * len(seconds)

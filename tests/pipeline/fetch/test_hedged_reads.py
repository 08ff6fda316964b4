"""Second requests are few, sent only when the first is late, and the first answer wins; every wait ends."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringfeed.pipeline.fetch import hedged_reads as hedging
from ringfeed.pipeline.fetch.hedged_reads import Hedging, Latencies
from ringfeed.pipeline.fetch.threads import start_thread
from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.sharding import RingfeedError, StorageError
from ringfeed.sharding.storage.timings import StoreTimings

LATE_SOON = StoreTimings(late_seconds=0.02)


class InTurn:
    """A read that is the first of these in the first request, and the other in the second, whichever runs first."""

    def __init__(self, *reads: Callable[[], str]) -> None:
        self.reads = reads

    def __call__(self) -> str:
        return self.reads[0]()


@pytest.fixture
def reads_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(read: Callable[[], str], answers: Any, *, second: bool) -> None:
        send_read(read.reads[1] if second and isinstance(read, InTurn) else read, answers, second=second)

    send_read = hedging._send
    monkeypatch.setattr(hedging, "_send", send)


def fail() -> str:
    raise ConnectionResetError("as planned")


@pytest.mark.usefixtures("reads_in_turn")
class TestHedging:
    def test_the_first_answer_wins(self) -> None:
        counters, released = Counters(), threading.Event()
        read = InTurn(lambda: "late" if released.wait(60) else "never", lambda: "second")
        assert Hedging(counters, LATE_SOON, second=True).call(read, Latencies(), 5, "s3://b/x") == "second"
        stats = counters.snapshot()
        assert (stats["hedge"].items, stats["hedge"].bytes, stats["hedge_win"].items) == (1, 5, 1)
        released.set()

    def test_a_late_first_answer_counts_too(self) -> None:
        counters, sent, released = Counters(), threading.Event(), threading.Event()

        def second() -> str:
            sent.set()
            return "no" if released.wait(60) else "never"

        read = InTurn(lambda: "first" if sent.wait(60) else "alone", second)
        assert Hedging(counters, LATE_SOON, second=True).call(read, Latencies(), 5, "s3://b/x") == "first"
        assert (counters.snapshot()["hedge"].items, counters.snapshot()["hedge_win"].items) == (1, 0)
        released.set()

    def test_a_request_that_fails_leaves_the_other(self) -> None:
        call = Hedging(Counters(), LATE_SOON, second=True).call
        for answer in (lambda: "late", fail):
            sent, failed = threading.Event(), threading.Event()

            def slow_failure(sent: threading.Event = sent, failed: threading.Event = failed) -> str:
                sent.wait(60)
                failed.set()
                return fail()

            def late(
                sent: threading.Event = sent, failed: threading.Event = failed, answer: Callable[[], str] = answer
            ) -> str:
                sent.set()
                failed.wait(60)
                time.sleep(0.1)  # the failure is told by then
                return answer()

            read = InTurn(slow_failure, late)
            if answer is fail:
                with pytest.raises(ConnectionResetError, match="as planned"):
                    call(read, Latencies(), 5, "s3://b/x")
            else:
                assert call(read, Latencies(), 5, "s3://b/x") == "late"

    def test_without_a_second_thread_the_first_request_continues(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counters, size = Counters(), threading.stack_size()
        call = Hedging(counters, LATE_SOON, second=True).call
        begun, refused = threading.Event(), threading.Event()

        def first() -> str:
            threading.stack_size(1 << 46)  # more than there are addresses
            begun.set()
            return "first" if refused.wait(60) else "alone"

        def start(function: Callable[[], None], name: str, *, daemon: bool) -> None:
            try:
                start_thread(function, name, daemon=daemon)
                begun.wait(60)
            except RingfeedError:
                refused.set()
                raise

        monkeypatch.setattr(hedging, "start_thread", start)
        try:
            assert call(first, Latencies(), 5, "s3://b/x") == "first"
            with pytest.raises(RingfeedError, match="the loader cannot start a thread: "):
                call(first, Latencies(), 5, "s3://b/x")
        finally:
            threading.stack_size(size)
        assert counters.snapshot()["hedge"].items == 0

    def test_disabled_hedging_sends_no_second_request(self) -> None:
        counters = Counters()
        read = InTurn(lambda: time.sleep(0.1) or "first")  # type: ignore[func-returns-value]
        assert Hedging(counters, LATE_SOON, second=False).call(read, Latencies(), 5, "s3://b/x") == "first"
        assert counters.snapshot()["hedge"].items == 0

    def test_a_read_without_an_answer_is_given_up(self) -> None:
        brief, released = replace(LATE_SOON, request_seconds=0.1), threading.Event()
        for second in (True, False):
            with pytest.raises(StorageError, match=r"cannot read s3://b/x: no answer within .* the same command again"):
                Hedging(Counters(), brief, second=second).call(lambda: released.wait(60), Latencies(), 5, "s3://b/x")
        released.set()

    def test_closing_ends_all_waits(self) -> None:
        released = threading.Event()
        reads = Hedging(Counters(), LATE_SOON, second=True)
        threading.Timer(0.1, reads.close).start()
        for _ in range(2):
            with pytest.raises(StorageError, match="the loader was closed"):
                reads.call(lambda: released.wait(60), Latencies(), 5, "s3://b/x")
        released.set()


@given(st.integers(0, 400), st.integers(1, 5))
def test_few_reads_are_sent_twice(reads: int, late_every: int) -> None:
    kind, hedges = Latencies(), 0
    for number in range(reads):
        kind.begin(StoreTimings())
        hedges += number % late_every == 0 and kind.may_hedge()
    assert hedges <= 2 + 0.05 * reads


@given(st.lists(st.floats(0.001, 100), min_size=8, max_size=60))
@example([1.0] * 18 + [100.0])  # of which the 95th percentile is between the last two
def test_late_is_later_than_nearly_all(seconds: list[float]) -> None:
    kind = Latencies()
    for taken in seconds:
        kind.add(taken)
    late = kind.begin(StoreTimings())
    assert late >= 0.2
    assert sum(taken > late for taken in seconds) <= math.ceil(0.05 * (len(seconds) - 1))

"""The limit on concurrent fetches, against simulated stores."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline.fetch.adaptive_limit import AdaptiveLimit


def run(limit: AdaptiveLimit, fetches: int, rate: Callable[[int], float], *, queued: bool = True) -> set[int]:
    """Let fetches of a byte end, at the rate of the store with so many at a time; return the limits on the way."""
    now, seen = 0.0, set()
    for _ in range(fetches):
        now += 1 / rate(limit.value)
        limit.add(1, now, queued=queued)
        seen.add(limit.value)
    return seen


class TestAdaptiveLimit:
    @given(st.integers(1, 8), st.integers(0, 60), st.integers(1, 100))
    def test_it_rises_until_the_store_is_saturated(self, least: int, more: int, serves: int) -> None:
        limit = AdaptiveLimit(least, least + more)
        seen = run(limit, 1500, lambda running: min(running, serves))
        assert min(seen) >= least
        assert max(seen) <= least + more
        assert min(limit.value, serves) >= 0.75 * min(serves, least + more)  # of the rate that can be had
        assert limit.value <= 1 + 1.25 * max(least, 2 * serves)

    @given(st.integers(1, 8), st.integers(1, 60))
    def test_it_stays_low_if_more_fetches_do_not_help(self, least: int, more: int) -> None:
        limit = AdaptiveLimit(least, least + more)
        run(limit, 1000, lambda _: 5.0)
        assert limit.value <= least + max(1, least // 4)

    @given(st.integers(1, 30), st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=200))
    def test_a_fixed_limit_stays(self, threads: int, fetches: list[tuple[float, bool]]) -> None:
        limit, now = AdaptiveLimit(threads, threads), 0.0
        for seconds, queued in fetches:
            now += seconds
            limit.add(1, now, queued=queued)
            assert limit.value == threads

    def test_it_ignores_the_rate_of_a_slow_consumer(self) -> None:
        limit = AdaptiveLimit(4, 32)
        assert run(limit, 500, float, queued=False) == {4}

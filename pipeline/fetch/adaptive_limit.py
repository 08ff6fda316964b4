"""Adapt the number of concurrent fetches to the throughput. Pure arithmetic: no I/O, no clock."""

from __future__ import annotations

_GAIN = 1.1  # growth of the rate that makes more fetches worthwhile; below it lies the noise of one round
_MIN_ROUND = 4  # fetches over which a rate is measured, at least
_HELD_ROUNDS = 16  # rounds before a higher limit is tried again: the load on the store may have changed


class AdaptiveLimit:
    """A limit on concurrent fetches that rises while throughput grows.

    A round is as many fetches as run at a time, with others waiting throughout: otherwise the consumer sets the pace,
    and the rate says nothing about the store. While each round is at least 1.1 times as fast as the one before, the
    limit doubles; otherwise it returns to the last value that helped. Later, a quarter more is tried now and then.

    Args:
        least: initial limit.
        most: highest limit; equal to `least` for a fixed limit.

    Attributes:
        value: current limit.

    >>> limit = AdaptiveLimit(2, 16)
    >>> for second in range(40):  # a fetch takes a second, however many run
    ...     for _ in range(limit.value):
    ...         limit.add(1000, second, queued=True)
    >>> limit.value
    16
    """

    def __init__(self, least: int, most: int) -> None:
        self.value = least
        self._most = most
        self._before: tuple[int, float] | None = None  # previous limit and its rate, while a higher limit is tried
        self._rounds = _HELD_ROUNDS
        self._growth = 1.0
        self._to_ignore = 0  # fetches that began under the previous limit
        self._begun: float | None = None
        self._bytes = 0
        self._fetches = 0

    def add(self, size: int, now: float, *, queued: bool) -> None:
        """Record a finished fetch.

        Args:
            size: fetched bytes.
            now: time in seconds, by a monotonic clock.
            queued: whether other fetches are waiting.
        """
        if not queued:
            self._begun = None
            return
        if self._to_ignore:
            self._to_ignore -= 1
            return
        if self._begun is None:
            self._begun, self._bytes, self._fetches = now, 0, 0
            return
        self._bytes += size
        self._fetches += 1
        if self._fetches >= max(self.value, _MIN_ROUND):
            rate = self._bytes / max(now - self._begun, 1e-9)
            self._begun, self._bytes, self._fetches = now, 0, 0
            self._judge(rate)

    def _judge(self, rate: float) -> None:
        if self._before is None:
            self._rounds += 1
            if self._rounds >= _HELD_ROUNDS:
                self._try_more(rate)
        elif rate >= _GAIN * self._before[1]:
            self._growth = 1.0
            self._try_more(rate)
        else:
            self._change(self._before[0])
            self._hold()

    def _try_more(self, rate: float) -> None:
        more = min(self._most, self.value + max(1, int(self.value * self._growth)))
        if more == self.value:
            self._hold()
            return
        self._before = (self.value, rate)
        self._change(more)

    def _hold(self) -> None:
        self._before, self._rounds, self._growth = None, 0, 0.25

    def _change(self, limit: int) -> None:
        self._to_ignore, self._begun = self.value, None
        self.value = limit

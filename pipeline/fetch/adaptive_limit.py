"""How many fetches run at a time: few at first, more while that brings more bytes. Arithmetic: no I/O, no clock."""

from __future__ import annotations

__all__ = ["AdaptiveLimit"]

_GAIN = 1.1  # of the rate, that makes more fetches worth it; below it lies the noise of one round
_FEWEST = 4  # fetches in a round, over which a rate is measured
_HELD_ROUNDS = 16  # before a little more is tried again: the store or its other users may have changed


class AdaptiveLimit:
    """Climbs from a number of fetches at a time while throughput grows, and stays below where it stops growing.

    A round is as many fetches as run at a time, with more waiting all along: else the consumer sets the pace, and the
    rate says nothing of the store. While the rate of each round is 1.1 times that of the one before, the number
    doubles; when it is not, the number goes back to the last that helped. Later a quarter more is tried now and then.

    Args:
        least: fetches at a time, from the start on.
        most: fetches at a time; as many as `least` to fix the number.

    Attributes:
        limit: fetches at a time now.

    >>> limit = AdaptiveLimit(2, 16)
    >>> for second in range(40):  # each takes a second, however many run
    ...     for _ in range(limit.value):
    ...         limit.add(1000, second, queued=True)
    >>> limit.value
    16
    """

    def __init__(self, least: int, most: int) -> None:
        self.value = least
        self._most = most
        self._before: tuple[int, float] | None = None  # the limit and the rate that this one has to beat
        self._held = _HELD_ROUNDS
        self._growth = 1.0
        self._passed_over = 0  # fetches that began under another limit
        self._begun: float | None = None
        self._bytes = 0
        self._fetches = 0

    def add(self, size: int, now: float, *, queued: bool) -> None:
        """A fetch has ended.

        Args:
            size: bytes that it brought.
            now: seconds, by any clock that only goes on.
            queued: whether another was waiting to begin.
        """
        if not queued:
            self._begun = None
            return
        if self._passed_over:
            self._passed_over -= 1
            return
        if self._begun is None:
            self._begun, self._bytes, self._fetches = now, 0, 0
            return
        self._bytes += size
        self._fetches += 1
        if self._fetches >= max(self.value, _FEWEST):
            rate = self._bytes / max(now - self._begun, 1e-9)
            self._begun, self._bytes, self._fetches = now, 0, 0
            self._judge(rate)

    def _judge(self, rate: float) -> None:
        if self._before is None:
            self._held += 1
            if self._held >= _HELD_ROUNDS:
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
        self._before, self._held, self._growth = None, 0, 0.25

    def _change(self, limit: int) -> None:
        self._passed_over, self._begun = self.value, None
        self.value = limit

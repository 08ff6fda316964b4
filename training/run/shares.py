"""The ranks' shares of each global batch: equal, or following the speed that was measured on each rank.

Each global batch has the same samples, whatever the shares.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from ringfeed.pipeline import Loader, Mixture
from ringfeed.training.ring.ring import Ring
from ringfeed.training.sync.epoch_plan import EpochPlan

log = logging.getLogger(__name__)

_LEAST_GAIN = 0.05  # a share of the slowest rank's time; smaller differences are noise


def even_shares(batch_size: int, ranks: int) -> list[int]:
    """Return the samples of each rank in a global batch, which differ by at most one.

    >>> even_shares(10, 4)
    [2, 3, 2, 3]
    """
    bounds = [rank * batch_size // ranks for rank in range(ranks + 1)]
    return [stop - start for start, stop in pairwise(bounds)]


def shares_by_speed(shares: Sequence[int], seconds: Sequence[float], bound: float) -> list[int]:
    """Return shares, the samples of each rank in a global batch, in proportion to speed, with the same sum.

    `seconds` are those that each rank took for its share. A new share is at most `bound` times more or less than an
    equal one, and at least one sample. The old ones stay if the slowest rank would gain less than 5 %.

    >>> shares_by_speed([50, 50], [2.0, 1.0], bound=4)
    [33, 67]
    >>> shares_by_speed([50, 50], [20.0, 1.0], bound=4)
    [12, 88]
    >>> shares_by_speed([50, 50], [1.02, 1.0], bound=4)
    [50, 50]
    """
    total, ranks = sum(shares), len(shares)
    least, most = max(1, math.floor(total / ranks / bound)), math.ceil(total / ranks * bound)
    speeds = [share / max(time, 1e-9) for share, time in zip(shares, seconds, strict=True)]
    low, high = 0.0, most / min(speeds)  # in so many seconds all ranks together do less, and at least, `total`
    for _ in range(100):
        middle = (low + high) / 2
        done = sum(min(max(middle * speed, least), most) for speed in speeds)
        low, high = (middle, high) if done < total else (low, middle)
    wanted = [min(max(high * speed, least), most) for speed in speeds]
    result = [math.floor(share) for share in wanted]
    by_fraction = sorted(range(ranks), key=lambda rank: result[rank] - wanted[rank])
    for rank in by_fraction[: total - sum(result)]:
        result[rank] += 1
    expected = max(share / speed for share, speed in zip(result, speeds, strict=True))
    return result if expected <= (1 - _LEAST_GAIN) * max(seconds) else list(shares)


class RankShares:
    """This rank's share of each global batch, and the loader of that share.

    `bound`: see `shares_by_speed`; None for equal shares. With `has_part` the ranks have parts of their own
    (`sync.clients`), which the loader reads in their shares.
    """

    def __init__(
        self,
        loader: Loader | Mixture,
        ring: Ring,
        batch_size: int,
        bound: float | None = None,
        *,
        has_part: bool = False,
    ) -> None:
        self._has_part = has_part
        self._whole, self._ring, self._batch_size, self._bound = loader, ring, batch_size, bound
        self._steps, self._seconds = 0, 0.0
        self._set(even_shares(batch_size, ring.size))

    def _set(self, shares: list[int]) -> None:
        bounds = [0, *accumulate(shares)]
        start, stop = bounds[self._ring.rank : self._ring.rank + 2]
        self.of_ranks = shares
        self.loader = self._whole if self._has_part else self._whole.with_share(start, stop)

    def replace_loader(self, loader: Loader | Mixture) -> None:
        """Read from another loader of the same batches, such as one with shards in quarantine."""
        self._whole = loader
        self._set(self.of_ranks)

    @property
    def least(self) -> int:
        """The fewest samples that a rank may get; an empty share has one, of weight 0."""
        if self._bound is None:
            return max(1, min(self.of_ranks))
        return max(1, math.floor(self._batch_size / self._ring.size / self._bound))

    @property
    def sample_factor(self) -> float:
        """This rank's share, where an equal one is 1.

        The mean over ranks of factor x mean over a rank's samples is the mean over the global batch.
        """
        return self.of_ranks[self._ring.rank] * self._ring.size / self._batch_size

    def weight(self, epoch_plan: EpochPlan, step: int) -> float:
        """Weight of this rank in means of statistics: of a part's samples so far, else of the samples in a step."""
        return float(epoch_plan.samples_before(step) if self._has_part else self.of_ranks[self._ring.rank])

    def add(self, steps: int, seconds: float) -> None:
        """Take note of the time that steps took this rank, without its waits for others."""
        self._steps += steps
        self._seconds += seconds

    def agree(self, epoch: int) -> bool:
        """Let the shares of an epoch follow the times noted since the last call; return whether they changed.

        A collective, unless shares are equal.
        """
        if self._bound is None or self._ring.size == 1:
            return False
        times = self._ring.allgather_object(self._seconds / self._steps if self._steps else 0.0)
        self._steps, self._seconds = 0, 0.0
        if not all(times):
            return False
        shares = shares_by_speed(self.of_ranks, times, self._bound)
        if shares == self.of_ranks:
            return False
        self._set(shares)
        if self._ring.rank == 0:
            log.info("epoch %d  samples of each rank in a step: %s", epoch, ", ".join(map(str, shares)))
        return True

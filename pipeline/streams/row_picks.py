"""Which record of a window serves each of its positions.

Tested in tests/pipeline/test_loader.py and tests/pipeline/streams/test_length_buckets.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline.order.class_balance import RecordSampler
from ringfeed.pipeline.order.windows import Positions

Int64 = npt.NDArray[np.int64]
ClassNumbers = npt.NDArray[np.integer]


class Picks(Protocol):
    """The record that serves each position of a window."""

    def at(self, positions: Positions) -> Int64:
        """Return the records at ascending positions, numbered through the window. Each call continues the last."""


class ArrayPicks:
    """Picks known in advance.

    Args:
        rows: record of each position, from `first` on.
        first: first position that will be read.
    """

    def __init__(self, rows: Int64, first: int = 0) -> None:
        self.rows = rows
        self.first = first

    def at(self, positions: Positions) -> Int64:
        if isinstance(positions, range):
            return self.rows[positions.start - self.first : positions.stop - self.first]
        return self.rows[positions - self.first]


class SampledPicks:
    """Picks drawn as reading proceeds, for a window that serves each of its records many times.

    Args:
        sampler: sampler of the window's records, advanced to `first`.
        classes_of: returns the class of each position in ``[start, stop)``.
        first: first position that will be read.
        stop: end of the window's positions.
        block: positions to draw at a time.
    """

    def __init__(
        self, sampler: RecordSampler, classes_of: Callable[[int, int], ClassNumbers], first: int, stop: int, block: int
    ) -> None:
        self._sampler = sampler
        self._classes_of = classes_of
        self._first, self._rows = first, np.empty(0, np.int64)  # the positions drawn last
        self._stop = stop
        self._block = block

    def at(self, positions: Positions) -> Int64:
        begin, end = int(positions[0]), int(positions[-1]) + 1
        drawn = self._first + len(self._rows)
        if drawn < end:
            first, parts = min(begin, drawn), [self._rows[begin - self._first :]]
            while drawn < end:
                until = min(drawn + self._block, self._stop)
                parts.append(self._sampler.draw(self._classes_of(drawn, until)))
                drawn = until
            self._first, self._rows = first, np.concatenate(parts)
        rows: Int64 = self._rows[np.asarray(positions) - self._first]
        return rows

"""Groups equal numbers by one stable sort; used wherever records are assigned to classes or shards.

Tested in tests/sharding/assignment/test_assignment.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .arrays import Int64, Integers

_SIXTEEN_BITS = 1 << 15


@dataclass(frozen=True, slots=True)
class Groups:
    """The positions of an array, grouped by value."""

    values: Integers  # distinct numbers, ascending, [groups]
    order: Int64  # positions, group after group, ascending within each; int64 [n]
    # Boundaries of the groups in `order`: group i is ``order[bounds[i]:bounds[i + 1]]``; int64 [groups + 1]
    bounds: Int64

    def __iter__(self) -> Iterator[tuple[int, Int64]]:
        """Yield each distinct number and its positions."""
        for value, (start, stop) in zip(self.values.tolist(), pairwise(self.bounds.tolist()), strict=True):
            yield value, self.order[start:stop]


def stable_order(numbers: Integers) -> Int64:
    """A stable argsort of non-negative numbers, by NumPy's radix sort for 16 bits, its fastest, where they fit."""
    if numbers.itemsize > 2 and numbers.max(initial=0) < _SIXTEEN_BITS:
        numbers = numbers.astype(np.int16)
    return np.argsort(numbers, kind="stable")


def group(numbers: Integers) -> Groups:
    """Group the positions of an array of non-negative numbers.

    >>> [(value, places.tolist()) for value, places in group(np.array([3, 0, 3]))]
    [(0, [1]), (3, [0, 2])]
    """
    order = stable_order(numbers)
    ordered = numbers[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    return Groups(values=ordered[starts], order=order, bounds=np.append(starts, len(numbers)))

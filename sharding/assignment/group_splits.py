"""Assign whole groups of records to splits, so that every class is shared out as asked, as well as groups allow.

The idea is that of scikit-learn's `StratifiedGroupKFold`: the largest groups first, each to where it evens the classes
most. What is evened here is the sum, over splits s and classes c, of (records - share_s * total_c)**2 / (share_s *
total_c), Pearson's chi-square of the splits against their shares, in which all records together count as one more
class. A group with n_c records of class c adds least where the sum over its classes of n_c * (2 * records + n_c) /
(share_s * total_c) is least: in the split that is furthest behind. For groups of one record and one class that is the
rule of Webster and Sainte-Lague for sharing out seats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ..compute.keyed_random import shuffled

__all__ = ["GroupCounts", "assign_groups"]

Int64 = npt.NDArray[np.int64]
_AT_ONCE = 1 << 16  # groups whose counts are Python's numbers, which take 30 bytes each, at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """Records by group and class, as rows of those that are not zero, sorted by group.

    Attributes:
        groups: of each row, from 0, none left out; int64 [rows].
        class_ids: of each row, int64 [rows].
        counts: records of the group and class, int64 [rows].
    """

    groups: Int64
    class_ids: Int64
    counts: Int64

    @property
    def bounds(self) -> Int64:
        """The rows of group g are ``bounds[g]`` to ``bounds[g + 1]``, half-open; int64 [groups + 1]."""
        return np.append(np.flatnonzero(np.diff(self.groups, prepend=-1)), len(self.groups))


def assign_groups(
    table: GroupCounts,
    shares: Sequence[Fraction],
    key: int,
    *,
    known: npt.NDArray[np.int32] | None = None,
    existing_counts: Int64 | None = None,
) -> npt.NDArray[np.int32]:
    """The split of each group, int32 [groups].

    Groups are taken largest first, those of one size in keyed random order, each to the split that is furthest behind.
    No split is left without a group. It takes about 4 us a group of five classes and two splits.

    Args:
        table: what is in the groups.
        shares: of the splits; they add up to 1.
        key: of the random order.
        known: the split of each group that has one already, -1 of the others; int32 [groups]. None: none has.
        existing_counts: records of each class that each split holds already, int64 [splits, classes]; None: none. A
            split that holds some needs no group.

    Raises:
        ValueError: there are fewer groups than splits, and nothing is there.

    >>> halves = GroupCounts(groups=np.arange(4), class_ids=np.array([0, 0, 1, 1]), counts=np.array([3, 3, 3, 3]))
    >>> splits = assign_groups(halves, [Fraction(1, 2), Fraction(1, 2)], key=0)
    >>> sorted(splits[:2].tolist()), sorted(splits[2:].tolist())
    ([0, 1], [0, 1])
    """
    bounds = table.bounds
    groups, classes = len(bounds) - 1, int(table.class_ids.max(initial=-1)) + 1
    if existing_counts is None:
        existing_counts = np.zeros((len(shares), classes), np.int64)
    if groups < len(shares) and not existing_counts.any():
        raise ValueError(f"there must be at least as many groups as splits, got {groups} for {len(shares)}")
    classes = max(classes, existing_counts.shape[1])
    held = np.pad(existing_counts, ((0, 0), (0, classes - existing_counts.shape[1])))
    totals = (np.bincount(table.class_ids, table.counts, minlength=classes) + held.sum(axis=0)).tolist()
    weights = [[1 / (float(share) * max(n, 1)) for n in (*totals, sum(totals))] for share in shares]
    result = np.full(groups, -1, np.int32) if known is None else known.copy()
    for split in range(len(shares)):
        mine = result[table.groups] == split
        np.add.at(held[split], table.class_ids[mine], table.counts[mine])
    records = [[*row, sum(row)] for row in held.tolist()]
    order = _largest_first(np.add.reduceat(table.counts, bounds[:-1]), key)
    order = order[result[order] < 0]
    empty = {split for split, row in enumerate(records) if not row[-1]}
    for done, (group, rows) in enumerate(_rows_of(table, bounds, order, everything=classes)):
        best, least = -1, 0.0
        for split in empty if len(order) - done <= len(empty) else range(len(shares)):
            have, weight, cost = records[split], weights[split], 0.0
            for class_id, count in rows:
                cost += count * (2 * have[class_id] + count) * weight[class_id]
            if best < 0 or cost < least:
                best, least = split, cost
        have = records[best]
        for class_id, count in rows:
            have[class_id] += count
        result[group] = best
        empty.discard(best)
    return result


def _largest_first(sizes: Int64, key: int) -> Int64:
    mixed = shuffled(key, len(sizes))
    return mixed[np.argsort(-sizes[mixed], kind="stable")]


def _rows_of(
    table: GroupCounts, bounds: Int64, order: Int64, everything: int
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Each group in order, with its classes and counts, and all of its records as those of class `everything`."""
    for first in range(0, len(order), _AT_ONCE):
        groups = order[first : first + _AT_ONCE]
        lengths = bounds[groups + 1] - bounds[groups]
        ends = np.cumsum(lengths)
        rows = np.arange(ends[-1]) + np.repeat(bounds[groups] - ends + lengths, lengths)
        class_ids, counts = table.class_ids[rows].tolist(), table.counts[rows].tolist()
        start = 0
        for group, end in zip(groups.tolist(), ends.tolist(), strict=True):
            mine = counts[start:end]
            yield group, [*zip(class_ids[start:end], mine, strict=True), (everything, sum(mine))]
            start = end

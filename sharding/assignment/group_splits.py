"""Assign whole groups of records to splits, so that each split gets its share of every class as far as groups allow.

As in scikit-learn's `StratifiedGroupKFold`, the largest groups come first, and each goes where it balances the classes
most. The measure is Pearson's chi-square of the splits against their shares: the sum over splits s and classes c of
(records - share_s * total_c)**2 / (share_s * total_c), with all records together as one more class. A group with n_c
records of class c adds least to it in the split that is furthest behind: where the sum over its classes of n_c * (2 *
records + n_c) / (share_s * total_c) is least. For groups of one record and one class, this is the Webster/Sainte-Lague
method of apportioning seats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.compute.arrays import Int32, Int64
from ringfeed.sharding.compute.keyed_random import shuffled

_GROUPS_AT_ONCE = 1 << 16  # whose counts are Python numbers, of 30 bytes each, at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """Records by group and class: a row for each count that is not zero, sorted by group."""

    groups: Int64  # group of each row, from 0 without gaps; int64 [rows]
    class_ids: Int64  # class of each row, int64 [rows]
    counts: Int64  # records of the group and class, int64 [rows]

    @property
    def bounds(self) -> Int64:
        """The rows of group g are ``bounds[g]`` to ``bounds[g + 1]``, half-open; int64 [groups + 1]."""
        return np.append(np.flatnonzero(np.diff(self.groups, prepend=-1)), len(self.groups))


def assign_groups(
    table: GroupCounts,
    shares: Sequence[Fraction],
    key: int,
    *,
    known_splits: Int32 | None = None,
    existing_counts: Int64 | None = None,
) -> Int32:
    """The split of each group, int32 [groups].

    Takes the largest groups first, those of one size in keyed random order, and puts each in the split that is furthest
    behind. No split is left without a group. Takes about 4 us per group of five classes and two splits.

    Args:
        shares: shares of the splits, which add up to 1.
        known_splits: split of each group that has one already, -1 for the others; int32 [groups]. None: no group has.
        existing_counts: records of each class that each split holds already, int64 [splits, classes]; None: none. A
            split that holds some needs no group.

    Raises:
        ValueError: there are fewer groups than splits, and all splits are empty.

    >>> halves = GroupCounts(groups=np.arange(4), class_ids=np.array([0, 0, 1, 1]), counts=np.array([3, 3, 3, 3]))
    >>> splits = assign_groups(halves, [Fraction(1, 2), Fraction(1, 2)], key=0)
    >>> sorted(splits[:2].tolist()), sorted(splits[2:].tolist())
    ([0, 1], [0, 1])
    """
    bounds = table.bounds
    groups = len(bounds) - 1
    existing = np.zeros((len(shares), 0), np.int64) if existing_counts is None else existing_counts
    if groups < len(shares) and not existing.any():
        raise ValueError(f"there must be at least as many groups as splits, got {groups} for {len(shares)}")
    classes = max(int(table.class_ids.max(initial=-1)) + 1, existing.shape[1])
    split_counts = np.pad(existing, ((0, 0), (0, classes - existing.shape[1])))
    weights = _weights(np.bincount(table.class_ids, table.counts, minlength=classes) + split_counts.sum(axis=0), shares)
    result = np.full(groups, -1, np.int32) if known_splits is None else known_splits.copy()
    for split in range(len(shares)):
        mine = result[table.groups] == split
        np.add.at(split_counts[split], table.class_ids[mine], table.counts[mine])
    records = [[*row, sum(row)] for row in split_counts.tolist()]
    order = _largest_first(np.add.reduceat(table.counts, bounds[:-1]), key)
    order = order[result[order] < 0]
    empty = {split for split, row in enumerate(records) if not row[-1]}
    for done, (group, rows) in enumerate(_rows_of(table, bounds, order, all_records=classes)):
        candidates = empty if len(order) - done <= len(empty) else range(len(shares))
        best = _furthest_behind(candidates, rows, records, weights)
        for class_id, count in rows:
            records[best][class_id] += count
        result[group] = best
        empty.discard(best)
    return result


def _weights(totals: npt.NDArray[np.float64], shares: Sequence[Fraction]) -> list[list[float]]:
    """1 / (share_s * total_c) by split and class, the last class being all records."""
    counts = totals.tolist()
    return [[1 / (float(share) * max(n, 1)) for n in (*counts, sum(counts))] for share in shares]


def _furthest_behind(
    candidates: Iterable[int],
    rows: Sequence[tuple[int, int]],
    records: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]],
) -> int:
    """The split to whose chi-square a group adds least, of the first of those that are equal.

    Args:
        rows: classes of the group and its records of each.
    """
    best, least = -1, 0.0
    for split in candidates:
        have, weight, cost = records[split], weights[split], 0.0
        for class_id, count in rows:
            cost += count * (2 * have[class_id] + count) * weight[class_id]
        if best < 0 or cost < least:
            best, least = split, cost
    return best


def _largest_first(sizes: Int64, key: int) -> Int64:
    mixed = shuffled(key, len(sizes))
    return mixed[np.argsort(-sizes[mixed], kind="stable")]


def _rows_of(
    table: GroupCounts, bounds: Int64, order: Int64, all_records: int
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Each group in order, with its classes and counts, and its total as the count of class `all_records`."""
    for first in range(0, len(order), _GROUPS_AT_ONCE):
        groups = order[first : first + _GROUPS_AT_ONCE]
        lengths = bounds[groups + 1] - bounds[groups]
        ends = np.cumsum(lengths)
        rows = np.arange(ends[-1]) + np.repeat(bounds[groups] - ends + lengths, lengths)
        class_ids, counts = table.class_ids[rows].tolist(), table.counts[rows].tolist()
        start = 0
        for group, end in zip(groups.tolist(), ends.tolist(), strict=True):
            mine = counts[start:end]
            yield group, [*zip(class_ids[start:end], mine, strict=True), (all_records, sum(mine))]
            start = end

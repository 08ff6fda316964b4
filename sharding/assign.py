"""Which split, shard and row each record goes to: exact balance as a pure function of four numbers.

The records of class c are numbered by their ordinal in the source. A keyed permutation of the ordinals gives each a
rank; ranges of ranks are the splits, so every split is stratified. Within a split the classes are laid end to end in
one sequence, and position p of it goes to shard ``p mod S``, slot ``p div S``. So shards' record counts, and each
class's counts per shard, differ by at most one. No table of records is ever held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .errors import ConfigError
from .keyed import derive_key, permute_each, shuffled

__all__ = ["Assignment", "SplitLayout", "shards_per_split", "split_class_counts"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLayout:
    """One split: its name, its number of shards, and how many records of each class it holds."""

    name: str
    shards: int
    class_counts: tuple[int, ...]

    @property
    def records(self) -> int:
        """Records in the split."""
        return sum(self.class_counts)

    def shard_records(self, shard: int) -> int:
        """Records in one of the split's shards."""
        return (self.records - shard - 1) // self.shards + 1

    def all_shard_records(self) -> Int64:
        """Records in each of the split's shards, int64 [shards]."""
        return (self.records - np.arange(self.shards) - 1) // self.shards + 1

    def shard_class_counts(self, shard: int) -> Int64:
        """Records of each class in one of the split's shards, int64 [classes]."""
        ends = np.cumsum((0, *self.class_counts))
        return np.diff((ends - shard - 1) // self.shards + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The place of every record, for one seed.

    Shards are numbered through all splits, in the order of `splits`.
    """

    seed: int
    splits: tuple[SplitLayout, ...]

    @property
    def shards(self) -> int:
        """Shards in all splits."""
        return sum(split.shards for split in self.splits)

    def shard(self, number: int) -> tuple[SplitLayout, int]:
        """The split of a shard, and the shard's number within it."""
        for split in self.splits:
            if number < split.shards:
                return split, number
            number -= split.shards
        raise ValueError(f"there are {self.shards} shards, none is number {self.shards + number}")

    def shard_records(self, number: int) -> int:
        """Records in a shard."""
        split, within = self.shard(number)
        return split.shard_records(within)

    def locate(self, class_ids: npt.NDArray[np.int32], ordinals: Int64) -> tuple[Int64, Int64]:
        """Shard and slot of each record.

        Args:
            class_ids: of each record, int32 [n].
            ordinals: of each record among those of its class, in source order, int64 [n].

        Returns:
            Shard numbers through all splits, and slots in ``[0, shard_records)``, int64 [n] each. A slot is not yet
            the row in the file: see `row_of_slot`.
        """
        if not len(class_ids):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        classes, group = np.unique(class_ids, return_inverse=True)
        counts, before = (table[:, classes] for table in _tables(self.splits))  # [splits, classes of these records]
        keys = [derive_key(self.seed, "class", class_id) for class_id in classes.tolist()]
        rank = permute_each(keys, counts.sum(axis=0), group, ordinals)
        ends = np.cumsum(counts, axis=0)
        split = np.zeros(len(rank), np.int64)
        for end in ends[:-1]:
            split += rank >= end[group]
        position: Int64 = rank + (before - ends + counts)[split, group]
        sizes = np.array([s.shards for s in self.splits], np.int64)
        first_shard = np.cumsum(sizes) - sizes
        return first_shard[split] + position % sizes[split], position // sizes[split]

    def row_of_slot(self, shard: int) -> Int64:
        """The row in the shard's file of each slot, int64 [shard_records]: a keyed shuffle."""
        split, number = self.shard(shard)
        return shuffled(derive_key(self.seed, "rows", split.name, number), split.shard_records(number))


@lru_cache(maxsize=2)
def _tables(splits: tuple[SplitLayout, ...]) -> tuple[Int64, Int64]:
    """Records of each class in each split, and of the classes before it there; int64 [splits, classes]."""
    counts = np.array([split.class_counts for split in splits], np.int64)
    return counts, np.cumsum(counts, axis=1) - counts


def split_class_counts(class_counts: Sequence[int], fractions: Mapping[str, Fraction]) -> dict[str, tuple[int, ...]]:
    """How many records of each class each split gets: its exact share, rounded up or down, and at least one.

    The seats that rounding down leaves in a class go to the splits that are furthest behind over the classes before
    it, so that the rounding does not add up: with two splits, the totals too are within one of their shares (but for
    classes that are too small to give each split a record otherwise).

    Args:
        class_counts: records of each class, [classes].
        fractions: share of each split; they add up to 1.

    Returns:
        For each split, [classes]. Zero only where a class has fewer records than there are splits.

    >>> split_class_counts([14, 14, 14, 14], {"train": Fraction(9, 10), "test": Fraction(1, 10)})
    {'train': (13, 12, 13, 12), 'test': (1, 2, 1, 2)}
    """
    behind = [Fraction(0)] * len(fractions)
    columns = []
    for count in class_counts:
        shares = [fraction * count for fraction in fractions.values()]
        given = [int(share) for share in shares]
        behind = [b + share - seats for b, share, seats in zip(behind, shares, given, strict=True)]
        candidates = sorted(
            (i for i in range(len(shares)) if shares[i] > given[i]), key=lambda i: (-behind[i], given[i] - shares[i], i)
        )
        for i in candidates[: count - sum(given)]:
            given[i] += 1
            behind[i] -= 1
        columns.append(_none_empty(given))
    return {name: tuple(column[i] for column in columns) for i, name in enumerate(fractions)}


def _none_empty(given: Sequence[int]) -> list[int]:
    """Move single records from the largest share to the empty ones, if there are enough to go round."""
    result = list(given)
    for i, amount in enumerate(given):
        if amount == 0 and sum(given) >= len(given):
            result[result.index(max(result))] -= 1
            result[i] = 1
    return result


def shards_per_split(records: Mapping[str, int], shards: int) -> dict[str, int]:
    """Shards of each split, so that all shards have about the same size: `shards` for the largest split.

    Raises:
        ConfigError: there are more shards than records.
    """
    largest = max(records.values())
    result = {name: max(1, round(shards * count / largest)) for name, count in records.items()}
    for name, count in records.items():
        if result[name] > count:
            raise ConfigError(f"split {name!r} has {count} records, too few for {result[name]} shards; ask for fewer")
    return result

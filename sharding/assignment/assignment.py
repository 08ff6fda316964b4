"""Compute the split, shard and row of each record: exact balance as a pure function, without a table of records.

The records of a stratum are numbered by their ordinal in the source, and a keyed permutation turns ordinals into ranks.
A stratum is a class, and ranges of its ranks form the splits, so every split is stratified. Where a column decides the
split of each record, a stratum is the records of a class in one split. Places are numbered by split, then by class,
then by rank. Position p of a split goes to shard ``p mod S``, slot ``p div S``. So the record counts of a split's
shards differ by at most one, and so do their counts of each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from types import MappingProxyType

import numpy as np

from ringfeed.sharding.compute.arrays import Int64, Integers, Unsigned
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.compute.grouping import group
from ringfeed.sharding.compute.keyed_random import derive_key, permute, permute_each, shuffled
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import counted

NO_RECORDS: Mapping[str, Sequence[int]] = MappingProxyType({})
_MANY_RECORDS = 512  # from which permuting one stratum after the other is faster (2026-11-21)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLayout:
    """Name, number of shards, and records of each class of a split."""

    name: str
    shards: int
    class_counts: Sequence[int]

    @property
    def records(self) -> int:
        """Number of records in the split."""
        return int(np.sum(np.asarray(self.class_counts), dtype=np.int64))

    @property
    def _ends(self) -> Int64:
        """Records of the classes before each class, then of all; int64 [classes + 1]."""
        ends = np.zeros(len(self.class_counts) + 1, np.int64)
        np.cumsum(np.asarray(self.class_counts), out=ends[1:])
        return ends

    def shard_records(self, shard: int) -> int:
        """Number of records in one of the split's shards."""
        return (self.records - shard - 1) // self.shards + 1

    def all_shard_records(self) -> Int64:
        """Records in each of the split's shards, int64 [shards]."""
        return (self.records - np.arange(self.shards) - 1) // self.shards + 1

    def shard_class_counts(self, shard: int) -> Int64:
        """Records of each class in one of the split's shards, int64 [classes]."""
        return np.diff((self._ends - shard - 1) // self.shards)

    def all_shard_class_counts(self) -> Unsigned:
        """Records of each class in each of the split's shards, [shards, classes], in the narrowest unsigned dtype."""
        ends = self._ends
        most = -(-max(self.class_counts) // self.shards)
        result = np.empty((self.shards, len(self.class_counts)), np.min_scalar_type(most))
        for shard in range(self.shards):
            result[shard] = np.diff((ends - shard - 1) // self.shards)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The place of every record, for one seed and generation.

    Shards are numbered through all splits, in the order of `splits`.
    """

    seed: int
    splits: tuple[SplitLayout, ...]  # splits in order
    # Whether a column or its file decides the split of each record. If so, stratum ``split * classes + class`` holds
    # the records of a class in a split; if not, stratum c is class c, and is cut into the splits.
    presplit: bool = False
    generation: int = 0  # generation of the dataset: 0 for a build, one more for each append

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.splits[0].class_counts)

    @property
    def strata(self) -> int:
        """Number of strata."""
        return self.classes * (len(self.splits) if self.presplit else 1)

    @property
    def shards(self) -> int:
        """Number of shards in all splits."""
        return sum(split.shards for split in self.splits)

    @property
    def _key(self) -> tuple[int | str, ...]:
        """The prefix of all keys. It holds the generation, so that appending the same records reorders them."""
        return (self.seed, "generation", self.generation) if self.generation else (self.seed,)

    def shard(self, number: int) -> tuple[SplitLayout, int]:
        """The split of a shard, and the number of the shard within it."""
        for split in self.splits:
            if number < split.shards:
                return split, number
            number -= split.shards
        raise ValueError(f"shard must be below {self.shards}, got {self.shards + number}")

    def shard_records(self, number: int) -> int:
        """Number of records in a shard."""
        split, within = self.shard(number)
        return split.shard_records(within)

    def locate(self, strata: Integers, ordinals: Int64) -> tuple[Int64, Int64]:
        """Shard and slot of each record: `shards_of` of its `places`."""
        return self.shards_of(self.places(strata, ordinals))

    def places(self, strata: Integers, ordinals: Int64, many_records: int = _MANY_RECORDS) -> Int64:
        """The place of each record among the places of all splits, int64 [n].

        Args:
            strata: stratum of each record, [n].
            ordinals: ordinal of each record among those of its stratum, in source order, int64 [n].
            many_records: mean records of a stratum from which they are permuted one stratum after the other.
        """
        if not len(strata):
            return np.empty(0, np.int64)
        by_stratum = group(strata)
        keys, sizes, starts = self._strata(by_stratum.values.astype(np.int64))
        ends = np.cumsum(sizes, axis=0)
        shifts = starts - ends + sizes
        if len(strata) < many_records * len(keys):
            groups = np.empty(len(strata), np.int64)
            groups[by_stratum.order] = np.repeat(np.arange(len(keys)), np.diff(by_stratum.bounds))
            ranks = permute_each(keys, ends[-1], groups, ordinals)
            split = np.zeros(len(ranks), np.int64)
            for end in ends[:-1]:
                split += ranks >= end[groups]
            ranks += shifts[split, groups]
            return ranks
        result = np.empty(len(strata), np.int64)
        for number, (_, members) in enumerate(by_stratum):
            ranks = permute(keys[number], int(ends[-1, number]), ordinals[members])
            result[members] = ranks + shifts[np.searchsorted(ends[:, number], ranks, side="right"), number]
        return result

    def _strata(self, strata: Int64) -> tuple[list[int], Int64, Int64]:
        """Keys of strata, and how many places they have in each split, and from which place on.

        Returns:
            Keys; counts and first places, int64 [splits, strata]: for all splits, or for the one split of a stratum.
        """
        counts, firsts = _tables(self.splits)
        if not self.presplit:
            keys = [derive_key(*self._key, "class", class_id) for class_id in strata.tolist()]
            return keys, counts[:, strata], firsts[:, strata]
        splits, class_ids = np.divmod(strata, self.classes)
        names = [split.name for split in self.splits]
        keys = [
            derive_key(*self._key, "class", class_id, names[split])
            for split, class_id in zip(splits.tolist(), class_ids.tolist(), strict=True)
        ]
        return keys, counts[splits, class_ids][None], firsts[splits, class_ids][None]

    def shards_of(self, places: Int64) -> tuple[Int64, Int64]:
        """Shard and slot of each place.

        Returns:
            Shard numbers through all splits, and slots in ``[0, shard_records)``, int64 [n] each. `row_of_slot` maps a
            slot to the row in the file.
        """
        sizes = np.array([split.shards for split in self.splits], np.int64)
        ends = np.cumsum([split.records for split in self.splits])
        split = np.searchsorted(ends, places, side="right")
        position = places - np.concatenate([[0], ends[:-1]])[split]
        return (np.cumsum(sizes) - sizes)[split] + position % sizes[split], position // sizes[split]

    def row_of_slot(self, shard: int) -> Int64:
        """The row of each slot in the shard's file, int64 [shard_records]: a keyed shuffle."""
        split, number = self.shard(shard)
        return shuffled(derive_key(*self._key, "rows", split.name, number), split.shard_records(number))


@lru_cache(maxsize=2)
def _tables(splits: tuple[SplitLayout, ...]) -> tuple[Int64, Int64]:
    """Records of each class in each split, and the first of their places; int64 [splits, classes]."""
    counts = np.stack([np.asarray(split.class_counts, np.int64) for split in splits])
    return counts, (np.cumsum(counts) - counts.reshape(-1)).reshape(counts.shape)


def split_class_counts(
    class_counts: Sequence[int],
    fractions: Mapping[str, Fraction],
    *,
    existing_counts: Mapping[str, Sequence[int]] = NO_RECORDS,
) -> dict[str, ClassCounts]:
    """Split the records of each class: each split gets its exact share, rounded up or down, and at least one record.

    The records that rounding down leaves over in a class go to the splits furthest behind in the classes before it, so
    that rounding errors do not accumulate: with two splits, the totals too are within one record of their shares
    (except where a class is too small to reach every split otherwise). In a class that the dataset holds already, they
    go to the splits whose deficits in this class and in all classes add up to the most. So many small appends keep
    both near their shares: 60 random appends of 0 to 3 records of each of 100 classes at 9:1 leave each class within
    1.3 records of its shares, and the totals within 1.2 (2026-11-23).

    Args:
        class_counts: records of each class, [classes].
        fractions: share of each split; the shares add up to 1.
        existing_counts: by split, the records of each class that a dataset holds already. Its classes come first, and
            need no further record in each split. Splits that `fractions` does not name are ignored.

    Returns:
        Records of each class by split, [classes]. A new class has zero only if it has fewer records than there are
        splits.

    >>> split_class_counts([14, 14, 14, 14], {"train": Fraction(9, 10), "test": Fraction(1, 10)})
    {'train': (13, 12, 13, 12), 'test': (1, 2, 1, 2)}
    >>> halves = {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    >>> split_class_counts([1, 1], halves, existing_counts={"a": [4, 3], "b": [3, 4]})
    {'a': (0, 1), 'b': (1, 0)}
    """
    whole = lcm(*(fraction.denominator for fraction in fractions.values()))  # a unit is 1 / whole of a record
    parts = [int(fraction * whole) for fraction in fractions.values()]
    known_classes = max(map(len, existing_counts.values()), default=0)
    existing = [list(existing_counts.get(name, (0,) * known_classes)) for name in fractions]
    deficits = _deficits(parts, whole, [sum(counts) for counts in existing])
    result = np.empty((len(parts), len(class_counts)), np.int64)
    for number, count in enumerate(class_counts):
        given = [part * count // whole for part in parts]
        rests = [part * count % whole for part in parts]
        deficits = [b + rest for b, rest in zip(deficits, rests, strict=True)]
        if left := count - sum(given):
            need = deficits
            if number < known_classes:
                own = _deficits(parts, whole, [counts[number] for counts in existing])
                need = [b + o + rest for b, o, rest in zip(deficits, own, rests, strict=True)]
            candidates = sorted((i for i, rest in enumerate(rests) if rest), key=lambda i: (-need[i], -rests[i], i))
            for i in candidates[:left]:
                given[i] += 1
                deficits[i] -= whole
        result[:, number] = given if number < known_classes else _fill_empty(given)
    return {name: ClassCounts(row) for name, row in zip(fractions, result, strict=True)}


def _deficits(parts: Sequence[int], whole: int, existing: Sequence[int]) -> list[int]:
    """How far each split is below its share of all records, in 1 / whole of a record."""
    total = sum(existing)
    return [part * total - count * whole for part, count in zip(parts, existing, strict=True)]


def _fill_empty(given: Sequence[int]) -> list[int]:
    """Move one record from the largest split to each empty one, if there are enough records."""
    result = list(given)
    for i, amount in enumerate(given):
        if amount == 0 and sum(given) >= len(given):
            result[result.index(max(result))] -= 1
            result[i] = 1
    return result


def shards_per_split(records: Mapping[str, int], shards: int) -> dict[str, int]:
    """Shards of each split: `shards` for the largest, and as many for the others as make shards equal in size.

    Raises:
        ConfigError: a split has fewer records than shards.
    """
    largest = max(records.values())
    result = {name: max(1, round(shards * count / largest)) for name, count in records.items()}
    for name, count in records.items():
        if result[name] > count:
            raise ConfigError(
                f"split {name!r} has {counted(count, 'record')}, too few for {result[name]} shards; ask for fewer"
            )
    return result

"""Which split, shard and row each record goes to: exact balance as a pure function of four numbers.

The records of a stratum are numbered by their ordinal in the source, and a keyed permutation of the ordinals gives each
a rank. A stratum is a class, and ranges of its ranks are the splits, so every split is stratified; or, where something
else decides the split of each record, the records of a class that go to one split. All places are numbered: split
after split, in it class after class, in it rank after rank. Position p of a split goes to shard ``p mod S``, slot
``p div S``. So shards' record counts, and each class's counts per shard, differ by at most one. No table of records is
ever held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ..compute.class_counts import ClassCounts
from ..compute.grouping import group
from ..compute.keyed_random import derive_key, permute, permute_each, shuffled
from ..errors import ConfigError
from ..messages import counted

__all__ = ["NO_RECORDS", "Assignment", "SplitLayout", "shards_per_split", "split_class_counts"]

Int64 = npt.NDArray[np.int64]
NO_RECORDS: Mapping[str, Sequence[int]] = MappingProxyType({})
_MANY = 512  # records of a stratum, from which it is faster to permute one stratum after the other (2026-11-21)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLayout:
    """One split: its name, its number of shards, and how many records of each class it holds."""

    name: str
    shards: int
    class_counts: Sequence[int]

    @property
    def records(self) -> int:
        """Records in the split."""
        return int(np.sum(np.asarray(self.class_counts), dtype=np.int64))

    @property
    def _ends(self) -> Int64:
        """Records of the classes before each, and of all; int64 [classes + 1]."""
        ends = np.zeros(len(self.class_counts) + 1, np.int64)
        np.cumsum(np.asarray(self.class_counts), out=ends[1:])
        return ends

    def shard_records(self, shard: int) -> int:
        """Records in one of the split's shards."""
        return (self.records - shard - 1) // self.shards + 1

    def all_shard_records(self) -> Int64:
        """Records in each of the split's shards, int64 [shards]."""
        return (self.records - np.arange(self.shards) - 1) // self.shards + 1

    def shard_class_counts(self, shard: int) -> Int64:
        """Records of each class in one of the split's shards, int64 [classes]."""
        return np.diff((self._ends - shard - 1) // self.shards)

    def all_shard_class_counts(self) -> npt.NDArray[np.unsignedinteger]:
        """Records of each class in each of the split's shards, [shards, classes], of the narrowest type."""
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

    Attributes:
        seed: of the permutations.
        splits: in order.
        presplit: whether the split of each record is given. Then stratum ``split * classes + class`` holds the records
            of a class in a split; else stratum c is class c, and is cut into the splits.
        generation: of the dataset: 0 is what a build writes, each append writes the next.
    """

    seed: int
    splits: tuple[SplitLayout, ...]
    presplit: bool = False
    generation: int = 0

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.splits[0].class_counts)

    @property
    def strata(self) -> int:
        """How many there are."""
        return self.classes * (len(self.splits) if self.presplit else 1)

    @property
    def shards(self) -> int:
        """Shards in all splits."""
        return sum(split.shards for split in self.splits)

    @property
    def _key(self) -> tuple[int | str, ...]:
        """What all keys begin with; an append of the same records puts them in another order."""
        return (self.seed, "generation", self.generation) if self.generation else (self.seed,)

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

    def locate(self, strata: npt.NDArray[np.integer], ordinals: Int64) -> tuple[Int64, Int64]:
        """Shard and slot of each record: `shards_of` its `places`."""
        return self.shards_of(self.places(strata, ordinals))

    def places(self, strata: npt.NDArray[np.integer], ordinals: Int64) -> Int64:
        """The place of each record among those of all splits, int64 [n].

        Args:
            strata: of each record, [n].
            ordinals: of each record among those of its stratum, in source order, int64 [n].
        """
        if not len(strata):
            return np.empty(0, np.int64)
        by_stratum = group(strata)
        keys, sizes, starts = self._strata(by_stratum.values.astype(np.int64))
        ends = np.cumsum(sizes, axis=0)
        shifts = starts - ends + sizes
        if len(strata) < _MANY * len(keys):
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
        """Of some strata, the keys, and in each split that they reach how many places they have and the first of them.

        Returns:
            Keys; and counts and places, int64 [splits, strata]: of all splits, or of the one that a stratum lies in.
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
            Shard numbers through all splits, and slots in ``[0, shard_records)``, int64 [n] each. A slot is not yet
            the row in the file: see `row_of_slot`.
        """
        sizes = np.array([split.shards for split in self.splits], np.int64)
        ends = np.cumsum([split.records for split in self.splits])
        split = np.searchsorted(ends, places, side="right")
        position = places - np.concatenate([[0], ends[:-1]])[split]
        return (np.cumsum(sizes) - sizes)[split] + position % sizes[split], position // sizes[split]

    def row_of_slot(self, shard: int) -> Int64:
        """The row in the shard's file of each slot, int64 [shard_records]: a keyed shuffle."""
        split, number = self.shard(shard)
        return shuffled(derive_key(*self._key, "rows", split.name, number), split.shard_records(number))


@lru_cache(maxsize=2)
def _tables(splits: tuple[SplitLayout, ...]) -> tuple[Int64, Int64]:
    """Records of each class in each split, and the first of their places among all; int64 [splits, classes]."""
    counts = np.stack([np.asarray(split.class_counts, np.int64) for split in splits])
    return counts, (np.cumsum(counts) - counts.reshape(-1)).reshape(counts.shape)


def split_class_counts(
    class_counts: Sequence[int],
    fractions: Mapping[str, Fraction],
    *,
    existing_counts: Mapping[str, Sequence[int]] = NO_RECORDS,
) -> dict[str, ClassCounts]:
    """How many records of each class each split gets: its exact share, rounded up or down, and at least one.

    The seats that rounding down leaves in a class go to the splits that are furthest behind over the classes before
    it, so that the rounding does not add up: with two splits, the totals too are within one of their shares (but for
    classes that are too small to give each split a record otherwise). Of a class that is there already, they go to the
    splits that are furthest behind in it and over all, the two added up, so that many small appends keep both near
    their shares: 60 random ones of 0 to 3 records of each of 100 classes at 9:1 leave each class within 1.3 of its
    shares, and the totals within 1.2 (2026-11-23).

    Args:
        class_counts: records of each class, [classes].
        fractions: share of each split; they add up to 1.
        existing_counts: by split, the records of each class that a dataset holds already. Its classes come first, and
            need no further record in each split. Splits that `fractions` does not name are ignored.

    Returns:
        For each split, [classes]. Of the other classes, zero only where one has fewer records than there are splits.

    >>> split_class_counts([14, 14, 14, 14], {"train": Fraction(9, 10), "test": Fraction(1, 10)})
    {'train': (13, 12, 13, 12), 'test': (1, 2, 1, 2)}
    >>> halves = {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    >>> split_class_counts([1, 1], halves, existing_counts={"a": [4, 3], "b": [3, 4]})
    {'a': (0, 1), 'b': (1, 0)}
    """
    whole = lcm(*(fraction.denominator for fraction in fractions.values()))  # what is counted below are parts of it
    parts = [int(fraction * whole) for fraction in fractions.values()]
    known_classes = max(map(len, existing_counts.values()), default=0)
    held = [list(existing_counts.get(name, (0,) * known_classes)) for name in fractions]
    behind = _behind(parts, whole, [sum(counts) for counts in held])
    result = np.empty((len(parts), len(class_counts)), np.int64)
    for number, count in enumerate(class_counts):
        given = [part * count // whole for part in parts]
        rests = [part * count % whole for part in parts]
        behind = [b + rest for b, rest in zip(behind, rests, strict=True)]
        if left := count - sum(given):
            need = behind
            if number < known_classes:
                own = _behind(parts, whole, [counts[number] for counts in held])
                need = [b + o + rest for b, o, rest in zip(behind, own, rests, strict=True)]
            candidates = sorted((i for i, rest in enumerate(rests) if rest), key=lambda i: (-need[i], -rests[i], i))
            for i in candidates[:left]:
                given[i] += 1
                behind[i] -= whole
        result[:, number] = given if number < known_classes else _none_empty(given)
    return {name: ClassCounts(row) for name, row in zip(fractions, result, strict=True)}


def _behind(parts: Sequence[int], whole: int, held: Sequence[int]) -> list[int]:
    """What each split lacks of its share of what all hold, in parts of a record."""
    total = sum(held)
    return [part * total - count * whole for part, count in zip(parts, held, strict=True)]


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
            raise ConfigError(
                f"split {name!r} has {counted(count, 'record')}, too few for {result[name]} shards; ask for fewer"
            )
    return result

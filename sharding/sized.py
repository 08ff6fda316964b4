"""The places of records in shards that are to be alike in bytes: dealt by size, once all sizes are known.

It holds 8 bytes a record for the sizes and 8 for the places, and as many as five times that for the records of a split
while they are dealt. A task gets the places of its part alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from .assign import Assignment
from .census import Census
from .counting import StratumCounts, following
from .dealing import deal_by_size
from .placement import take_ordinals

__all__ = ["Dealt", "deal_records"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """What came of it.

    Attributes:
        shard_bytes: of each shard, about, through all splits; int64 [shards].
        digest: of the places of all records.
    """

    shard_bytes: Int64
    digest: str


def deal_records(census: Census, classes: pa.Array, assignment: Assignment, counts: Sequence[StratumCounts]) -> Dealt:
    """Deal the records of each split by size, and write the places of each part's.

    Args:
        census: with the sizes of all records.
        classes: the class values, sorted.
        assignment: that decides the splits; of a place it gives, only the split and the class stay.
        counts: records of each stratum in each part.
    """
    splits = assignment.splits
    ends = np.cumsum([split.records for split in splits]).tolist()
    sizes, places = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int64)
    for before, found in _parts(census, classes, assignment, counts):
        sizes[before] = found
    loads = []
    for split, end in zip(splits, ends, strict=True):
        mine = slice(end - split.records, end)
        dealt = deal_by_size(sizes[mine], split.class_counts, split.shards)
        loads.append(np.bincount(dealt % split.shards, sizes[mine], minlength=split.shards))
        places[mine] = dealt + mine.start
    digest = xxhash.xxh3_64()
    for number, (before, _) in enumerate(_parts(census, classes, assignment, counts)):
        now = places[before]
        digest.update(now.astype("<i8").data)
        census.write("places", number, pa.table({"place": now}))
    return Dealt(shard_bytes=np.concatenate(loads).astype(np.int64), digest=digest.hexdigest())


def _parts(
    census: Census, classes: pa.Array, assignment: Assignment, counts: Sequence[StratumCounts]
) -> Iterator[tuple[Int64, Int64]]:
    """Of the records of each part, the places they would have if only records counted, and the sizes."""
    firsts = following(counts, assignment.strata)
    for number, (part, first) in enumerate(zip(counts, firsts, strict=True)):
        notes = census.notes(number)
        strata = notes.class_ids(classes)
        if census.by is not None:
            splits = census.read("splits", number).column("split").to_numpy()
            strata = splits[notes.value_codes].astype(np.int64) * assignment.classes + strata
        yield assignment.places(strata, take_ordinals(np.searchsorted(part.strata, strata), first)), notes.sizes

"""Deal the records of a split to its shards by size, so that the shards are alike in bytes as well.

Within a class, the records are sorted by size and cut into blocks of S records for S shards; the largest record of a
block goes to the shard with the fewest bytes so far. This is longest-processing-time-first scheduling (Graham, "Bounds
on multiprocessing timing anomalies", 1969), limited to one record per shard and block, which keeps the shards balanced
in records and classes. It takes three steps:

1. The rests of all classes, each less than a block, go first, chained: a rest continues with the shards that the rests
   before it have not served in this round.
2. Then the whole blocks, those with the least spread of sizes last, because they even out the differences between
   shards.
3. A few very large records, or many classes of few records, may still leave shards apart. Then a heavy shard and a
   light one exchange two records of one class, as long as that helps.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from ringfeed.sharding.compute.arrays import Int64

from .assignment import Assignment
from .census import Census
from .label_counts import StratumCounts, first_ordinals
from .placement import take_ordinals

_UNMIXED = 8  # one block in this many holds the largest records of its class
_TOLERANCE = 2000  # shards are alike if the largest exceeds the smallest by at most one byte in this many
_EXCHANGES = 40  # most exchanges per shard; lognormal and Pareto sizes need one or two (2026-11-23)
_PARTNERS = 8  # light shards tried for a heavy one, which may share no class with the lightest


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBalance:
    """The result of dealing records by size."""

    shard_bytes: Int64  # estimated bytes of each shard through all splits, int64 [shards]
    digest: str  # digest of the places of all records


def deal_records(
    census: Census, classes: pa.Array, assignment: Assignment, counts: Sequence[StratumCounts]
) -> SizeBalance:
    """Deal the records of each split by size, and write the places of each part's records to the census.

    Args:
        assignment: decides split and class of each place; dealing decides the rest.
        counts: records of each stratum in each part.
    """
    splits = assignment.splits
    ends = np.cumsum([split.records for split in splits]).tolist()
    sizes, places = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int64)
    for undealt, sizes_of_part in _parts(census, classes, assignment, counts):
        sizes[undealt] = sizes_of_part
    loads = []
    for split, end in zip(splits, ends, strict=True):
        mine = slice(end - split.records, end)
        dealt = deal_by_size(sizes[mine], split.class_counts, split.shards)
        loads.append(np.bincount(dealt % split.shards, sizes[mine], minlength=split.shards))
        places[mine] = dealt + mine.start
    digest = xxhash.xxh3_64()
    for number, (undealt, _) in enumerate(_parts(census, classes, assignment, counts)):
        dealt = places[undealt]
        digest.update(dealt.astype("<i8").data)
        census.write("places", number, pa.table({"place": dealt}))
    return SizeBalance(shard_bytes=np.concatenate(loads).astype(np.int64), digest=digest.hexdigest())


def _parts(
    census: Census, classes: pa.Array, assignment: Assignment, counts: Sequence[StratumCounts]
) -> Iterator[tuple[Int64, Int64]]:
    """For each part, the places its records would have if sizes did not count, and the sizes."""
    firsts = first_ordinals(counts, assignment.strata)
    for number, (part, first) in enumerate(zip(counts, firsts, strict=True)):
        notes = census.notes(number)
        strata = notes.class_ids(classes)
        if census.column is not None:
            splits = census.read("splits", number).column("split").to_numpy()
            strata = splits[notes.value_codes].astype(np.int64) * assignment.classes + strata
        elif assignment.presplit and len(part.strata):  # a part of one split
            strata = strata + part.strata[0] // assignment.classes * assignment.classes
        yield assignment.places(strata, take_ordinals(np.searchsorted(part.strata, strata), first)), notes.sizes


def deal_by_size(sizes: Int64, class_counts: Sequence[int], shards: int, exchanges: int = _EXCHANGES) -> Int64:
    """The position of each record in its split: position p is shard ``p mod shards``, slot ``p div shards``.

    Args:
        sizes: size of each record in bytes, class after class; records of one size are dealt in the order given.

    Returns:
        A permutation of ``arange(len(sizes))``. The record counts of the shards differ by at most one, and so do their
        counts of each class.

    >>> deal_by_size(np.array([9, 1, 5, 5, 7, 3]), [4, 2], 2).tolist()
    [0, 2, 1, 3, 4, 5]
    """
    if shards == 1:
        return np.arange(len(sizes))
    counts = np.array(class_counts, np.int64)
    order = _by_size(sizes, class_counts)
    loads = np.zeros(shards, np.int64)  # bytes of each shard so far
    positions = _deal(order, sizes, counts, loads)
    _exchange(positions, order, sizes, counts, loads, exchanges)
    return positions


def _by_size(sizes: Int64, class_counts: Sequence[int]) -> Int64:
    """The records of each class, largest first; int64 [records]."""
    order = np.empty(len(sizes), np.int64)
    start = 0
    for count in class_counts:
        order[start : start + count] = start + np.argsort(-sizes[start : start + count], kind="stable")
        start += count
    return order


def _deal(order: Int64, sizes: Int64, counts: Int64, loads: Int64) -> Int64:
    """The positions of all records before any exchange; arguments as for `_exchange`."""
    positions, shards = np.empty(len(sizes), np.int64), len(loads)
    starts, blocks = np.cumsum(counts) - counts, counts // shards
    rests = [order[start + whole * shards : start + n] for start, whole, n in zip(starts, blocks, counts, strict=True)]
    rounds = int(blocks.sum())
    for records, chosen, row in _deal_rests(rests, sizes, loads):
        positions[records] = (rounds + row) * shards + chosen
    if rounds:
        pieces = zip(starts, blocks, strict=True)
        whole = np.concatenate([_mixed(order[start : start + n * shards].reshape(n, shards)) for start, n in pieces])
        positions[whole.reshape(-1)] = _deal_blocks(sizes[whole], loads)
    return positions


# --- rests -------------------------------------------------------------------------------------------------------


def _deal_rests(rests: Sequence[Int64], sizes: Int64, loads: Int64) -> Iterator[tuple[Int64, Int64, Int64]]:
    """For each class, the records of its rest, the shard of each, and the round in which it is dealt.

    A round gives one record to every shard, except that the last round may serve only some. Before anything is
    yielded, the shards are renumbered, in `loads` too, so that those of the last round come first.
    """
    unserved, row = np.ones(len(loads), np.bool_), 0  # shards that this round has yet to serve
    dealt: list[tuple[Int64, Int64, Int64]] = []
    for records in sorted((rest for rest in rests if rest.size), key=lambda rest: -int(sizes[rest[0]])):
        order = loads.argsort(kind="stable")
        now, later = order[unserved[order]], order[~unserved[order]]
        served = now[: len(records)]
        if len(served) < len(now):
            unserved[served] = False
            rows = np.full(len(records), row)
            chosen = served
        else:
            more = later[: len(records) - len(served)]  # none of `served`: a shard takes one record of a rest
            chosen = np.concatenate([served, more])
            rows = np.repeat([row, row + 1], [len(served), len(more)])
            by_load = np.lexsort((np.arange(len(chosen)), loads[chosen]))
            chosen, rows = chosen[by_load], rows[by_load]
            unserved[:] = True
            unserved[more] = False
            row += 1
        loads[chosen] += sizes[records]
        dealt.append((records, chosen, rows))
    number = np.empty(len(loads), np.int64)
    number[np.argsort(unserved, kind="stable")] = np.arange(len(loads))
    loads[number] = loads.copy()
    for records, chosen, rows in dealt:
        yield records, number[chosen], rows


# --- blocks ------------------------------------------------------------------------------------------------------


def _mixed(blocks: Int64) -> Int64:
    """Rebuild every other block of a class, except those of the largest records, from records of all sizes.

    All blocks of sorted records together spread by less than the largest record, so they could not even out a few very
    large ones. Blocks of mixed sizes can, and the sorted ones then even out the remainder.
    """
    mixed = np.arange(len(blocks) // _UNMIXED | 1, len(blocks), 2)
    if len(blocks) >= _UNMIXED:
        blocks = blocks.copy()
        blocks[mixed] = blocks[mixed].reshape(-1, len(mixed)).T
    return blocks


def _deal_blocks(sizes: Int64, loads: Int64) -> Int64:
    """The positions of the records of whole blocks, int64 [blocks * shards].

    Args:
        sizes: sizes of the records, descending in each block, int64 [blocks, shards].
        loads: bytes of each shard so far; updated in place.
    """
    shards = np.empty(sizes.shape, np.int64)
    for block in np.argsort(sizes[:, -1] - sizes[:, 0], kind="stable").tolist():
        lightest = loads.argsort(kind="stable")
        shards[block] = lightest
        loads[lightest] += sizes[block]
    shards += np.arange(len(sizes))[:, None] * sizes.shape[1]
    return shards.reshape(-1)


# --- exchanges ---------------------------------------------------------------------------------------------------


def _exchange(positions: Int64, order: Int64, sizes: Int64, class_counts: Int64, loads: Int64, exchanges: int) -> None:
    """Exchange records of one class between heavy and light shards, until all are alike or no exchange helps.

    Args:
        positions: positions of the records; updated in place.
        order: records of each class, largest first.
    """
    by_load = sorted((load, shard) for shard, load in enumerate(loads.tolist()))
    if _are_alike(by_load):
        return
    most = int(sizes.max()) + 1
    # Keys ascend like `order`. Within a class they differ as sizes do; between classes, by more than any size.
    keys = np.repeat(np.arange(len(class_counts)) * (2 * most), class_counts)
    keys -= sizes[order]
    shard_of = (positions % len(loads)).astype(np.min_scalar_type(len(loads)))[order]
    ends = np.cumsum(np.bincount(shard_of, minlength=len(loads)))
    members = np.split(np.argsort(shard_of, kind="stable"), ends[:-1])  # positions in `order`, ascending
    for _ in range(exchanges * len(loads)):
        if _are_alike(by_load):
            return
        more, heavy = by_load.pop()
        for less, light in by_load[:_PARTNERS]:
            if pair := _best_pair(keys, members[heavy], members[light], more - less, most):
                break
        else:
            continue  # no exchange makes this shard lighter: go on with the others
        moved = int(keys[pair[1]] - keys[pair[0]])
        by_load.remove((less, light))
        insort(by_load, (more - moved, heavy))
        insort(by_load, (less + moved, light))
        members[heavy] = _with_other(members[heavy], *pair)
        members[light] = _with_other(members[light], *reversed(pair))
        records = order[list(pair)]
        positions[records] = positions[records[::-1]]


def _are_alike(by_load: Sequence[tuple[int, int]]) -> bool:
    """Whether shards are alike, given the bytes and the number of each, the lightest first."""
    lightest = by_load[0][0]
    return (by_load[-1][0] - lightest) * _TOLERANCE <= lightest


def _best_pair(keys: Int64, heavy: Int64, light: Int64, gap: int, most: int) -> tuple[int, int] | None:
    """The two records of one class whose exchange brings a heavy and a light shard closest together.

    Args:
        keys: keys of all records; see `_exchange`.
        heavy: records of the heavy shard, as indices into `keys`, ascending.
        gap: bytes by which the heavy shard exceeds the light one.
        most: more bytes than any record has.

    Returns:
        The records as indices into `keys`; None if no exchange brings the shards closer.
    """
    best, least = None, gap
    if not len(light):
        return None
    wanted = np.searchsorted(keys[light], keys[heavy] + min(gap // 2, most))
    for at in (wanted - 1, np.minimum(wanted, len(light) - 1)):
        moved = keys[light[at]] - keys[heavy]
        left = np.where((moved > 0) & (moved < min(gap, most)), np.abs(gap - 2 * moved), gap)
        i = int(left.argmin())
        if left[i] < least:
            best, least = (int(heavy[i]), int(light[at[i]])), int(left[i])
    return best


def _with_other(members: Int64, old: int, new: int) -> Int64:
    kept = np.delete(members, np.searchsorted(members, old))
    return np.insert(kept, np.searchsorted(kept, new), new)

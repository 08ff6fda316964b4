"""Deal the records of a split to its shards in the order of their sizes, so that the shards are alike in bytes too.

Within a class the records are sorted by size and cut into blocks of S, one record of each for each of the S shards: the
largest goes to the shard with the fewest bytes so far. That is the rule of the longest processing time first (Graham,
"Bounds on multiprocessing timing anomalies", 1969), held to one record a shard and block, which keeps the balance of
records and classes. Blocks whose sizes differ least come last, and mend what those before them left. What remains of
each class comes first, chained: it goes to shards that the rests before it have left out in this round. What is left
of a few records that are very large, or of many classes with few records, is mended in the end: a heavy shard and a
light one exchange two records of one class.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from .assignment import Assignment
from .census import Census
from .label_counts import StratumCounts, first_ordinals
from .placement import take_ordinals

__all__ = ["SizeBalance", "deal_by_size", "deal_records"]

Int64 = npt.NDArray[np.int64]
_UNMIXED = 8  # one in so many blocks holds the largest records of its class
_ALIKE = 2000  # shards are alike if one has more than the other by no more than one byte in so many
_EXCHANGES = 40  # for each shard, at most; of lognormal and Pareto sizes one or two do (2026-11-23)
_PARTNERS = 8  # light shards that a heavy one is held against: it may share no class with the lightest


def deal_by_size(sizes: Int64, class_counts: Sequence[int], shards: int) -> Int64:
    """Where each record of a split goes: position p is shard ``p mod shards``, slot ``p div shards``.

    Args:
        sizes: of the records in bytes, class after class; records of one size are dealt in the order given.
        class_counts: records of each class.
        shards: how many there are.

    Returns:
        A permutation of ``arange(len(sizes))``. Each shard's records, and its records of each class, differ by at most
        one between shards.

    >>> deal_by_size(np.array([9, 1, 5, 5, 7, 3]), [4, 2], 2).tolist()
    [0, 2, 1, 3, 4, 5]
    """
    if shards == 1:
        return np.arange(len(sizes))
    counts = np.array(class_counts, np.int64)
    order = _by_size(sizes, class_counts)
    loads = np.zeros(shards, np.int64)  # bytes of each so far
    positions = _deal(order, sizes, counts, loads)
    _exchange(positions, order, sizes, counts, loads)
    return positions


def _deal(order: Int64, sizes: Int64, counts: Int64, loads: Int64) -> Int64:
    """The positions of all records, before any are exchanged; for the arguments see `_exchange`."""
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


def _by_size(sizes: Int64, class_counts: Sequence[int]) -> Int64:
    """The records of each class, largest first; int64 [records]."""
    order = np.empty(len(sizes), np.int64)
    start = 0
    for count in class_counts:
        order[start : start + count] = start + np.argsort(-sizes[start : start + count], kind="stable")
        start += count
    return order


def _mixed(blocks: Int64) -> Int64:
    """Every other block of a class, but for the largest records, made anew with records of all sizes in each.

    Blocks of sorted records differ within by less than the largest record in all, so that a few that are very large
    could not be made up for. Blocks of mixed sizes can, and the others then do what is left.
    """
    mixed = np.arange(len(blocks) // _UNMIXED | 1, len(blocks), 2)
    if len(blocks) >= _UNMIXED:
        blocks = blocks.copy()
        blocks[mixed] = blocks[mixed].reshape(-1, len(mixed)).T
    return blocks


def _deal_blocks(sizes: Int64, loads: Int64) -> Int64:
    """The positions of whole blocks' records, int64 [blocks * shards].

    Args:
        sizes: of their records, descending in each, int64 [blocks, shards].
        loads: bytes of each shard so far; moved on.
    """
    shards = np.empty(sizes.shape, np.int64)
    for block in np.argsort(sizes[:, -1] - sizes[:, 0], kind="stable").tolist():
        lightest = loads.argsort(kind="stable")
        shards[block] = lightest
        loads[lightest] += sizes[block]
    shards += np.arange(len(sizes))[:, None] * sizes.shape[1]
    return shards.reshape(-1)


def _deal_rests(rests: Sequence[Int64], sizes: Int64, loads: Int64) -> Iterator[tuple[Int64, Int64, Int64]]:
    """For each class the records of its last, partial block, the shard of each, and the round that it belongs to.

    A round gives a record to every shard; the shards of the last one, which may serve but some, are numbered anew so
    that they come first, in `loads` too, before anything is yielded.
    """
    open_, row = np.ones(len(loads), np.bool_), 0  # shards that this round has yet to serve
    dealt: list[tuple[Int64, Int64, Int64]] = []
    for records in sorted((rest for rest in rests if rest.size), key=lambda rest: -int(sizes[rest[0]])):
        order = loads.argsort(kind="stable")
        now, later = order[open_[order]], order[~open_[order]]
        served = now[: len(records)]
        if len(served) < len(now):
            open_[served] = False
            rows = np.full(len(records), row)
            chosen = served
        else:
            more = later[: len(records) - len(served)]  # never those of `served`: a class has one record for each
            chosen = np.concatenate([served, more])
            rows = np.repeat([row, row + 1], [len(served), len(more)])
            by_load = np.lexsort((np.arange(len(chosen)), loads[chosen]))
            chosen, rows = chosen[by_load], rows[by_load]
            open_[:] = True
            open_[more] = False
            row += 1
        loads[chosen] += sizes[records]
        dealt.append((records, chosen, rows))
    number = np.empty(len(loads), np.int64)
    number[np.argsort(open_, kind="stable")] = np.arange(len(loads))
    loads[number] = loads.copy()
    for records, chosen, rows in dealt:
        yield records, number[chosen], rows


def _exchange(positions: Int64, order: Int64, sizes: Int64, class_counts: Int64, loads: Int64) -> None:
    """Let heavy shards exchange records of one class with light ones, until all are alike or it evens out no more.

    Args:
        positions: of the records; changed.
        order: the records of each class, largest first.
        sizes: of the records.
        class_counts: records of each class.
        loads: bytes of each shard.
    """
    by_load = sorted((load, shard) for shard, load in enumerate(loads.tolist()))
    if _are_alike(by_load):
        return
    most = int(sizes.max()) + 1
    # Ascending as `order` is. Two of a class are as far apart as their sizes, others farther than any record is large.
    keys = np.repeat(np.arange(len(class_counts)) * (2 * most), class_counts)
    keys -= sizes[order]
    shard_of = (positions % len(loads)).astype(np.min_scalar_type(len(loads)))[order]
    ends = np.cumsum(np.bincount(shard_of, minlength=len(loads)))
    members = np.split(np.argsort(shard_of, kind="stable"), ends[:-1])  # places in `order`, ascending
    for _ in range(_EXCHANGES * len(loads)):
        if _are_alike(by_load):
            return
        more, heavy = by_load.pop()
        for less, light in by_load[:_PARTNERS]:
            if pair := _best_pair(keys, members[heavy], members[light], more - less, most):
                break
        else:
            continue  # with the other shards alone: nothing makes this one lighter
        moved = int(keys[pair[1]] - keys[pair[0]])
        by_load.remove((less, light))
        insort(by_load, (more - moved, heavy))
        insort(by_load, (less + moved, light))
        members[heavy] = _with_other(members[heavy], *pair)
        members[light] = _with_other(members[light], *reversed(pair))
        records = order[list(pair)]
        positions[records] = positions[records[::-1]]


def _are_alike(by_load: Sequence[tuple[int, int]]) -> bool:
    """Whether shards are, given the bytes and the number of each, the lightest first."""
    lightest = by_load[0][0]
    return (by_load[-1][0] - lightest) * _ALIKE <= lightest


def _best_pair(keys: Int64, heavy: Int64, light: Int64, gap: int, most: int) -> tuple[int, int] | None:
    """The two records of one class, of a heavy shard and of a light one, whose exchange brings these closest together.

    Args:
        keys: of all records; see `_exchange`.
        heavy: the records of the one shard, as places in `keys`, ascending.
        light: those of the other.
        gap: bytes that the one has more than the other.
        most: more bytes than any record has.

    Returns:
        None if none brings them closer.
    """
    found, least = None, gap
    if not len(light):
        return None
    wanted = np.searchsorted(keys[light], keys[heavy] + min(gap // 2, most))
    for at in (wanted - 1, np.minimum(wanted, len(light) - 1)):
        moved = keys[light[at]] - keys[heavy]
        left = np.where((moved > 0) & (moved < min(gap, most)), np.abs(gap - 2 * moved), gap)
        i = int(left.argmin())
        if left[i] < least:
            found, least = (int(heavy[i]), int(light[at[i]])), int(left[i])
    return found


def _with_other(members: Int64, old: int, new: int) -> Int64:
    kept = np.delete(members, np.searchsorted(members, old))
    return np.insert(kept, np.searchsorted(kept, new), new)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBalance:
    """What came of it.

    Attributes:
        shard_bytes: of each shard, about, through all splits; int64 [shards].
        digest: of the places of all records.
    """

    shard_bytes: Int64
    digest: str


def deal_records(
    census: Census, classes: pa.Array, assignment: Assignment, counts: Sequence[StratumCounts]
) -> SizeBalance:
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
    return SizeBalance(shard_bytes=np.concatenate(loads).astype(np.int64), digest=digest.hexdigest())


def _parts(
    census: Census, classes: pa.Array, assignment: Assignment, counts: Sequence[StratumCounts]
) -> Iterator[tuple[Int64, Int64]]:
    """Of the records of each part, the places they would have if only records counted, and the sizes."""
    firsts = first_ordinals(counts, assignment.strata)
    for number, (part, first) in enumerate(zip(counts, firsts, strict=True)):
        notes = census.notes(number)
        strata = notes.class_ids(classes)
        if census.by is not None:
            splits = census.read("splits", number).column("split").to_numpy()
            strata = splits[notes.value_codes].astype(np.int64) * assignment.classes + strata
        yield assignment.places(strata, take_ordinals(np.searchsorted(part.strata, strata), first)), notes.sizes

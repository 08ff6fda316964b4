"""Deal the records of a split to its shards in the order of their sizes, so that the shards are alike in bytes too.

Within a class the records are sorted by size and cut into blocks of S, one record of each for each of the S shards: the
largest goes to the shard with the fewest bytes so far. That is the rule of the longest processing time first (Graham,
"Bounds on multiprocessing timing anomalies", 1969), held to one record a shard and block, which keeps the balance of
records and classes. Blocks whose sizes differ least come last, and mend what those before them left. What remains of
each class comes first, chained: it goes to shards that the rests before it have left out in this round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["deal_by_size"]

Int64 = npt.NDArray[np.int64]
_UNMIXED = 8  # one in so many blocks holds the largest records of its class


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
    positions = np.arange(len(sizes))
    if shards == 1:
        return positions
    order = _by_size(sizes, class_counts)
    counts = np.array(class_counts, np.int64)
    starts, blocks = np.cumsum(counts) - counts, counts // shards
    loads = np.zeros(shards, np.int64)  # bytes of each so far
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

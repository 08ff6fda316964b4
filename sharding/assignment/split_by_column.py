"""Split records by the value of a column: each value names a split, or is a group that stays in one split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ringfeed.sharding.compute.arrays import Int32, Integers
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.dataset.file_names import check_split_name
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import counted
from ringfeed.sharding.sources import Source
from ringfeed.sharding.storage.storage import Storage

from .census import Census, Notes, check_column
from .existing_groups import ExistingGroups
from .group_splits import GroupCounts, assign_groups
from .label_counts import StratumCounts, count_strata, sum_by_key

_NOTES_AT_ONCE = 1 << 20
_MAX_SPLITS = 256
_TIMES = tuple(  # texts of one of these forms sort as the times do
    rf"^\d{{4}}({mark}\d{{2}}({mark}\d{{2}}([T ]\d{{2}}(:\d{{2}}(:\d{{2}}([.]\d+)?)?)?Z?)?)?)?$"
    for mark in ("-", "/", "[.]")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSplits:
    """The records of each split."""

    class_counts: Mapping[str, ClassCounts]  # records of each class, by split
    counts: tuple[StratumCounts, ...]  # records of each stratum (see `Assignment`) in each part
    # If a column decides, how many of its values are in each split
    values: Mapping[str, int] = field(default_factory=dict)
    digest: str = ""  # if a column decides, digest of the splits of all its values


def open_census(source: Source, column: str | None, flag: str, *, with_sizes: bool, folder: Storage) -> Census:
    """Open the census that the counting pass takes.

    Args:
        column: column whose values decide the splits, or None.

    Raises:
        ConfigError: the column cannot decide the splits.
    """
    value_type = None if column is None else check_column(source, column, flag)
    return Census(column=column, value_type=value_type, flag=flag, with_sizes=with_sizes, folder=folder)


def split_by_column(
    census: Census,
    parts: int,
    classes: pa.Array,
    *,
    seed: int,
    group_shares: Mapping[str, Fraction] | None = None,
    existing_groups: ExistingGroups | None = None,
    in_order: bool = False,
) -> RecordSplits:
    """Decide the split of each value of the column, and write the splits of each part's values to the census.

    Args:
        group_shares: share of each split if the values are groups; None if each value names its split.
        existing_groups: groups of the dataset that is appended to, with the splits in the order of `group_shares`.
        in_order: whether the values are times: the first split gets the earliest, the last the latest.

    Raises:
        SourceError: values cannot name splits, or there are too few groups.
    """
    values, table = _gather(census, parts, classes)
    if group_shares is None:
        names, splits = _named(census, values)
    elif in_order:
        names, splits = list(group_shares), _timed(census, values, table, list(group_shares.values()))
    else:
        key = derive_key(seed, "groups")
        names, splits = list(group_shares), _grouped(census, values, table, group_shares, key, existing_groups)
    totals = np.zeros((len(names), len(classes)), np.int64)
    np.add.at(totals, (splits[table.groups], table.class_ids), table.counts)
    strata_of = (np.cumsum(totals.any(axis=1)) - 1).astype(np.int32)  # a split without records gets no shard
    counts: list[StratumCounts] = []
    for batch in _batched_notes(census, parts, lambda: len(values)):
        arrays = [notes.values for _, notes in batch]
        positions = pc.index_in(pa.chunked_array(arrays), value_set=values).to_numpy()
        for (number, notes), codes in zip(batch, _cut(positions, arrays), strict=True):
            mine = strata_of[splits[codes]]
            census.write("splits", number, pa.table({"value": notes.values, "split": mine}))
            strata = mine[notes.value_codes].astype(np.int64) * len(classes) + notes.class_ids(classes)
            counts.append(count_strata(strata, notes.counts))
    return RecordSplits(
        class_counts={name: ClassCounts(row) for name, row in zip(names, totals, strict=True)},
        values=dict(zip(names, np.bincount(splits, minlength=len(names)).tolist(), strict=True)),
        counts=tuple(counts),
        digest=xxhash.xxh3_64_hexdigest(splits.astype("<i4").tobytes()),
    )


def _named(census: Census, values: pa.Array) -> tuple[list[str], Int32]:
    """The names of the splits in order of the values, and the split of each value, int32 [values]."""
    if len(values) > _MAX_SPLITS:
        raise SourceError(
            f"{census.flag} {census.column}: the column has {len(values):,} values, and each names a split; name a "
            f"column with at most {_MAX_SPLITS}, or keep the records of each value together with --group-by "
            f"{census.column}"
        )
    order = pc.sort_indices(values).to_numpy()
    names = [str(value) for value in values.take(pa.array(order)).to_pylist()]
    for name in names:
        try:
            check_split_name(name)
        except ConfigError as error:
            raise SourceError(f"{census.flag} {census.column}: {error}; replace that value first") from error
    splits = np.empty(len(values), np.int32)
    splits[order] = np.arange(len(values))
    return names, splits


def _grouped(
    census: Census,
    values: pa.Array,
    table: GroupCounts,
    group_shares: Mapping[str, Fraction],
    key: int,
    existing_groups: ExistingGroups | None,
) -> Int32:
    """The split of each value, int32 [values]."""
    groups, shares = len(table.bounds) - 1, list(group_shares.values())
    if existing_groups is not None:
        known_splits, existing_counts = existing_groups.splits_of(values), existing_groups.class_counts
        return assign_groups(table, shares, key, known_splits=known_splits, existing_counts=existing_counts)
    if groups < len(shares):
        raise SourceError(
            f"{census.flag} {census.column}: the column has {counted(groups, 'value')}, too few for one in each of "
            f"{len(shares)} splits; ask for fewer splits, or group by another column"
        )
    return assign_groups(table, shares, key)


def _timed(census: Census, values: pa.Array, table: GroupCounts, shares: Sequence[Fraction]) -> Int32:
    """The split of each value, int32 [values], by the middle of its records in the order of the values."""
    _check_times(census, values)
    order = pc.sort_indices(values).to_numpy()
    counts = np.add.reduceat(table.counts, table.bounds[:-1])[order]
    ends = np.cumsum(counts)
    bounds = [ceil(2 * int(ends[-1]) * sum(shares[: number + 1])) for number in range(len(shares) - 1)]
    splits = np.empty(len(values), np.int32)
    splits[order] = np.searchsorted(bounds, 2 * ends - counts, side="right")
    if len(np.unique(splits)) < len(shares):
        raise SourceError(
            f"{census.flag} {census.column}: records of one value stay in one split, and the {len(values):,} values of "
            f"the column leave one of {len(shares)} splits without any; ask for fewer splits, or name a finer column"
        )
    return splits


def _check_times(census: Census, values: pa.Array) -> None:
    if not pa.types.is_string(values.type):
        return
    found = [pc.match_substring_regex(values, form) for form in _TIMES]
    if any(pc.all(fits).as_py() for fits in found):
        return
    wrong = values.filter(pc.invert(max(found, key=lambda fits: pc.sum(fits).as_py())))[0].as_py()
    raise SourceError(
        f"{census.flag} {census.column}: {wrong[:40]!r} is no time that sorts as text does; write times as 2026-01-31 "
        "or 2026/01/31 12:00:00, all in one form and time zone, or as numbers"
    )


def _gather(census: Census, parts: int, classes: pa.Array) -> tuple[pa.Array, GroupCounts]:
    """All values of the column, by first occurrence in the source, and the records of each class by value."""
    distinct: list[pa.Array] = []
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for batch in _batched_notes(census, parts, lambda: sum(map(len, distinct))):
        arrays = [*distinct, *(notes.values for _, notes in batch)]
        encoded = pa.chunked_array(arrays).dictionary_encode().combine_chunks()
        distinct[:] = [encoded.dictionary]  # earlier values keep their codes
        codes = _cut(encoded.indices.to_numpy().astype(np.int64), arrays)[-len(batch) :]
        more = [
            code[notes.value_codes] * len(classes) + notes.class_ids(classes)
            for code, (_, notes) in zip(codes, batch, strict=True)
        ]
        keys, counts = sum_by_key(
            np.concatenate([keys, *more]), np.concatenate([counts, *(notes.counts for _, notes in batch)])
        )
    return distinct[0], GroupCounts(groups=keys // len(classes), class_ids=keys % len(classes), counts=counts)


def _batched_notes(census: Census, parts: int, least: Callable[[], int]) -> Iterator[list[tuple[int, Notes]]]:
    """The notes on all parts, with the number of each part, in lists of enough notes to look up together."""
    batch: list[tuple[int, Notes]] = []
    rows = 0
    for number in range(parts):
        batch.append((number, census.notes(number)))
        rows += len(batch[-1][1].counts)
        if rows >= max(_NOTES_AT_ONCE, least()):
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


def _cut(joined: Integers, arrays: Sequence[pa.Array]) -> list[Integers]:
    """Cut an array with an entry for each element of some arrays into one piece for each."""
    return np.split(joined, np.cumsum([len(array) for array in arrays])[:-1])

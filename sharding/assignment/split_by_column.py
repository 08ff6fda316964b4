"""Which split each record goes to where the value of a column decides: each value names a split, or is a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ..compute.class_counts import ClassCounts
from ..compute.keyed_random import derive_key
from ..dataset.file_names import check_split_name
from ..errors import ConfigError, SourceError
from ..sources import Source
from ..storage.storage import Storage
from .census import Census, Notes, check_column
from .existing_groups import ExistingGroups
from .group_splits import GroupCounts, assign_groups
from .label_counts import StratumCounts, count_strata, sum_by_key

__all__ = ["ColumnSplits", "open_census", "split_by_column"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
_AT_ONCE = 1 << 20  # notes
_MOST_SPLITS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSplits:
    """The records of each split.

    Attributes:
        class_counts: records of each class, by split.
        values: how many values of the column went to each split.
        counts: records of each stratum (see `Assignment`) in each part.
        digest: of the splits of all values.
    """

    class_counts: Mapping[str, ClassCounts]
    values: Mapping[str, int]
    counts: tuple[StratumCounts, ...]
    digest: str


def open_census(source: Source, column: str | None, flag: str, *, sizes: bool, folder: Storage) -> Census:
    """Open the census that the counting pass takes.

    Args:
        source: opened.
        column: whose values decide the splits, or None.
        flag: that named the column, for error messages.
        sizes: whether to note the size of each record, too.
        folder: where to write it.

    Raises:
        ConfigError: the column does not fit.
    """
    kind = None if column is None else check_column(source, column, flag)
    return Census(by=column, kind=kind, flag=flag, sizes=sizes, folder=folder)


def split_by_column(
    census: Census,
    parts: int,
    classes: pa.Array,
    *,
    seed: int,
    group_shares: Mapping[str, Fraction] | None,
    existing_groups: ExistingGroups | None = None,
) -> ColumnSplits:
    """Decide the split of each value of the column; write the splits of each part's values to the census.

    Args:
        census: taken of all parts.
        parts: their number.
        classes: the class values, sorted.
        seed: of the build.
        group_shares: the share of each split, if the values are groups; None if each value names its split.
        existing_groups: those of the dataset that is appended to, with the splits in the order of `group_shares`.

    Raises:
        SourceError: the values do not fit.
    """
    values, table = _gather(census, parts, classes)
    if group_shares is None:
        names, splits = _named(census, values)
    else:
        key = derive_key(seed, "groups")
        names, splits = list(group_shares), _grouped(census, values, table, group_shares, key, existing_groups)
    totals = np.zeros((len(names), len(classes)), np.int64)
    np.add.at(totals, (splits[table.groups], table.class_ids), table.counts)
    strata_of = (np.cumsum(totals.any(axis=1)) - 1).astype(np.int32)  # a split without a record gets no shard
    counts: list[StratumCounts] = []
    for held in _many_at_a_time(census, parts, lambda: len(values)):
        arrays = [notes.values for _, notes in held]
        found = pc.index_in(pa.chunked_array(arrays), value_set=values).to_numpy()
        for (number, notes), codes in zip(held, _cut(found, arrays), strict=True):
            mine = strata_of[splits[codes]]
            census.write("splits", number, pa.table({"value": notes.values, "split": mine}))
            strata = mine[notes.value_codes].astype(np.int64) * len(classes) + notes.class_ids(classes)
            counts.append(count_strata(strata, notes.counts))
    return ColumnSplits(
        class_counts={name: ClassCounts(row) for name, row in zip(names, totals, strict=True)},
        values=dict(zip(names, np.bincount(splits, minlength=len(names)).tolist(), strict=True)),
        counts=tuple(counts),
        digest=xxhash.xxh3_64_hexdigest(splits.astype("<i4").tobytes()),
    )


def _named(census: Census, values: pa.Array) -> tuple[list[str], Int32]:
    """The splits that the values name, in the order of the values, and which of them each one is."""
    if len(values) > _MOST_SPLITS:
        raise SourceError(
            f"{census.flag} {census.by}: the column has {len(values):,} values, and each names a split; name a column "
            f"with {_MOST_SPLITS} at most, or keep the records of a value together with --group-by {census.by}"
        )
    order = pc.sort_indices(values).to_numpy()
    names = [str(value) for value in values.take(pa.array(order)).to_pylist()]
    for name in names:
        try:
            check_split_name(name)
        except ConfigError as error:
            raise SourceError(f"{census.flag} {census.by}: {error}; replace that value first") from error
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
        known = existing_groups.splits_of(values)
        return assign_groups(table, shares, key, known=known, existing_counts=existing_groups.class_counts)
    if groups < len(shares):
        raise SourceError(
            f"{census.flag} {census.by}: the column has {groups} value{'s' * (groups != 1)}, too few for one in each "
            f"of {len(shares)} splits; ask for fewer splits, or group by another column"
        )
    return assign_groups(table, shares, key)


def _gather(census: Census, parts: int, classes: pa.Array) -> tuple[pa.Array, GroupCounts]:
    """All values of the column, as they come first in the source, and the records of each class by value."""
    known: list[pa.Array] = []
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for held in _many_at_a_time(census, parts, lambda: sum(map(len, known))):
        arrays = [*known, *(notes.values for _, notes in held)]
        encoded = pa.chunked_array(arrays).dictionary_encode().combine_chunks()
        known[:] = [encoded.dictionary]  # what was known keeps its number
        codes = _cut(encoded.indices.to_numpy().astype(np.int64), arrays)[-len(held) :]
        more = [
            code[notes.value_codes] * len(classes) + notes.class_ids(classes)
            for code, (_, notes) in zip(codes, held, strict=True)
        ]
        keys, counts = sum_by_key(
            np.concatenate([keys, *more]), np.concatenate([counts, *(notes.counts for _, notes in held)])
        )
    return known[0], GroupCounts(groups=keys // len(classes), class_ids=keys % len(classes), counts=counts)


def _many_at_a_time(census: Census, parts: int, least: Callable[[], int]) -> Iterator[list[tuple[int, Notes]]]:
    """The notes on all parts, by number and in order; at least so many together, to be looked up at once."""
    held: list[tuple[int, Notes]] = []
    rows = 0
    for number in range(parts):
        held.append((number, census.notes(number)))
        rows += len(held[-1][1].counts)
        if rows >= max(_AT_ONCE, least()):
            yield held
            held, rows = [], 0
    if held:
        yield held


def _cut(joined: npt.NDArray[np.integer], arrays: Sequence[pa.Array]) -> list[npt.NDArray[np.integer]]:
    """What was found out of all elements of some arrays, array by array."""
    return np.split(joined, np.cumsum([len(array) for array in arrays])[:-1])

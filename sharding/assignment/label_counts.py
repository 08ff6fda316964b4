"""Count the records of each class, in all and in each part, in a few bytes for each class of a part.

A million classes as Python numbers, in a dictionary for each part, would take more memory than the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrays import Int32, Int64, Unsigned
from ringfeed.sharding.compute.class_counts import narrow_counts
from ringfeed.sharding.compute.grouping import group
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.prepare.column_names import HIDDEN
from ringfeed.sharding.prepare.expression import filter_complete
from ringfeed.sharding.prepare.screening.record_origins import describe_origin
from ringfeed.sharding.prepare.steps import Step
from ringfeed.sharding.schema import Schema, class_array, label_type
from ringfeed.sharding.sources import Part, Source
from ringfeed.sharding.sources.base import unwrap

_COUNT = f"{HIDDEN}count"
_MERGED_VALUES = 1 << 18  # new values to merge at once, at least: each merge hashes all known values again


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCounts:
    """Distinct labels and how many records have each; without a label, the one value is False."""

    values: pa.Array  # distinct values in any order
    counts: Int64  # records of each value, int64 [values]

    @property
    def records(self) -> int:
        """Number of records."""
        return int(self.counts.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class StratumCounts:
    """Records of a part by stratum (see `Assignment`)."""

    strata: Int64  # strata that occur in the part, ascending; int64 [n]
    counts: Unsigned  # records of each, [n], in the narrowest unsigned dtype


def count_values(batches: Iterable[pa.Array], kind: pa.DataType, merged_values: int = _MERGED_VALUES) -> ValueCounts:
    """How often each value occurs in arrays without nulls.

    >>> found = count_values([pa.array([3, 1]), pa.array([1, 1])], pa.int64())
    >>> found.values.to_pylist(), found.counts.tolist()
    ([3, 1], [1, 3])
    """
    known = ValueCounts(values=pa.array([], kind), counts=np.empty(0, np.int64))
    tallies: list[ValueCounts] = []
    for labels in batches:
        counted = pc.value_counts(labels if labels.type == kind else labels.cast(kind))
        tallies.append(ValueCounts(values=counted.field("values"), counts=counted.field("counts").to_numpy()))
        if sum(len(tally.values) for tally in tallies) >= max(merged_values, len(known.values)):
            known, tallies = _merged(known, tallies)[0], []
    return _merged(known, tallies)[0]


def _merged(known: ValueCounts, more: Sequence[ValueCounts]) -> tuple[ValueCounts, list[Int32]]:
    """All values, those known first; and for each of `more`, the position of its values among them."""
    arrays = [known.values, *(tally.values for tally in more)]
    encoded = pa.chunked_array(arrays).dictionary_encode().combine_chunks()
    codes: Int32 = encoded.indices.to_numpy()
    counts = np.zeros(len(encoded.dictionary), np.int64)
    np.add.at(counts, codes, np.concatenate([known.counts, *(tally.counts for tally in more)]))
    bounds = np.cumsum([len(array) for array in arrays])
    return ValueCounts(values=encoded.dictionary, counts=counts), np.split(codes, bounds[:-1])[1:]


class LabelCounts:
    """Collects the counts of the parts, in whatever order they arrive."""

    def __init__(self, schema: Schema, parts: int, merged_values: int = _MERGED_VALUES) -> None:
        self._schema, self._merged_values = schema, merged_values
        self._known = ValueCounts(values=class_array(schema, []), counts=np.empty(0, np.int64))
        self._codes = [np.empty(0, np.int32)] * parts
        self._counts: list[Unsigned] = [np.empty(0, np.uint8)] * parts
        self._tallies: list[tuple[int, ValueCounts]] = []

    def add(self, number: int, tally: ValueCounts) -> None:
        """Add the counts of a part."""
        self._tallies.append((number, tally))
        if sum(len(tally.values) for _, tally in self._tallies) >= max(self._merged_values, len(self._known.values)):
            self._merge_tallies()

    def _merge_tallies(self) -> None:
        self._known, merged_codes = _merged(self._known, [tally for _, tally in self._tallies])
        for (number, tally), codes in zip(self._tallies, merged_codes, strict=True):
            self._codes[number], self._counts[number] = codes.copy(), narrow_counts(tally.counts)
        self._tallies.clear()

    @property
    def totals(self) -> ValueCounts:
        """Records of each class in all parts."""
        if self._tallies:
            self._merge_tallies()
        return self._known

    def after(self, step: Step, label: str) -> LabelCounts:
        """The counts of the records that a step on the label leaves, under the labels that it gives them."""
        values = self.totals.values
        result = LabelCounts(self._schema, len(self._codes), self._merged_values)
        for number, (codes, counts) in enumerate(zip(self._codes, self._counts, strict=True)):
            labels, kept = step.apply(pa.record_batch({label: values.take(pa.array(codes)), _COUNT: counts})).columns
            tally = ValueCounts(values=labels, counts=kept.to_numpy())
            result.add(number, _merged(ValueCounts(values=values[:0], counts=np.empty(0, np.int64)), [tally])[0])
        return result

    def by_part(self, classes: pa.Array) -> tuple[StratumCounts, ...]:
        """Records of each part by class; a class id is the position in `classes`, which holds all of them."""
        ids = pc.index_in(self.totals.values, value_set=classes).to_numpy().astype(np.int64)
        return tuple(_sorted(ids[codes], counts) for codes, counts in zip(self._codes, self._counts, strict=True))


def _sorted(strata: Int64, counts: Unsigned) -> StratumCounts:
    order = np.argsort(strata)
    return StratumCounts(strata=strata[order], counts=counts[order])


def sum_by_key(keys: Int64, counts: Int64) -> tuple[Int64, Int64]:
    """Distinct keys, ascending, and the sum of the counts of each; keys are not negative.

    >>> keys, counts = sum_by_key(np.array([5, 2, 5]), np.array([1, 10, 100]))
    >>> keys.tolist(), counts.tolist()
    ([2, 5], [10, 101])
    """
    groups = group(keys)
    starts = groups.bounds[:-1]
    return keys[groups.order[starts]], np.add.reduceat(counts[groups.order], starts) if len(starts) else counts[:0]


def count_strata(strata: Int64, counts: Int64) -> StratumCounts:
    """Records by stratum; a stratum may occur several times."""
    keys, sums = sum_by_key(strata, counts)
    return StratumCounts(strata=keys, counts=narrow_counts(sums))


def first_ordinals(parts: Iterable[StratumCounts], strata: int) -> Iterator[Int64]:
    """For each part, how many records of each of its strata the parts before it hold; int64 [strata of the part].

    >>> one = StratumCounts(strata=np.array([0, 2]), counts=np.array([5, 7], np.uint8))
    >>> [firsts.tolist() for firsts in first_ordinals([one, one], strata=3)]
    [[0, 0], [5, 7]]
    """
    before = np.zeros(strata, np.int64)
    for part in parts:
        yield before[part.strata]
        before[part.strata] += part.counts


def count_classes(source: Source, part: Part) -> ValueCounts:
    """Count the records of each class in a part; raises a SourceError if a record has no label."""
    if source.schema.label is None:
        records = sum(map(len, source.labels(part)))
        return ValueCounts(values=class_array(source.schema, [None]), counts=np.array([records]))
    return count_values(_checked_labels(source, part), label_type(source.schema))


def _checked_labels(source: Source, part: Part) -> Iterator[pa.Array]:
    label, position = str(source.schema.label), 0
    for labels in source.labels(part):
        if labels.null_count:
            position += int(np.flatnonzero(labels.is_null().to_numpy(zero_copy_only=False))[0])
            stored = unwrap(source).schema
            finite = label in stored.names and stored[label].dtype.startswith("float")  # NaN is no class either
            remedy = filter_complete(label, finite=finite)
            raise SourceError(
                f"{part.path}: {describe_origin(source, part, position, label)} has no value for the label {label!r}; "
                f"drop such records with {remedy}, or skip up to N of them with --on-bad-record skip:N"
            )
        position += len(labels)
        yield labels

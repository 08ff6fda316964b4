"""Place the records of a part, batch by batch, in the second pass.

Tested in tests/sharding/building/test_build.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrays import Int32, Int64, Integers
from ringfeed.sharding.compute.grouping import group
from ringfeed.sharding.errors import SourceError

from .assignment import Assignment
from .census import Census

_CHANGED = "the source changed while it was read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What decides the places of a part's records; small enough to pickle, however many records there are."""

    assignment: Assignment  # assignment of records to shards
    label: str | None  # label column, or None
    classes: pa.Array  # labels that occur in the part
    class_ids: Int32  # class id of each, int32 [classes]
    strata: Int64  # strata that occur in the part, ascending; int64 [strata]
    first_ordinals: Int64  # records of each stratum in the parts before this one, int64 [strata]
    # Census, if more than the class decides: it holds the splits of the part's values, or the places of its records
    census: Census | None = None


class Placer:
    """Places the records of a part in order."""

    def __init__(self, placement: Placement, number: int) -> None:
        self._placement = placement
        self._ordinals = placement.first_ordinals.copy()
        self.records = 0  # placed so far
        census = placement.census
        self._places = (
            census.read("places", number).column("place").to_numpy() if census and census.with_sizes else None
        )
        self._splits = census.read("splits", number) if census and not census.with_sizes else None

    def locate(self, batch: pa.RecordBatch) -> tuple[Int32, Int64, Int64]:
        """Class id, shard and slot of each record, int32, int64 and int64 [rows]; a SourceError if one is uncounted."""
        label, assignment = self._placement.label, self._placement.assignment
        rows = slice(self.records, self.records + batch.num_rows)
        self.records = rows.stop
        class_ids = np.zeros(batch.num_rows, np.int32)
        if label is not None:
            class_places = _index(batch.column(label), self._placement.classes, "a label")
            class_ids = self._placement.class_ids[class_places]
        if self._places is not None:
            if rows.stop > len(self._places):
                raise SourceError(f"{_CHANGED}: there are records that the first pass did not see; build again")
            return class_ids, *assignment.shards_of(self._places[rows])
        strata = class_ids.astype(np.int64)
        if assignment.presplit and self._splits is None and len(self._placement.strata):  # a part of one split
            strata += self._placement.strata[0] // assignment.classes * assignment.classes
        if self._splits is not None and self._placement.census is not None:
            column = str(self._placement.census.column)
            value_places = _index(batch.column(column), self._splits.column("value"), f"a value of {column!r}")
            splits = self._splits.column("split").to_numpy()[value_places]
            strata += splits * np.int64(assignment.classes)
        ordinals = take_ordinals(self._known(strata), self._ordinals)
        try:
            return class_ids, *assignment.locate(strata, ordinals)
        except ValueError as error:  # more records of a class than were counted
            raise SourceError(f"{_CHANGED}: there are records that the first pass did not see; build again") from error

    def _known(self, strata: Int64) -> Int64:
        """The position of each record's stratum among the strata of the part."""
        known = self._placement.strata
        places = np.searchsorted(known, strata)
        if len(strata) and (not len(known) or np.any(known[np.minimum(places, len(known) - 1)] != strata)):
            raise SourceError(f"{_CHANGED}: a record appeared that the first pass did not see; build again")
        return places


def _index(column: pa.Array, values: pa.Array, what: str) -> Int64:
    places = pc.index_in(column, value_set=values)
    if places.null_count:
        raise SourceError(f"{_CHANGED}: {what} appeared that the first pass did not see; build again")
    result: Int64 = places.to_numpy()
    return result


def take_ordinals(strata: Integers, next_ordinals: Int64) -> Int64:
    """The ordinal of each record in its stratum, counted from `next_ordinals`, which is advanced in place.

    >>> next_ordinals = np.array([10, 20])
    >>> take_ordinals(np.array([1, 0, 1]), next_ordinals).tolist(), next_ordinals.tolist()
    ([20, 10, 21], [11, 22])
    """
    by_stratum = group(strata)
    counts = np.diff(by_stratum.bounds)
    within = np.arange(len(strata)) - np.repeat(by_stratum.bounds[:-1], counts)
    result = np.empty(len(strata), np.int64)
    result[by_stratum.order] = within + np.repeat(next_ordinals[by_stratum.values], counts)
    next_ordinals[by_stratum.values] += counts
    return result

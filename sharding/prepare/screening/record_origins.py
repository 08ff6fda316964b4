"""Find where in the source a prepared record comes from, by reading its part once more.

Tested in tests/sharding/prepare/screening/test_bad_records.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.compute.arrays import Int64
from ringfeed.sharding.prepare.column_names import HIDDEN
from ringfeed.sharding.sources import Part, Source
from ringfeed.sharding.sources.base import BadRecord, Reject, narrow_source, rewrap, unwrap
from ringfeed.sharding.sources.files.record_places import record_files, record_places

_ORIGIN = f"{HIDDEN}origin"


def describe_origin(source: Source, part: Part, position: int, column: str) -> str:
    """The place of one record, for errors; see `find_origins`."""
    (place,) = find_origins(source, part, np.array([position]), column)
    return f"{place} (from 0)" if place.removeprefix("record ").isdecimal() else place


def find_origins(source: Source, part: Part, positions: Int64, column: str) -> list[str]:
    """The places of records in the source, as in `BadRecord`; behind a user's function, their places after it.

    Args:
        positions: positions of the records among the part's drafts, ascending; int64.
        column: a column of the drafts, so that the others stay unread.
    """
    found = _positions_before(source, part, positions, column)
    if found is None:
        # stored in `rejected.jsonl`, so the wording is part of the dataset's bytes
        return [f"record {p} of what --map makes of the records from {part.first_record} on" for p in positions]
    return record_places(unwrap(source), part, *found)


def find_files(source: Source, part: Part, positions: Int64, column: str) -> list[tuple[str, str]]:
    """The file of each record, and its place in it: empty if the file is the record. See `find_origins`."""
    found = _positions_before(source, part, positions, column)
    base = unwrap(source)
    if found is None or (files := record_files(base, part, found[0])) is None:
        places = find_origins(source, part, positions, column) if found is None else record_places(base, part, *found)
        return [(part.path, place) for place in places]
    return [(file, "") for file in files]


def _positions_before(
    source: Source, part: Part, positions: Int64, column: str
) -> tuple[Int64, list[BadRecord]] | None:
    """The positions before the steps, and the part's bad records; None behind a user's function."""
    rejected: list[BadRecord] = []
    origins = [np.empty(0, np.int64)]
    start = 0
    numbered = rewrap(source, _Numbered(inner=unwrap(source)))
    for batch in narrow_source(numbered, [column]).drafts(part, rejected.append):
        if _ORIGIN not in batch.schema.names:
            return None
        first, last = np.searchsorted(positions, (start, start + batch.num_rows))
        origins.append(batch.column(_ORIGIN).to_numpy()[positions[first:last] - start])
        start += batch.num_rows
        if last == len(positions):
            break
    return np.concatenate(origins), rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbered:
    """The parts of a source that reading drafts needs; numbers the drafts in a hidden column that follows them."""

    inner: Any

    @property
    def parts(self) -> Any:
        return self.inner.parts

    def drafts(self, part: Part, reject: Reject) -> Iterator[pa.RecordBatch]:
        start = 0
        for batch in self.inner.drafts(part, reject):
            yield _with_origin(batch, pa.array(np.arange(start, start + batch.num_rows)))
            start += batch.num_rows

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        plain = drafts.select([name for name in drafts.schema.names if name != _ORIGIN])
        return _with_origin(self.inner.complete(plain), drafts.column(_ORIGIN))

    def narrow(self, columns: Collection[str]) -> _Numbered:
        return _Numbered(inner=narrow_source(self.inner, columns))


def _with_origin(batch: pa.RecordBatch, origin: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, origin], names=[*batch.schema.names, _ORIGIN])

"""Find where in the source a prepared record comes from, by reading its part once more.

Tested in tests/sharding/prepare/screening/test_bad_records.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.prepare.column_names import HIDDEN
from ringfeed.sharding.sources import Part, Source
from ringfeed.sharding.sources.base import BadRecord, Reject, narrow_source, rewrap, unwrap
from ringfeed.sharding.sources.files.record_places import record_places

Int64 = npt.NDArray[np.int64]
_ORIGIN = f"{HIDDEN}origin"


def describe_origin(source: Source, part: Part, position: int, column: str) -> str:
    """The place of one record, for errors; see `find_origins`."""
    (place,) = find_origins(source, part, np.array([position]), column)
    return f"{place} (from 0)" if place.removeprefix("record ").isdecimal() else place


def find_origins(source: Source, part: Part, positions: Int64, column: str) -> list[str]:
    """The places of records in the source, as in `BadRecord`; behind a user's function, their places after it.

    Args:
        source: prepared source.
        positions: positions of the records among the part's drafts, ascending; int64.
        column: a column of the drafts, so that the others stay unread.
    """
    base = unwrap(source)
    rejected: list[BadRecord] = []
    origins = [np.empty(0, np.int64)]
    start = 0
    for batch in narrow_source(rewrap(source, _Numbered(inner=base)), [column]).drafts(part, rejected.append):
        if _ORIGIN not in batch.schema.names:
            # stored in `rejected.jsonl`, so the wording is part of the dataset's bytes
            return [f"record {p} of what --map makes of the records from {part.first_record} on" for p in positions]
        first, last = np.searchsorted(positions, (start, start + batch.num_rows))
        origins.append(batch.column(_ORIGIN).to_numpy()[positions[first:last] - start])
        start += batch.num_rows
        if last == len(positions):
            break
    return record_places(base, part, np.concatenate(origins), rejected)


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

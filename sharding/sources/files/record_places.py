"""Where in its file a record lies that can be read, when some before it cannot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..base import BadRecord, Part, Source

__all__ = ["PlacingSource", "line_places", "record_places"]

Int64 = npt.NDArray[np.int64]
_NUMBER = re.compile(r"(?:record|line) (\d+)")


@runtime_checkable
class PlacingSource(Protocol):
    """A source that tells the place of a record by other than its number."""

    def places(self, part: Part, positions: Int64, rejected: Sequence[BadRecord]) -> list[str]:
        """See the function `places`."""


def record_places(source: Source, part: Part, positions: Int64, rejected: Sequence[BadRecord]) -> list[str]:
    """The place of each of some records, as `BadRecord` has it.

    Args:
        source: that reads them.
        part: of the source.
        positions: of the records among those of the part that can be read, int64, from 0.
        rejected: those that cannot be read, but for such as come after all of these.
    """
    if isinstance(source, PlacingSource):
        return source.places(part, positions, rejected)
    bad = np.unique(_numbers(rejected)) - part.first_record
    before = np.searchsorted(bad - np.arange(len(bad)), positions, side="right")
    return [f"record {number}" for number in (part.first_record + positions + before).tolist()]


def line_places(lines: Int64, positions: Int64, rejected: Sequence[BadRecord]) -> list[str]:
    """As `places`, of records of text.

    >>> bad = BadRecord(path="x.csv", place="line 4", reason="Expected 2 columns, got 3")
    >>> line_places(np.array([2, 4, 5]), np.array([0, 1]), [bad])
    ['line 2', 'line 5']

    Args:
        lines: in which the records of the part start, those that cannot be read too; int64 and ascending.
        positions: see `places`.
        rejected: see `places`.
    """
    good = np.delete(lines, np.searchsorted(lines, _numbers(rejected), side="right") - 1)
    return [f"line {number}" for number in good[positions].tolist()]


def _numbers(rejected: Sequence[BadRecord]) -> Int64:
    found = (_NUMBER.search(record.place or record.reason) for record in rejected)
    return np.array([int(match.group(1)) for match in found if match is not None], np.int64)

"""Places of readable records in their files, for error messages: bad records before them count, too.

Tested in tests/sharding/sources/images/test_image_list.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.sources.base import BadRecord, Part, Source

Int64 = npt.NDArray[np.int64]
_NUMBER = re.compile(r"(?:record|line) (\d+)")


@runtime_checkable
class PlacingSource(Protocol):
    """A source that describes a record's place by more than its number."""

    def places(self, part: Part, positions: Int64, rejected: Sequence[BadRecord]) -> list[str]:
        """Return the places of records; see `record_places`."""


def record_places(source: Source, part: Part, positions: Int64, rejected: Sequence[BadRecord]) -> list[str]:
    """Return the place of each record as in `BadRecord.place`.

    Args:
        part: their part of the source.
        positions: their positions among the readable records of the part, int64, from 0.
        rejected: the part's bad records, at least up to the last of `positions`.
    """
    if isinstance(source, PlacingSource):
        return source.places(part, positions, rejected)
    bad = np.unique(_numbers(rejected)) - part.first_record
    before = np.searchsorted(bad - np.arange(len(bad)), positions, side="right")
    return [f"record {number}" for number in (part.first_record + positions + before).tolist()]


@runtime_checkable
class FilesSource(Protocol):
    """A source whose files may be a record each."""

    def files(self, part: Part, positions: Int64) -> list[str] | None:
        """Return the URLs of the files of records; see `record_files`."""


def record_files(source: Source, part: Part, positions: Int64) -> list[str] | None:
    """Return the URL of each record's own file, or None if files hold several records; see `record_places`."""
    return source.files(part, positions) if isinstance(source, FilesSource) else None


def line_places(lines: Int64, positions: Int64, rejected: Sequence[BadRecord]) -> list[str]:
    """Return the places of records of text, as `record_places` does.

    >>> bad = BadRecord(path="x.csv", place="line 4", reason="Expected 2 columns, got 3")
    >>> line_places(np.array([2, 4, 5]), np.array([0, 1]), [bad])
    ['line 2', 'line 5']

    Args:
        lines: first lines of all records of the part, bad ones included; int64, ascending.
        positions, rejected: see `record_places`.
    """
    good = np.delete(lines, np.searchsorted(lines, _numbers(rejected), side="right") - 1)
    return [f"line {number}" for number in good[positions].tolist()]


def _numbers(rejected: Sequence[BadRecord]) -> Int64:
    matches = (_NUMBER.search(record.place or record.reason) for record in rejected)
    return np.array([int(match.group(1)) for match in matches if match is not None], np.int64)

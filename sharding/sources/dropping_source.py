"""A source without some records of another: its duplicates, or its bad records.

Tested in tests/sharding/prepare/screening/test_duplicates.py and tests/sharding/prepare/screening/test_bad_records.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from ringfeed.sharding.compute.keyed_random import derive_key

from .base import Part, Reject, Source, WrappedSource, narrow_source

Int64 = npt.NDArray[np.int64]
Rows = TypeVar("Rows", pa.Array, pa.RecordBatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppingSource(WrappedSource):
    """A source that drops records by their positions among a part's drafts; it may drop all of a part.

    Attributes:
        inner: source of all records.
        dropped: packed positions, one entry a part. The source is sent to every task; packed, a position takes a byte
            or two.
        fingerprint_override: fingerprint to report instead of `dropped_digest`; empty: none.
    """

    dropped: tuple[bytes, ...]
    fingerprint_override: str = ""

    @classmethod
    def over(cls, inner: Source, dropped: Sequence[Int64], fingerprint_override: str = "") -> DroppingSource:
        """Return a source without these records.

        Args:
            inner: source of all records.
            dropped: positions of the dropped records of each part, int64, ascending, from 0.
            fingerprint_override: fingerprint to report; empty: the `dropped_digest`.

        Raises:
            ValueError: the number of arrays is not the number of parts, or positions do not ascend.
        """
        if len(dropped) != len(inner.parts):
            raise ValueError(f"dropped must hold one array for each of {len(inner.parts)} parts, got {len(dropped)}")
        return cls(inner=inner, dropped=tuple(map(_pack, dropped)), fingerprint_override=fingerprint_override)

    @property
    def fingerprint(self) -> str:
        """The `fingerprint_override`, or else the `dropped_digest`."""
        return self.fingerprint_override or self.dropped_digest

    @property
    def dropped_digest(self) -> str:
        """A hash of the inner source's fingerprint and of the dropped positions."""
        return f"{derive_key(self.inner.fingerprint, *(xxhash.xxh3_64_intdigest(p) for p in self.dropped)):016x}"

    # A caller without a policy passes none on, so that the default of an inner `LenientSource` holds.

    def labels(self, part: Part, *reject: Reject) -> Iterator[pa.Array]:
        """Read the labels of the remaining records; the default policy is the inner source's."""
        return _without(self.inner.labels(part, *reject), self._dropped(part))

    def drafts(self, part: Part, *reject: Reject) -> Iterator[pa.RecordBatch]:
        """Read the remaining drafts; the default policy is the inner source's."""
        return _without(self.inner.drafts(part, *reject), self._dropped(part))

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Read the inner source's sample, which is the head of its drafts, without the dropped records."""
        head = self.inner.sample(part, records)
        return next(_without(iter([head]), self._dropped(part)), head.slice(0, 0))

    def narrow(self, columns: Collection[str]) -> DroppingSource:
        """Return the same records with these columns, and as few others as the inner source can."""
        return replace(self, inner=narrow_source(self.inner, columns))

    def _dropped(self, part: Part) -> Int64:
        return _unpack(self.dropped[list(self.inner.parts).index(part)])


def _pack(positions: Int64) -> bytes:
    steps = np.diff(np.asarray(positions, np.int64), prepend=-1)
    if steps.size and steps.min() < 1:
        raise ValueError("the positions of dropped records must ascend from 0 or more")
    return zlib.compress(steps.astype("<i8").tobytes(), level=1) if steps.size else b""


def _unpack(packed: bytes) -> Int64:
    steps = np.frombuffer(zlib.decompress(packed) if packed else b"", "<i8")
    return np.cumsum(steps, dtype=np.int64) - 1


def _without(batches: Iterator[Rows], dropped: Int64) -> Iterator[Rows]:
    """Yield batches without the rows at the dropped positions, which count through all batches; skip empty ones."""
    start = 0
    for batch in batches:
        first, last = np.searchsorted(dropped, (start, start + len(batch)))
        if first < last:
            keep = np.ones(len(batch), np.bool_)
            keep[dropped[first:last] - start] = False
            start += len(batch)
            batch = batch.filter(pa.array(keep))
        else:
            start += len(batch)
        if len(batch):
            yield batch

"""A source without some of the records of another: doubles, or those that could not be read."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from ..compute.keyed_random import derive_key
from .base import Part, Reject, Source, WrappedSource, narrow_source

__all__ = ["DroppingSource"]

Int64 = npt.NDArray[np.int64]
Rows = TypeVar("Rows", pa.Array, pa.RecordBatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppingSource(WrappedSource):
    """A source that passes over records by their positions among a part's drafts; a part may be left without any.

    Attributes:
        inner: the source of all records.
        dropped: for each part the positions, packed: the source goes to every task, and a position then weighs a byte
            or two.
        fingerprint_override: the fingerprint, where it is not to depend on all that is dropped; see `dropped_digest`.
    """

    dropped: tuple[bytes, ...]
    fingerprint_override: str = ""

    @classmethod
    def over(cls, inner: Source, dropped: Sequence[Int64], fingerprint_override: str = "") -> DroppingSource:
        """A source without these records.

        Args:
            inner: the source of all records.
            dropped: for each of its parts the positions, ascending, from 0.
            fingerprint_override: the fingerprint; empty: that of `inner` and of what is dropped.

        Raises:
            ValueError: there are more or fewer arrays than parts, or positions do not ascend.
        """
        if len(dropped) != len(inner.parts):
            raise ValueError(f"dropped must hold one array for each of {len(inner.parts)} parts, got {len(dropped)}")
        return cls(inner=inner, dropped=tuple(map(_pack, dropped)), fingerprint_override=fingerprint_override)

    @property
    def fingerprint(self) -> str:
        """Of the inner source and of what is dropped, or what it is known as."""
        return self.fingerprint_override or self.dropped_digest

    @property
    def dropped_digest(self) -> str:
        """A hash of the inner source's fingerprint and of all that is dropped."""
        return f"{derive_key(self.inner.fingerprint, *(xxhash.xxh3_64_intdigest(p) for p in self.dropped)):016x}"

    # Without a policy none is passed on, so that the default of a `LenientSource` within holds.

    def labels(self, part: Part, *reject: Reject) -> Iterator[pa.Array]:
        """The labels of the records that stay; without a policy, by that of the inner source."""
        return _without(self.inner.labels(part, *reject), self._dropped(part))

    def drafts(self, part: Part, *reject: Reject) -> Iterator[pa.RecordBatch]:
        """The records that stay; without a policy, by that of the inner source."""
        return _without(self.inner.drafts(part, *reject), self._dropped(part))

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Those of the inner source's sample that stay, for a sample is the head of the drafts."""
        head = self.inner.sample(part, records)
        return next(_without(iter([head]), self._dropped(part)), head.slice(0, 0))

    def narrow(self, columns: Collection[str]) -> DroppingSource:
        """The same records with these columns, and no more of the others than the inner source must read."""
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
    """Batches without the rows at positions counted through all of them; none that is left empty."""
    start = 0
    for batch in batches:
        first, last = np.searchsorted(dropped, (start, start + len(batch)))
        if first < last:
            stays = np.ones(len(batch), np.bool_)
            stays[dropped[first:last] - start] = False
            start += len(batch)
            batch = batch.filter(pa.array(stays))
        else:
            start += len(batch)
        if len(batch):
            yield batch

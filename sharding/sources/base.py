"""What a source is to the build."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..compute.batches import BATCH_BYTES, BATCH_ROWS
from ..errors import SourceError
from ..schema import Feature, Schema

__all__ = [
    "NO_FEATURES",
    "SKIP_REMEDY",
    "BadRecord",
    "CheckableSource",
    "CompleteDrafts",
    "NarrowableSource",
    "Part",
    "Reject",
    "SelectiveSource",
    "SizedSource",
    "Source",
    "WrappedSource",
    "complete_slices",
    "draft_columns",
    "fail_on_bad",
    "ignore_bad",
    "late_bytes",
    "narrow_source",
    "rewrap",
    "select_part",
    "unwrap",
]  # fmt: skip

_FIRST_SLICE = 16  # records completed at once before it is known how large they are
NO_FEATURES: Mapping[str, Feature] = MappingProxyType({})  # no types are given: all are inferred


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a source that one task reads.

    Attributes:
        path: of the file, as fsspec opens it; or of the first of several.
        pieces: what of it: row groups, or the files themselves. Its meaning is the source's own.
        first_record: number of its first record in the file, for errors.
    """

    path: str
    pieces: tuple[Any, ...] = ()
    first_record: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that cannot be read.

    Attributes:
        path: of the file that it lies in.
        place: in the file, such as ``line 17`` or ``record 3``; empty where the file is the record.
        reason: what is wrong with it.
        remedy: what to do about it.
    """

    path: str
    place: str
    reason: str
    remedy: str = "mend or remove it"

    def __str__(self) -> str:
        where = f"{self.path}: {self.place}" if self.place else self.path
        link = ", " if self.place and self.reason.startswith("byte ") else ": "  # which reads on from its line
        return f"{where}{link}{self.reason}; {self.remedy}"


Reject = Callable[[BadRecord], None]
SKIP_REMEDY = "such records with --on-bad-record skip:N"  # a remedy


def fail_on_bad(record: BadRecord) -> None:
    """The strict policy of a source's reader: no bad record is passed over.

    Raises:
        SourceError: always.
    """
    raise SourceError(f"{record}, or pass over {SKIP_REMEDY}")


def ignore_bad(record: BadRecord) -> None:
    """The policy of a pass that meets bad records which another pass tells of."""


class Source(Protocol):
    """A dataset to be sharded. Its order of records is fixed, and it can be sent to another process.

    Drafts are what a source reads in its first passes: the label, and as much of the rest as is cheap. `complete`
    makes records of them, when the shard that they go to is assembled; images are read only then.

    A record that cannot be read is handed to `reject`; if that returns, it is passed over. `labels` and `drafts` of a
    part pass over the same ones.
    """

    @property
    def url(self) -> str:
        """Where it is."""

    @property
    def schema(self) -> Schema:
        """Of the completed records."""

    @property
    def parts(self) -> Sequence[Part]:
        """In order; they depend on the source alone, never on the number of workers."""

    @property
    def fingerprint(self) -> str:
        """Of the names, sizes and versions of its files."""

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """The label of each record of a part, as few bytes read as the format allows; nulls if there is no label."""

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """The records of a part, incomplete as they may be, with the label among the columns."""

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Up to so many drafts from the start of a part, as few bytes read as the format allows."""

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """The records themselves, in the schema's Arrow types, in the order of the drafts."""


def select_part(source: Source, number: int | None = None) -> Source:
    """The source with one part alone, or with none: what is sent to a task, for there may be very many.

    A source that wraps another calls it `inner`, or `table` if its own records are others; what it keeps for each part
    is in a tuple named `dropped`.
    """
    changes: dict[str, Any] = {}
    for field in fields(source):  # type: ignore[arg-type]  # every source is a dataclass
        value = getattr(source, field.name)
        if field.name in ("parts", "dropped"):
            changes[field.name] = () if number is None else value[number : number + 1]
        elif field.name in ("inner", "table"):
            changes[field.name] = select_part(value, number)
    return replace(source, **changes)  # type: ignore[type-var]


class CompleteDrafts:
    """A source whose drafts are the records."""

    __slots__ = ()

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Nothing is left to do."""
        return drafts


@runtime_checkable
class CheckableSource(Protocol):
    """A source that `complete` reads more of than `drafts`, and that can find what is bad there beforehand.

    A strict build leaves that to `complete`. One that passes over bad records calls `check` on each part before it
    counts, and leaves out the positions found wherever it reads labels and drafts of the part.
    """

    def check(
        self, part: Part, reject: Reject, fault: Callable[[bytes | memoryview], str | None] = ...
    ) -> Iterator[pa.Array]:
        """The positions, int64 and ascending, of the drafts of a part that `complete` would fail on.

        Each is handed to `reject` first, which may raise. What is read is read some of `BATCH_BYTES` at a time.

        Args:
            part: of the source.
            reject: what to do about each.
            fault: what is wrong with the bytes of a file; by default, what `complete` finds wrong.
        """


@runtime_checkable
class SizedSource(Protocol):
    """A source that knows how much `complete` will add to a draft before it reads it."""

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The bytes that each of a part's drafts lacks yet, about; int64 [rows]."""


@runtime_checkable
class SelectiveSource(Protocol):
    """A source that is told which columns are wanted, and leaves out others that no feature can hold."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of those, or of what they lie in: a group, an object."""


@runtime_checkable
class NarrowableSource(Protocol):
    """A source that can leave columns unread."""

    def narrow(self, columns: Collection[str]) -> Source:
        """The same source, records and parts, with no more than these of its columns where that saves reading."""


def late_bytes(source: Source, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The bytes that each draft lacks yet, as far as the source knows; int64 [rows]."""
    return source.late_bytes(part, drafts) if isinstance(source, SizedSource) else np.zeros(drafts.num_rows, np.int64)


def unwrap(source: Any) -> Any:
    """The source that others are around."""
    return unwrap(source.inner) if hasattr(source, "inner") else source


def rewrap(source: Any, base: Any) -> Any:
    """The sources around another, around `base` instead."""
    return replace(source, inner=rewrap(source.inner, base)) if hasattr(source, "inner") else base


def narrow_source(source: Source, columns: Collection[str]) -> Source:
    """A source with at least these columns, and as few others as it can leave unread."""
    return source.narrow(columns) if isinstance(source, NarrowableSource) else source


def complete_slices(source: Source, drafts: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Complete drafts in slices of about `BATCH_BYTES`; the slices depend on the records alone."""
    start, rows = 0, _FIRST_SLICE
    while start < drafts.num_rows:
        batch = source.complete(drafts.slice(start, rows))
        yield batch
        start += rows
        rows = max(1, min(BATCH_ROWS, 2 * rows, rows * BATCH_BYTES // max(1, batch.nbytes)))


def draft_columns(source: Source) -> frozenset[str]:
    """The columns of a source's drafts; those of its schema that are not among them are read by `complete` alone."""
    if not source.parts:
        return frozenset(source.schema.names)
    return frozenset(source.sample(source.parts[0], 1).schema.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedSource:
    """A source around another, and like it where a subclass does not say otherwise; not `NarrowableSource` by itself.

    Attributes:
        inner: the source of what goes in.
    """

    inner: Source

    @property
    def url(self) -> str:
        """Where the inner source is."""
        return self.inner.url

    @property
    def schema(self) -> Schema:
        """That of the inner source."""
        return self.inner.schema

    @property
    def parts(self) -> Sequence[Part]:
        """Those of the inner source."""
        return self.inner.parts

    @property
    def fingerprint(self) -> str:
        """That of the inner source."""
        return self.inner.fingerprint

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Those of the inner source."""
        return self.inner.labels(part, reject)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Those of the inner source."""
        return self.inner.drafts(part, reject)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """That of the inner source."""
        return self.inner.sample(part, records)

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """As the inner source does."""
        return self.inner.complete(drafts)

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """As the inner source knows."""
        return late_bytes(self.inner, part, drafts)

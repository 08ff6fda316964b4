"""The `Source` protocol: how a build reads a dataset to be sharded, with the optional protocols that refine it.

To add a source, write a frozen dataclass with the members of `Source` (`LineSource` in `images/image_list.py` is the
shortest), and add it to `detect.py`. Its class method `open(url, label)` opens it, and may take more parameters of
`open_source`; its `suffixes` are the endings of its files' names. The optional protocols below are found by
`isinstance`; a source has those that it can serve better than the default.
Tested in tests/sharding/prepare/screening/test_bad_records.py and tests/sharding/sources/images/test_image_list.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_BYTES, BATCH_ROWS
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, Schema

_FIRST_SLICE = 16  # records completed together before their size is known
NO_FEATURES: Mapping[str, Feature] = MappingProxyType({})  # no declared types: all are inferred


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The records of a source that one task reads.

    Attributes:
        path: URL of the file, or of the first of several.
        pieces: what to read, such as row groups or file names; each source has its own kind.
        first_record: number in the file of the part's first record, for error messages.
    """

    path: str
    pieces: tuple[Any, ...] = ()
    first_record: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that cannot be read."""

    path: str  # URL of its file
    place: str  # place in the file, such as ``line 17`` or ``record 3``; empty if the file is the record
    reason: str  # what is wrong with it. `rejected.jsonl` keeps it, so the same record must always give the same text.
    remedy: str = "fix or remove it"  # what the user can do about it

    def __str__(self) -> str:
        where = f"{self.path}: {self.place}" if self.place else self.path
        link = ", " if self.place and self.reason.startswith("byte ") else ": "  # reads on from the line
        return f"{where}{link}{self.reason}; {self.remedy}"


Reject = Callable[[BadRecord], None]
SKIP_REMEDY = "skip such records with --on-bad-record skip:N"


def fail_on_bad(record: BadRecord) -> None:
    """Fails at the first bad record: the default policy of every reader.

    Raises:
        SourceError: always.
    """
    raise SourceError(f"{record}, or {SKIP_REMEDY}")


def ignore_bad(record: BadRecord) -> None:
    """Skips a bad record silently: the policy of a pass over records that another pass reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSizes:
    """Sizes that a source is read in; None: what suits its kind.

    Attributes:
        block_bytes: bytes of a text or TFRecord file that are read and parsed at a time.
        part_bytes: bytes of a part, at least; of an array, at most.
        part_rows: rows of a part of a table, at least.
    """

    block_bytes: int | None = None
    part_bytes: int | None = None
    part_rows: int | None = None


OWN_SIZES = ReadSizes()


class Source(Protocol):
    """A dataset to be sharded.

    A build reads a source several times, in several processes: `labels` of every part to count the classes, `drafts`
    to spill the records by shard, and `complete` to assemble each shard. So

    - a source is a frozen dataclass that pickles, and holds no open file;
    - its parts, and the records of each in order, are the same in every pass and with any number of workers;
    - `labels`, `drafts` and `sample` of a part skip the same bad records, so their rows correspond;
    - batches stay small: at most `BATCH_ROWS` rows, and about `BATCH_BYTES` (`compute/batches.py`).

    Drafts are records before their expensive columns are read. The draft of an image file holds its label and path;
    `complete` reads the image when its shard is assembled. A source whose drafts are the records inherits
    `RecordSource`.

    Every unreadable record goes to `reject`. If `reject` returns, the record is skipped.
    """

    @property
    def url(self) -> str:
        """The URL that the user gave."""

    @property
    def schema(self) -> Schema:
        """The columns of the completed records."""

    @property
    def parts(self) -> Sequence[Part]:
        """The parts in order of their records; they depend on the source alone, not on the number of workers."""

    @property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and versions of the files; a resumed build compares it."""

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the label of each record of a part, and as little else as the format allows; nulls without a label."""

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Read the drafts of a part, with the label among their columns."""

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Read up to `records` drafts from the start of a part, and as little else as the format allows."""

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of some drafts, in their order and in the schema's Arrow types."""


def select_part(source: Source, number: int | None = None) -> Source:
    """Return the source with only one of its parts, or with none: a task needs no more, and there may be millions.

    A wrapper names its inner source `inner`, or `table` if its records differ from that source's; a field `dropped`
    holds one entry a part.
    """
    changes: dict[str, Any] = {}
    for field in fields(source):  # type: ignore[arg-type]  # every source is a dataclass
        value = getattr(source, field.name)
        if field.name in ("parts", "dropped"):
            changes[field.name] = () if number is None else value[number : number + 1]
        elif field.name in ("inner", "table"):
            changes[field.name] = select_part(value, number)
    return replace(source, **changes)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSource(ABC):
    """Base of sources whose drafts are the records: of all formats but those that read image files."""

    suffixes: ClassVar[tuple[str, ...]] = ()  # endings of the files' names, for detection

    url: str  # URL that the user gave
    schema: Schema  # columns of the records
    parts: tuple[Part, ...]  # parts, in order of their records
    fingerprint: str  # hash of whatever determines the records

    @abstractmethod
    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Read the records of a part."""

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Read the head of a part's first batch."""
        return next(self.drafts(part), self.schema.empty).slice(0, records)

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Return the drafts: they are complete."""
        return drafts


@runtime_checkable
class CheckableSource(Protocol):
    """A source that can find in advance the records that `complete` would fail on.

    A strict build leaves them to `complete`. A build that skips bad records calls `check` on each part before it
    counts, and drops the positions found from the part's labels and drafts.
    """

    def check(
        self, part: Part, reject: Reject, fault: Callable[[bytes | memoryview], str | None] = ...
    ) -> Iterator[pa.Array]:
        """Find the drafts of a part that `complete` would fail on, reading about `BATCH_BYTES` at a time.

        Args:
            reject: called with each bad record; may raise.
            fault: returns what is wrong with the bytes of a file, or None; default: what `complete` finds wrong.

        Yields:
            Positions among the part's drafts, int64, ascending.
        """


@runtime_checkable
class SizedSource(Protocol):
    """A source that knows how many bytes `complete` will add to a draft."""

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return roughly how many bytes `complete` will add to each draft; int64 [rows]."""


@runtime_checkable
class RecutSource(Protocol):
    """A source whose parts may be cut elsewhere although its fingerprint is the same."""

    @property
    def cuts(self) -> str:
        """A hash of the cuts, by which spill files of different cuts have different names."""


@runtime_checkable
class LateSource(Protocol):
    """A source whose files only `complete` reads."""

    reads_late: ClassVar[bool]


@runtime_checkable
class SelectiveSource(Protocol):
    """A source that omits unwanted columns if no feature can hold them; its `open` takes `wanted`."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of the omitted columns, or of the groups or objects that contain them."""


@runtime_checkable
class NamedClassesSource(Protocol):
    """A source that may know names for the numbers in its label column."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class by its number, or none if the label is not such a number."""


@runtime_checkable
class NarrowableSource(Protocol):
    """A source that can leave columns unread."""

    def narrow(self, columns: Collection[str]) -> Source:
        """Return a source of the same records and parts that omits other columns where that saves reading."""


def late_bytes(source: Source, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes that `complete` will add to each draft, 0 where the source does not know; int64 [rows]."""
    return source.late_bytes(part, drafts) if isinstance(source, SizedSource) else np.zeros(drafts.num_rows, np.int64)


def unwrap(source: Any) -> Any:
    """Return the innermost of nested sources."""
    return unwrap(source.inner) if hasattr(source, "inner") else source


def rewrap(source: Any, base: Any) -> Any:
    """Return nested sources with the innermost replaced by `base`."""
    return replace(source, inner=rewrap(source.inner, base)) if hasattr(source, "inner") else base


def narrow_source(source: Source, columns: Collection[str]) -> Source:
    """Return a source with at least these columns, and as few others as it can."""
    return source.narrow(columns) if isinstance(source, NarrowableSource) else source


def complete_slices(source: Source, drafts: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Complete drafts in slices of about `BATCH_BYTES`; the slices depend only on the records."""
    start, rows = 0, _FIRST_SLICE
    while start < drafts.num_rows:
        batch = source.complete(drafts.slice(start, rows))
        yield batch
        start += rows
        rows = max(1, min(BATCH_ROWS, 2 * rows, rows * BATCH_BYTES // max(1, batch.nbytes)))


def draft_columns(source: Source) -> frozenset[str]:
    """Return the columns of a source's drafts; `complete` adds the rest of its schema."""
    if not source.parts:
        return frozenset(source.schema.names)
    return frozenset(source.sample(source.parts[0], 1).schema.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedSource:
    """A source that wraps another and delegates to it; subclasses override what differs.

    It has no `narrow`: a subclass whose columns can be narrowed adds it.
    """

    inner: Source  # the wrapped source

    @property
    def url(self) -> str:
        """The URL of the inner source."""
        return self.inner.url

    @property
    def schema(self) -> Schema:
        return self.inner.schema

    @property
    def parts(self) -> Sequence[Part]:
        return self.inner.parts

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        return self.inner.labels(part, reject)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        return self.inner.drafts(part, reject)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        return self.inner.sample(part, records)

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        return self.inner.complete(drafts)

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return late_bytes(self.inner, part, drafts)

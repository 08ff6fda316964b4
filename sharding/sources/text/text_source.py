"""Base of CSV and JSON Lines sources: types inferred over every record, parts of many blocks, places of records.

Tested in tests/sharding/sources/text/test_csv.py and tests/sharding/sources/text/test_jsonl.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources.base import (
    NO_FEATURES,
    OWN_SIZES,
    BadRecord,
    Part,
    ReadSizes,
    RecordSource,
    Reject,
    fail_on_bad,
    ignore_bad,
)
from ringfeed.sharding.sources.files.find import require_files
from ringfeed.sharding.sources.files.record_places import line_places
from ringfeed.sharding.sources.files.snapshot import SourceFile

from .blocks import Block, Cut, Reader, read_blocks, read_marked, span_of
from .csv_dialect import CsvDialect

_SAMPLE_BYTES = 1 << 20
Self = TypeVar("Self", bound="TextSource")


def with_compression(*suffixes: str) -> tuple[str, ...]:
    """Return endings of plain and compressed files.

    >>> with_compression(".csv")
    ('.csv', '.csv.gz', '.csv.bz2', '.csv.xz', '.csv.zst')
    """
    return tuple(f"{suffix}{ending}" for suffix in suffixes for ending in ("", ".gz", ".bz2", ".xz", ".zst"))


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceOptions:
    """What the user says about columns before their types are inferred."""

    declared: Mapping[str, Feature]  # features of columns whose types are not inferred, by name
    reject: Reject  # called with each unreadable record
    # Whether the build needs a column of this name; others may hold values that no feature can
    wanted: Callable[[str], bool]
    null_values: tuple[str, ...] = ()  # texts of CSV that mean null in columns of every type
    dialect: CsvDialect = field(default_factory=CsvDialect)  # how CSV is written
    sizes: ReadSizes = OWN_SIZES
    unlabelled: bool = False  # whether the records are to be scored: the model says what may be missing


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource(RecordSource):
    """A source of text files; a part is about 64 MiB of a file, or a compressed file, and its pieces are `Mark`s."""

    kind: ClassVar[str]  # what the files are, for error messages

    @classmethod
    def open(
        cls: type[Self],
        url: str,
        label: str | None,
        features: Mapping[str, Feature] = NO_FEATURES,
        reject: Reject = fail_on_bad,
        wanted: Callable[[str], bool] = lambda _: True,
        null_values: tuple[str, ...] = (),
        csv: CsvDialect | None = None,
        sizes: ReadSizes = OWN_SIZES,
        unlabelled: bool = False,
    ) -> Self:
        """Read all files once to infer the types of their columns; see `open_source`.

        Raises:
            SourceError: there is no file, a file is damaged, or no columns hold the records.
            ConfigError: the declared type of a column does not exist in text, or the column does not exist.
        """
        files = require_files(url, cls.suffixes, cls.kind)
        options = InferenceOptions(
            declared=dict(features),
            reject=reject,
            wanted=wanted,
            null_values=null_values,
            dialect=csv or CsvDialect(),
            sizes=sizes,
            unlabelled=unlabelled,
        )
        return cls.infer(url, label, files, options)

    @classmethod
    @abstractmethod
    def infer(
        cls: type[Self], url: str, label: str | None, files: Sequence[SourceFile], options: InferenceOptions
    ) -> Self:
        """Read all files, and return the source; see `open`."""

    def reader(self, path: str) -> Reader | None:
        """Return what reads a file as lines of UTF-8; None where it has that form."""
        return None

    @abstractmethod
    def cut(self, path: str) -> Cut:
        """Return the function that finds where the records of a file end; see `read_blocks`."""

    @abstractmethod
    def read(self, part: Part, blocks: Iterable[Block], reject: Reject) -> Iterator[pa.RecordBatch]:
        """Read the records of some blocks of a part."""

    @abstractmethod
    def record_lines(self, path: str, block: Block) -> npt.NDArray[np.int64]:
        """Return the numbers of the lines in which the records of a block start; int64 [records]."""

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        return self.read(part, read_marked(part.path, part.pieces, self.reader(part.path)), reject)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        path = part.path
        blocks = read_blocks(path, span_of(part), self.cut(path), _SAMPLE_BYTES, self.reader(path))
        heads = (batch for batch in self.read(part, blocks, ignore_bad) if batch.num_rows)
        return next(heads, self.schema.empty).slice(0, records)

    def places(self, part: Part, positions: npt.NDArray[np.int64], rejected: Sequence[BadRecord]) -> list[str]:
        """Return the lines in which records start; see `record_places`."""
        blocks = read_marked(part.path, part.pieces, self.reader(part.path))
        lines = [self.record_lines(part.path, block) for block in blocks]
        return line_places(np.concatenate(lines), positions, rejected)

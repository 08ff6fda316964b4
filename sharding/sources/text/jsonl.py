"""JSON Lines: an object a line. Types are inferred over every line; objects within objects become columns `a.b`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schema import Feature, Schema
from ..base import NO_FEATURES, BadRecord, CompleteDrafts, Part, Reject, fail_on_bad, ignore_bad
from ..files.find import fingerprint_files, require_files
from ..files.record_places import line_places
from .blocks import Mark, Span, cut_parts, read_blocks, read_marked, span_of
from .declared_types import check_names, declared_arrow_type
from .json_columns import Column, read_columns, rows_at_once
from .json_parse import Lines, split_lines
from .json_types import Columns

__all__ = ["SUFFIXES", "JsonlSource"]

SUFFIXES = tuple(f"{kind}{ending}" for kind in (".jsonl", ".ndjson") for ending in ("", ".gz", ".bz2", ".xz", ".zst"))
_BLOCK_BYTES = 8 << 20
_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlSource(CompleteDrafts):
    """A source of files of JSON lines; a part is some 64 MiB of a file, or a compressed file.

    A missing key is a missing value. Integers become float64 beside floats; other mixtures of scalars become text, as
    they are written. Lists of scalars are of fixed shape if all have one length, and lists of such lists are tensors.

    Attributes:
        columns: the features and where their values lie.
        left_out: keys whose values no feature can hold, or objects, that were not wanted.
    """

    url: str
    schema: Schema
    columns: tuple[Column, ...]
    parts: tuple[Part, ...]
    fingerprint: str
    left_out: tuple[str, ...] = ()

    @classmethod
    def open(
        cls,
        url: str,
        label: str | None,
        features: Mapping[str, Feature] = NO_FEATURES,
        reject: Reject = fail_on_bad,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> JsonlSource:
        """Read all files once to find the columns and their types.

        Args:
            url: of a file, a folder or a glob.
            label: the column that classes are made of, if any.
            features: types of columns that are not to be inferred, by name (``a.b`` within an object).
            reject: called with each line that is no JSON object; `labels` and `drafts` meet them again.
            wanted: whether a column is, by its name; others may have values that no feature can hold.

        Raises:
            SourceError: there is no file, a line is no JSON object, or the objects fit into no columns.
            ConfigError: a type is given for a column that is not there, or is one that no JSON value has.
        """
        files = require_files(url, SUFFIXES, "file of JSON lines")
        for feature in features.values():
            declared_arrow_type(feature)
        found = Columns(features, wanted)
        parts: list[Part] = []
        for file in files:
            marks: list[Mark] = []
            for block in read_blocks(file.url, Span(), _cut, _BLOCK_BYTES):
                records, clean = found.add(file.url, Lines(block.data, block.line), reject)
                marks.append(Mark.of(block, records, clean=clean))
            parts += cut_parts(file, marks)
        columns = found.columns(url)
        check_names(features, [column.feature.name for column in columns])
        return cls(
            url=url,
            schema=Schema(features=tuple(column.feature for column in columns), label=label),
            columns=columns,
            parts=tuple(parts),
            fingerprint=fingerprint_files(files),
            left_out=found.left_out,
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """The label; where all lines are known to be objects, only columns of given types are looked at besides."""
        label = self.schema.label
        columns: Sequence[Column] = self.columns
        if _is_clean(part):
            wanted = self.columns[0].feature.name if label is None else label
            columns = [column for column in self.columns if column.given or column.feature.name == wanted]
        for arrays in self._read(part, columns, reject):
            if label is None:
                yield pa.nulls(len(arrays[0]))
                continue
            names = [column.feature.name for column in columns]
            yield self.schema[label].conform(arrays[names.index(label)])

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """The records; they are complete."""
        for arrays in self._read(part, self.columns, reject):
            conformed = [feature.conform(array) for feature, array in zip(self.schema.features, arrays, strict=True)]
            yield pa.RecordBatch.from_arrays(conformed, schema=self.schema.arrow)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The head of the part."""
        for arrays in self._read(part, self.columns, ignore_bad, sample=True):
            if len(arrays[0]):
                conformed = [f.conform(array) for f, array in zip(self.schema.features, arrays, strict=True)]
                return pa.RecordBatch.from_arrays(conformed, schema=self.schema.arrow).slice(0, records)
        return self.schema.empty

    def places(self, part: Part, positions: npt.NDArray[np.int64], rejected: Sequence[BadRecord]) -> list[str]:
        """The lines of some records; empty lines are none."""
        blocks = (Lines(block.data, block.line) for block in read_marked(part.path, part.pieces))
        return line_places(np.concatenate([lines.filled() for lines in blocks]), positions, rejected)

    def _read(
        self, part: Part, columns: Sequence[Column], reject: Reject, *, sample: bool = False
    ) -> Iterator[list[pa.Array]]:
        clean = _is_clean(part)
        if sample:
            blocks = read_blocks(part.path, span_of(part), _cut, _SAMPLE_BYTES)
        else:
            blocks = read_marked(part.path, part.pieces)
        for block in blocks:
            for lines in split_lines(block, rows_at_once(self.columns)):
                yield read_columns(part.path, lines, columns, reject, closed=not clean)


def _is_clean(part: Part) -> bool:
    """Whether all lines could be read when the source was opened."""
    return all(mark.clean for mark in part.pieces)


def _cut(data: bytes) -> tuple[int, bool]:
    return data.rfind(b"\n") + 1, False

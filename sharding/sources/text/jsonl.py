"""JSON Lines, an object a line, and JSON arrays of objects. Types are inferred over all; nested keys make columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.schema import Schema
from ringfeed.sharding.sources.base import BadRecord, Part, Reject, fail_on_bad
from ringfeed.sharding.sources.files.find import fingerprint_files
from ringfeed.sharding.sources.files.open import open_file
from ringfeed.sharding.sources.files.snapshot import SourceFile

from .blocks import Block, Cut, Mark, Reader, Span, cut_parts, read_blocks, read_marked
from .declared_types import check_names, declared_arrow_type
from .json_array import begins_array, read_array
from .json_columns import Column, read_columns, rows_at_once
from .json_parse import Lines, split_lines
from .json_types import InferredColumns
from .text_source import InferenceOptions, TextSource, with_compression

_HEAD_BYTES = 1 << 12  # more spaces before the first letter are not expected


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlSource(TextSource):
    """A source of files of JSON lines.

    A missing key is a null. Integers beside floats become float64; other mixtures of scalars become text, as written.
    Lists of scalars have a fixed shape if all have one length; lists of equally long lists become tensors.
    """

    kind: ClassVar[str] = "file of JSON lines"
    suffixes: ClassVar[tuple[str, ...]] = with_compression(".jsonl", ".ndjson")

    columns: tuple[Column, ...]  # features, and the keys that lead to their values
    left_out: tuple[str, ...] = ()  # unwanted keys whose values no feature can hold, and unwanted objects
    arrays: tuple[str, ...] = ()  # files that are one array, whose records have numbers instead of lines

    @classmethod
    def infer(cls, url: str, label: str | None, files: Sequence[SourceFile], options: InferenceOptions) -> JsonlSource:
        """Read all files once.

        Raises:
            SourceError: a line is not a JSON object, or no columns hold the objects.
            ConfigError: a declared column does not exist, or JSON has no values of its type.
        """
        for feature in options.declared.values():
            declared_arrow_type(feature)
        inferred = InferredColumns(options.declared, options.wanted)
        parts: list[Part] = []
        arrays = cls.find_arrays(files)
        for file in files:
            is_array = file.url in arrays
            reader = read_array if is_array else None
            marks: list[Mark] = []
            for block in read_blocks(file.url, Span(), _cut, options.sizes.block_bytes, reader):
                records, clean = inferred.add(file.url, Lines.of(block, is_array=is_array), options.reject)
                marks.append(Mark.of(block, records, clean=clean))
            parts += cut_parts(file, marks, options.sizes.part_bytes, reader)
        columns = inferred.columns(url)
        check_names(options.declared, [column.feature.name for column in columns])
        return cls(
            url=url,
            schema=Schema(features=tuple(column.feature for column in columns), label=label),
            columns=columns,
            parts=tuple(parts),
            fingerprint=fingerprint_files(files),
            left_out=inferred.left_out,
            arrays=arrays,
        )

    @classmethod
    def find_arrays(cls, files: Sequence[SourceFile]) -> tuple[str, ...]:
        """Return the URLs of the files that are one array."""
        return ()

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the label; in parts without bad lines, read no others but those of declared types."""
        label = self.schema.label
        columns: Sequence[Column] = self.columns
        if _is_clean(part):
            wanted = self.columns[0].feature.name if label is None else label
            columns = [column for column in self.columns if column.declared or column.feature.name == wanted]
        for arrays in self._arrays(part, read_marked(part.path, part.pieces, self.reader(part.path)), columns, reject):
            if label is None:
                yield pa.nulls(len(arrays[0]))
                continue
            names = [column.feature.name for column in columns]
            yield self.schema[label].conform(arrays[names.index(label)])

    def cut(self, path: str) -> Cut:
        """Return the function that finds the last whole line."""
        return _cut

    def read(self, part: Part, blocks: Iterable[Block], reject: Reject) -> Iterator[pa.RecordBatch]:
        for arrays in self._arrays(part, blocks, self.columns, reject):
            conformed = [feature.conform(array) for feature, array in zip(self.schema.features, arrays, strict=True)]
            yield pa.RecordBatch.from_arrays(conformed, schema=self.schema.arrow)

    def record_lines(self, path: str, block: Block) -> npt.NDArray[np.int64]:
        """Return the numbers of the lines of a block that are not empty."""
        return Lines.of(block, is_array=path in self.arrays).filled()

    def reader(self, path: str) -> Reader | None:
        """Return what reads an array as lines; None where the file has lines."""
        return read_array if path in self.arrays else None

    def places(self, part: Part, positions: npt.NDArray[np.int64], rejected: Sequence[BadRecord]) -> list[str]:
        """Return the lines of records, or in an array their numbers; see `record_places`."""
        places = TextSource.places(self, part, positions, rejected)
        return [place.replace("line", "record") for place in places] if part.path in self.arrays else places

    def _arrays(
        self, part: Part, blocks: Iterable[Block], columns: Sequence[Column], reject: Reject
    ) -> Iterator[list[pa.Array]]:
        clean = _is_clean(part)
        for block in blocks:
            for lines in split_lines(block, rows_at_once(self.columns), is_array=part.path in self.arrays):
                yield read_columns(part.path, lines, columns, reject, closed=not clean)


class JsonSource(JsonlSource):
    """A source of JSON files: each an array of objects, or lines as in `JsonlSource`."""

    __slots__ = ()
    kind: ClassVar[str] = "JSON file"
    suffixes: ClassVar[tuple[str, ...]] = with_compression(".json")

    @classmethod
    def find_arrays(cls, files: Sequence[SourceFile]) -> tuple[str, ...]:
        """Return the URLs of the files that are one array: the first letter is a bracket."""
        arrays = []
        for file in files:
            with open_file(file.url) as opened:
                if begins_array(opened.read(_HEAD_BYTES)):
                    arrays.append(file.url)
        return tuple(arrays)


def _is_clean(part: Part) -> bool:
    """Whether no line of a part was rejected when the source was opened."""
    return all(mark.clean for mark in part.pieces)


def _cut(data: bytes) -> tuple[int, bool]:
    return data.rfind(b"\n") + 1, False

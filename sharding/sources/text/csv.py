"""CSV and TSV files with a header: types inferred over every line, so that no value is found unreadable half-way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...compute.batches import BATCH_ROWS
from ...errors import ConfigError, SourceError
from ...schema import Feature, Schema
from ..base import NO_FEATURES, BadRecord, CompleteDrafts, Part, Reject, fail_on_bad, ignore_bad
from ..files.find import fingerprint_files, require_files
from ..files.record_places import line_places
from .blocks import read_blocks, read_marked, span_of
from .csv_parse import MISSING, Header, Rows, delimiter_of, parse_block, read_header, record_lines
from .csv_records import cut_records
from .csv_types import infer_types
from .declared_types import cast_text, check_names, declared_arrow_type

__all__ = ["SUFFIXES", "CsvSource"]

SUFFIXES = tuple(f"{kind}{ending}" for kind in (".csv", ".tsv") for ending in ("", ".gz", ".bz2", ".xz", ".zst"))
_BLOCK_BYTES = 8 << 20
_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvSource(CompleteDrafts):
    """A source of CSV or TSV files; a part is some 64 MiB of a file, or a compressed file.

    Attributes:
        types: that the columns are read as; those that the user gives types are read as text.
        given: the types that the user gives, by column.
    """

    url: str
    schema: Schema
    types: pa.Schema
    given: Mapping[str, Feature]
    parts: tuple[Part, ...]
    fingerprint: str

    @classmethod
    def open(
        cls,
        url: str,
        label: str | None,
        features: Mapping[str, Feature] = NO_FEATURES,
        reject: Reject = fail_on_bad,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> CsvSource:
        """Read all files once to find each column's type.

        Args:
            url: of a file, a folder or a glob.
            label: the column that classes are made of, if any.
            features: types of columns that are not to be inferred, by name.
            reject: called with each line that cannot be read; `labels` and `drafts` meet them again.
            wanted: whether a column is, by its name; of others integers may be rounded.

        Raises:
            SourceError: there is no file, one is not UTF-8, a line has too few or too many fields, headers differ, or
                a column holds integers alone, and some that no integer type holds.
            ConfigError: a type is given for a column that is not there, or is one that no text has.
        """
        files = require_files(url, SUFFIXES, "CSV or TSV file")
        headers = [read_header(file.url, _BLOCK_BYTES) for file in files]
        for file, header in zip(files, headers, strict=True):
            if header.names != headers[0].names:
                raise SourceError(f"{file.url}: its header differs from that of {files[0].url}; the columns must agree")
        check_names(features, headers[0].names)
        for feature in features.values():
            if feature.shape:
                raise ConfigError(f"column {feature.name!r} is of CSV, which has no lists; give it a scalar type")
            declared_arrow_type(feature)
        types, parts = infer_types(files, headers, features, reject, wanted, _BLOCK_BYTES)
        inferred = Schema.from_arrow(types, label)
        return cls(
            url=url,
            schema=Schema(features=tuple(features.get(f.name, f) for f in inferred.features), label=label),
            types=types,
            given=dict(features),
            parts=tuple(parts),
            fingerprint=fingerprint_files(files),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """The label column; the lines are parsed, the fields of inferred types are not converted."""
        label = self.schema.label
        wanted = {self.types.names[0] if label is None else label, *self.given}
        for batch in self._batches(part, [name for name in self.types.names if name in wanted], reject):
            yield pa.nulls(batch.num_rows) if label is None else self.schema[label].conform(batch.column(label))

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """The records; they are complete."""
        for batch in self._batches(part, None, reject):
            yield self.schema.conform(batch)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The head of the part."""
        batches = self._batches(part, None, ignore_bad, sample=True)
        head = next((batch for batch in batches if batch.num_rows), None)
        if head is None:
            return self.schema.empty
        return self.schema.conform(head.slice(0, records))

    def places(self, part: Part, positions: npt.NDArray[np.int64], rejected: Sequence[BadRecord]) -> list[str]:
        """The lines in which some records start."""
        delimiter = delimiter_of(part.path)
        lines = [record_lines(block, delimiter) for block in read_marked(part.path, part.pieces)]
        return line_places(np.concatenate(lines), positions, rejected)

    def _batches(
        self, part: Part, columns: Sequence[str] | None, reject: Reject, *, sample: bool = False
    ) -> Iterator[pa.RecordBatch]:
        header = Header(names=tuple(self.types.names), delimiter=delimiter_of(part.path), start=0, line=1)
        types = dict(zip(self.types.names, self.types.types, strict=True))
        cut = partial(cut_records, delimiter=header.delimiter)
        if sample:
            blocks = read_blocks(part.path, span_of(part), cut, _SAMPLE_BYTES)
        else:
            blocks = read_marked(part.path, part.pieces)
        for block in blocks:
            rows = parse_block(part.path, header, block, types, columns, reject)
            table = self._cast(part.path, rows, reject) if self.given else rows.table
            yield from table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)

    def _cast(self, path: str, rows: Rows, reject: Reject) -> pa.Table:
        """Bring the columns to the types that the user gives, and pass over the records with a value that has none."""
        table, bad = rows.table, dict[int, str]()
        for number, name in enumerate(table.column_names):
            if name not in self.given:
                continue
            text = table.column(number).combine_chunks()
            values, failed = cast_text(text, self.given[name], MISSING)
            kind = self.given[name].logical or self.given[name].dtype
            for row in np.flatnonzero(failed).tolist():
                bad.setdefault(row, f"column {name!r}: {text[row].as_py()[:50]!r} is no {kind}")
            table = table.set_column(number, name, values)
        for row in sorted(bad):
            reject(BadRecord(path=path, place=f"line {rows.line(row)}", reason=bad[row]))
        keep = np.ones(table.num_rows, bool)
        keep[list(bad)] = False
        return table.filter(pa.array(keep)) if bad else table

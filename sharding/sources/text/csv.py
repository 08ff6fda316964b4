"""CSV and TSV files with a header; every line is read to infer the types, so no later value can contradict them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_ROWS
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import BadRecord, Part, Reject, fail_on_bad
from ringfeed.sharding.sources.files.find import fingerprint_files
from ringfeed.sharding.sources.files.snapshot import SourceFile

from .blocks import Block, Cut, Reader, read_marked
from .csv_dialect import CsvDialect
from .csv_header import check_header, read_header
from .csv_parse import MISSING, Header, Rows, cut_records, parse_block, record_lines, with_points
from .csv_types import infer_types
from .declared_types import cast_text, check_names, declared_arrow_type
from .text_source import InferenceOptions, TextSource, with_compression


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvSource(TextSource):
    """A source of CSV or TSV files."""

    kind: ClassVar[str] = "CSV or TSV file"
    suffixes: ClassVar[tuple[str, ...]] = with_compression(".csv", ".tsv")

    types: pa.Schema  # Arrow types that the columns are parsed as; columns of declared types are parsed as text
    # Features of the columns that the user declared, or that have integers with plus signs, by name
    declared: Mapping[str, Feature]
    null_values: tuple[str, ...] = ()  # texts that mean null in columns of every type
    dialect: CsvDialect = field(default_factory=CsvDialect)  # how the files are written
    # Names of the columns of each file that has them in another order than the first, by its URL
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def infer(cls, url: str, label: str | None, files: Sequence[SourceFile], options: InferenceOptions) -> CsvSource:
        """Read all files once, and columns of doubtful types again.

        Raises:
            SourceError: a file is not UTF-8, headers name other columns, a line has too few or too many fields, or no
                integer type holds a column of integers.
            ConfigError: a declared column does not exist, or text has no values of its type.
        """
        block_bytes = options.sizes.block_bytes
        lenient = options.reject is not fail_on_bad
        headers = [
            read_header(file.url, options.dialect, options.null_values, block_bytes, lenient=lenient) for file in files
        ]
        for file, header in zip(files, headers, strict=True):
            if odd := sorted(set(header.names) ^ set(headers[0].names)):
                raise SourceError(
                    f"{file.url}: its columns differ from {files[0].url}'s (only one of the two has a column "
                    f"{odd[0]!r}); the columns must agree, in any order"
                )
        check_names(options.declared, headers[0].names)
        for feature in options.declared.values():
            if feature.shape:
                raise ConfigError(f"column {feature.name!r} is of CSV, which has no lists; give it a scalar type")
            declared_arrow_type(feature)
        inferred = infer_types(files, headers, label, options)
        if options.dialect.header == "auto":
            check_header(headers[0], inferred.types)
        declared = inferred.signed | dict(options.declared)
        features = Schema.from_arrow(inferred.types, label).features
        return cls(
            url=url,
            schema=Schema(features=tuple(declared.get(f.name, f) for f in features), label=label),
            types=inferred.types,
            declared=declared,
            parts=tuple(inferred.parts),
            null_values=options.null_values,
            dialect=options.dialect,
            orders={
                file.url: header.names
                for file, header in zip(files, headers, strict=True)
                if header.names != headers[0].names
            },
            fingerprint=fingerprint_files(files),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the label column, and convert no others but those of declared types, which may reject a record."""
        label = self.schema.label
        wanted = {self.types.names[0] if label is None else label, *self.declared}
        columns = [name for name in self.types.names if name in wanted]
        for batch in self._batches(part, read_marked(part.path, part.pieces, self.reader(part.path)), columns, reject):
            yield pa.nulls(batch.num_rows) if label is None else self.schema[label].conform(batch.column(label))

    def reader(self, path: str) -> Reader | None:
        """Return what reads a file as UTF-8, as the dialect says."""
        return self.dialect.reader

    def cut(self, path: str) -> Cut:
        """Return the function that finds the last whole record."""
        return partial(cut_records, delimiter=self.dialect.delimiter_of(path))

    def read(self, part: Part, blocks: Iterable[Block], reject: Reject) -> Iterator[pa.RecordBatch]:
        return map(self.schema.conform, self._batches(part, blocks, None, reject))

    def record_lines(self, path: str, block: Block) -> npt.NDArray[np.int64]:
        """Return the numbers of the lines in which the records of a block start."""
        return record_lines(block, self.dialect.delimiter_of(path))

    def _batches(
        self, part: Part, blocks: Iterable[Block], columns: Sequence[str] | None, reject: Reject
    ) -> Iterator[pa.RecordBatch]:
        header = Header(
            path=part.path,
            names=self.orders.get(part.path, tuple(self.types.names)),
            delimiter=self.dialect.delimiter_of(part.path),
            start=0,
            line=1,
            null_values=self.null_values,
            dialect=self.dialect,
        )
        types = dict(zip(self.types.names, self.types.types, strict=True))
        for block in blocks:
            rows = parse_block(header, block, types, columns, reject)
            table = self._cast(part.path, rows, reject) if self.declared else rows.table
            yield from table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)

    def _cast(self, path: str, rows: Rows, reject: Reject) -> pa.Table:
        """Cast the columns of declared types, and reject the records with a value that does not fit."""
        table, bad = rows.table, dict[int, str]()
        for number, name in enumerate(table.column_names):
            if name not in self.declared:
                continue
            text = table.column(number).combine_chunks()
            is_float = self.declared[name].dtype.startswith("float")
            numbers = with_points(text, self.dialect.decimal) if is_float else text
            values, failed = cast_text(numbers, self.declared[name], MISSING)
            kind = self.declared[name].logical or self.declared[name].dtype
            for row in np.flatnonzero(failed).tolist():
                bad.setdefault(row, f"column {name!r}: {text[row].as_py()[:50]!r} is no {kind}")
            table = table.set_column(number, name, values)
        for row in sorted(bad):
            reject(BadRecord(path=path, place=f"line {rows.line(row)}", reason=bad[row]))
        keep = np.ones(table.num_rows, bool)
        keep[list(bad)] = False
        return table.filter(pa.array(keep)) if bad else table

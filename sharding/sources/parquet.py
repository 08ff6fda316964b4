"""Parquet files: one, a folder, or a glob; all of one schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from ..formats.parquet import rows_within
from ..storage import Storage
from .base import BATCH_BYTES, BATCH_ROWS, Part
from .files import SourceFile
from .tables import PART_BYTES, TableSource, checked, open_table, plain_schema, runs

__all__ = ["SUFFIXES", "ParquetSource"]

SUFFIXES = (".parquet", ".pq")
_PART_ROWS = 1 << 18
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSource(TableSource):
    """A source of Parquet files; a part is a run of row groups."""

    kind: ClassVar[str] = "Parquet"
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES
    reads_fields: ClassVar[bool] = True

    @classmethod
    def inspect(cls, file: SourceFile) -> tuple[pa.Schema, Sequence[Part]]:
        """From the footer."""
        with _open(file.url) as parquet:
            groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
            rows, sizes = [group.num_rows for group in groups], [group.total_byte_size for group in groups]
            parts = [
                Part(path=file.url, pieces=tuple(range(start, stop)), first_record=first)
                for start, stop, first in runs(rows, sizes, _PART_ROWS, PART_BYTES)
            ]
            return plain_schema(parquet.schema_arrow), parts

    def count(self, part: Part) -> int:
        """From the footer."""
        with _open(part.path) as parquet:
            return sum(parquet.metadata.row_group(group).num_rows for group in part.pieces)

    def blocks(self, part: Part) -> Iterator[tuple[Part, int]]:
        """The row groups."""
        first = part.first_record
        with _open(part.path) as parquet:
            rows = [parquet.metadata.row_group(group).num_rows for group in part.pieces]
        for group, records in zip(part.pieces, rows, strict=True):
            yield Part(path=part.path, pieces=(group,), first_record=first), records
            first += records

    def read(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Batches of about `BATCH_BYTES`."""
        with _open(part.path) as parquet:
            rows = rows_within(parquet, part.pieces, columns, BATCH_ROWS, BATCH_BYTES)
            groups = list(part.pieces)
            for some in [[group] for group in groups] if _has_inner_dictionary(parquet.schema_arrow) else [groups]:
                yield from map(checked, parquet.iter_batches(rows, row_groups=some, columns=list(columns)))

    def head(self, part: Part, columns: Sequence[str], records: int) -> Iterator[pa.RecordBatch]:
        """The first pages of the first row group."""
        with _open(part.path, ahead=False) as parquet:
            yield from map(checked, parquet.iter_batches(records, row_groups=[part.pieces[0]], columns=list(columns)))


def _has_inner_dictionary(kind: pa.Schema | pa.DataType) -> bool:
    """Whether structs hold dictionaries, which Arrow reads from no two row groups at a time."""
    fields = [field.type for field in kind if pa.types.is_struct(field.type)]
    return any(any(pa.types.is_dictionary(inner.type) for inner in field) for field in fields) or any(
        map(_has_inner_dictionary, fields)
    )


@contextmanager
def _open(path: str, *, ahead: bool = True) -> Iterator[pq.ParquetFile]:
    """Of a local file, pages are read as they are needed. Elsewhere each read is a request: a part's column chunks,
    compressed as they are, come in few large ones (190 MiB in 7 requests, not 421) and are held until it is done.
    """
    with open_table(path, "Parquet") as file:
        whole = ahead and Storage(path).local_path is None
        buffer = 0 if whole else _BUFFER_BYTES
        yield pq.ParquetFile(file, pre_buffer=whole, buffer_size=buffer, page_checksum_verification=True)

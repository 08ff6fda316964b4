"""Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from ringfeed.sharding.compute.batches import BATCH_BYTES, BATCH_ROWS
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.formats.parquet import batch_rows_within
from ringfeed.sharding.sources.base import Part, ReadSizes
from ringfeed.sharding.sources.files.inflation import bounded_memory
from ringfeed.sharding.sources.files.snapshot import SourceFile
from ringfeed.sharding.storage.storage import Storage

from .categories import mark_categories
from .int96 import int96_columns, int96_unit
from .parquet_batches import Open, read_row_groups
from .plain_arrays import plain_types
from .table_files import TableSource, check_batch, group_blocks, open_table
from .table_schemas import plain_schema

_BUFFER_BYTES = 1 << 20
_INT96 = {b"int96": b"yes"}  # marks fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSource(TableSource):
    """A source of Parquet files; a part is a run of row groups."""

    kind: ClassVar[str] = "Parquet"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".pq")
    reads_fields: ClassVar[bool] = True

    @classmethod
    def inspect(cls, file: SourceFile, sizes: ReadSizes) -> tuple[pa.Schema, Sequence[Part]]:
        with _open(file.url) as parquet:
            groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
            rows = [group.num_rows for group in groups]
            stored_bytes = [group.total_byte_size for group in groups]
            if min(rows, default=0) < 0 or sum(rows) != parquet.metadata.num_rows:
                raise pa.ArrowInvalid(
                    f"its footer counts {parquet.metadata.num_rows} rows, and {sum(rows)} in its row groups"
                )
            blocks = tuple(enumerate(rows))
            parts = [
                Part(path=file.url, pieces=blocks[start:stop], first_record=first)
                for start, stop, first in group_blocks(rows, stored_bytes, sizes)
            ]
            return mark_categories(_schema(parquet), lambda names: _first_record(parquet, file, names)), parts

    @classmethod
    def settle(
        cls, schemas: Sequence[tuple[str, pa.Schema]], wanted: Callable[[str], bool]
    ) -> tuple[list[tuple[str, pa.Schema]], str]:
        """Find the unit that holds all times of type INT96."""
        urls = [url for url, schema in schemas if any(_INT96.items() <= (f.metadata or {}).items() for f in schema)]
        unit = int96_unit(urls, wanted, lambda url, unit: _open(url, ahead=False, unit=unit)) if urls else "ns"
        if unit == "ns":
            return list(schemas), unit
        anew = {}
        for url in urls:
            with _open(url, ahead=False, unit=unit) as parquet:
                anew[url] = _schema(parquet)
        return [(url, anew.get(url, schema)) for url, schema in schemas], unit

    def read(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read batches of about `BATCH_BYTES`, or of fewer records where long values repeat."""
        with _opener(part.path, unit=self.unit) as (opened, file_bytes):
            parquet, groups = opened([]), [group for group, _ in part.pieces]
            rows = batch_rows_within(parquet, groups, columns, BATCH_ROWS, BATCH_BYTES)
            # Its footer as it is now: a file that was changed since the listing is not damaged.
            expected = sum(parquet.metadata.row_group(group).num_rows for group in groups)
            for batch in read_row_groups(opened, part.path, file_bytes, groups, columns, rows):
                expected -= batch.num_rows
                yield check_batch(batch)
            if expected and columns:
                raise pa.ArrowInvalid(f"its footer counts {expected} rows more than its columns hold")

    def head(self, part: Part, columns: Sequence[str], records: int) -> Iterator[pa.RecordBatch]:
        """Read the first pages of the first row group; fewer records if they are large."""
        with _opener(part.path, ahead=False, unit=self.unit) as (opened, file_bytes):
            first = [group for group, _ in part.pieces[:1]]
            records = batch_rows_within(opened([]), first, columns, records, BATCH_BYTES)
            batches = read_row_groups(opened, part.path, file_bytes, first, columns, records)
            yield from map(check_batch, batches)


def _schema(parquet: pq.ParquetFile) -> pa.Schema:
    """The schema of a file, with its columns that hold INT96 marked."""
    marked = int96_columns(parquet)
    fields = [
        field.with_metadata({**(field.metadata or {}), **_INT96}) if field.name in marked else field
        for field in plain_schema(plain_types(parquet.schema_arrow))
    ]
    return pa.schema(fields)


def _first_record(parquet: pq.ParquetFile, file: SourceFile, names: list[str]) -> pa.RecordBatch | None:
    """The first record of a file; None if it has none, or is damaged, which is left to those who read all records."""
    if not parquet.metadata.num_row_groups:
        return None
    stored_bytes = min(file.bytes, int(parquet.metadata.row_group(0).total_byte_size))
    with suppress(pa.ArrowException, OSError), bounded_memory(file.url, "row group", stored_bytes):
        return next(parquet.iter_batches(1, row_groups=[0], columns=names), None)
    return None


@contextmanager
def _open(path: str, *, ahead: bool = True, unit: str = "ns") -> Iterator[pq.ParquetFile]:
    with _opener(path, ahead=ahead, unit=unit) as (opened, _):
        yield opened([])


@contextmanager
def _opener(path: str, *, ahead: bool = True, unit: str = "ns") -> Iterator[tuple[Open, int]]:
    """Open a file to be read in one way or several, and return its size, too; it is closed at the end.

    A local file's pages are read when they are needed. In a store each read is a request, so a part's compressed
    column chunks are fetched in a few large ones (190 MiB in 7 requests, not 421) and held until the part is read.

    Args:
        path: path or URL.
        ahead: whether a part is read, and not some pages.
        unit: unit that times of type INT96 are read in.
    """
    with open_table(path, "Parquet", held=ahead) as file:
        whole = ahead and Storage(path).local_path is None
        metadata: list[pq.FileMetaData] = []

        def opened(dictionaries: Sequence[str]) -> pq.ParquetFile:
            parquet_file = pq.ParquetFile(
                file,
                metadata=metadata[0] if metadata else None,
                read_dictionary=list(dictionaries),
                pre_buffer=whole,
                buffer_size=0 if whole else _BUFFER_BYTES,
                page_checksum_verification=True,
                coerce_int96_timestamp_unit=unit,
            )
            metadata.append(parquet_file.metadata)
            return parquet_file

        try:
            yield opened, file.size()
        except (pa.ArrowException, OSError) as error:
            if "crypt" not in str(error):
                raise
            whole = "encrypted metadata" in str(error)
            others = "" if whole else ", or leave encrypted columns out with --drop-columns"
            raise SourceError(
                f"{path} is encrypted (Parquet's modular encryption), and ringfeed takes no keys; read it with pyarrow "
                f"and its keys, and write it unencrypted{others}"
            ) from error

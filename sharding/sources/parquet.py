"""Parquet files: one, a folder, or a glob; all of one schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import RingfeedError, SourceError
from ..schema import Schema
from ..storage import Storage
from .base import BATCH_ROWS, Part, Reject, fail_on_bad, fingerprint_files, list_files, open_file, translate_errors

__all__ = ["ParquetSource"]

_PART_ROWS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSource:
    """A source of Parquet files; a part is a run of row groups."""

    url: str
    schema: Schema
    parts: tuple[Part, ...]
    fingerprint: str

    @classmethod
    def open(cls, url: str, label: str | None) -> ParquetSource:
        """Read the footers.

        Raises:
            SourceError: there is no file, one is damaged, or their schemas differ.
        """
        files = list_files(url, (".parquet", ".pq"))
        paths = [file.url for file in files]
        if not paths:
            raise SourceError(f"there is no Parquet file (.parquet, .pq) at {url}")
        parts: list[Part] = []
        first: pa.Schema | None = None
        for path in paths:
            with _open(path) as file:
                schema = file.schema_arrow.remove_metadata()
                first = first or schema
                if not schema.equals(first):
                    raise SourceError(f"{path}: its schema differs from that of {paths[0]}; cast one to the other")
                parts += _parts(path, file.metadata)
        assert first is not None
        return cls(
            url=url, schema=Schema.from_arrow(first, label), parts=tuple(parts), fingerprint=fingerprint_files(files)
        )

    def narrow(self, columns: Collection[str]) -> ParquetSource:
        """The same records with these columns alone; no others are read."""
        kept = tuple(feature for feature in self.schema.features if feature.name in columns)
        label = self.schema.label if self.schema.label in columns else None
        return replace(self, schema=Schema(features=kept, label=label))

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """The label column alone."""
        if self.schema.label is None:
            with _open(part.path) as file:
                yield pa.nulls(sum(file.metadata.row_group(group).num_rows for group in part.pieces))
            return
        for batch in _batches(part, [self.schema.label]):
            yield self.schema[self.schema.label].conform(batch.column(0))

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """The records; they are complete."""
        for batch in _batches(part, self.schema.names):
            yield self.schema.conform(batch)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The head of the part's first row group."""
        with _open(part.path, pre_buffer=False) as file:
            batch = next(file.iter_batches(records, row_groups=[part.pieces[0]], columns=list(self.schema.names)), None)
        return self.schema.arrow.empty_table().to_batches()[0] if batch is None else self.schema.conform(batch)

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Nothing is left to do."""
        return drafts


def _batches(part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with _open(part.path) as file:
        yield from file.iter_batches(BATCH_ROWS, row_groups=list(part.pieces), columns=list(columns))


@contextmanager
def _open(path: str, *, pre_buffer: bool = True) -> Iterator[pq.ParquetFile]:
    with open_file(path) as file:
        local = Storage(path).local_path  # Arrow reads what is local by itself, without a way through Python
        try:
            yield pq.ParquetFile(file if local is None else pa.OSFile(str(local)), pre_buffer=pre_buffer)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, RingfeedError) or (isinstance(error, OSError) and error.errno is not None):
                raise
            raise translate_errors(path, error, "the file is damaged or no Parquet; write it again") from error


def _parts(path: str, metadata: pq.FileMetaData) -> Iterator[Part]:
    """Runs of row groups of about `_PART_ROWS` rows."""
    groups: list[int] = []
    first = rows = 0
    for group in range(metadata.num_row_groups):
        groups.append(group)
        rows += metadata.row_group(group).num_rows
        if rows >= _PART_ROWS or group == metadata.num_row_groups - 1:
            yield Part(path=path, pieces=tuple(groups), first_record=first)
            groups, first, rows = [], first + rows, 0

"""Writes records in memory to a file: data frames, Arrow tables and readers, dicts, generators.

A build reads its source several times, in several processes. Records in memory can be read once, perhaps, and in one
process; so they are written to the spill folder first, and hashed on the way, which tells equal records apart from
others when a build resumes or a dataset is appended to.
Tested in tests/sharding/building/test_memory_sources.py.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import IO, Any

import pyarrow as pa

from ringfeed.sharding.compute.batches import slice_batch
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.schema import categories_of, insert_nulls, with_categories
from ringfeed.sharding.sources.files.find import storage_error
from ringfeed.sharding.sources.tables.categories import mark_categories
from ringfeed.sharding.sources.tables.memory import MemoryRecords
from ringfeed.sharding.sources.tables.plain_arrays import holds_union, plain_batch, plain_types
from ringfeed.sharding.storage.storage import Storage

from .content_hash import ContentHash
from .python_function import batched
from .python_values import RecordTypes

IN_MEMORY = "data in memory"  # in place of a URL
_FILE = "records.arrow"
_IMAGES = b"huggingface"  # the metadata that say which columns are images


class RecordSpool:
    """Dicts in a temporary file without a name, taken one after the other, and the types that hold all of them.

    A value is copied when it is taken: its producer may use an array or a list again.
    """

    def __init__(self, folder: str | None = None) -> None:
        """Open the file in a folder; None: the system's folder for temporary files."""
        self._types = RecordTypes(IN_MEMORY)
        self._folder = folder or tempfile.gettempdir()
        with Storage(self._folder).errors("write", ""):
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # closed by `close`

    @property
    def types(self) -> pa.Schema:
        """The types of all columns so far."""
        return self._types.schema()

    def add(self, record: Mapping[str, Any]) -> None:
        """Take a record.

        Raises:
            SourceError: it is no dict, or a value fits no column.
            StorageError: the disk is full.
        """
        entries = self._types.add(record)
        try:
            pickle.dump(entries, self._file, pickle.HIGHEST_PROTOCOL)
        except OSError as error:
            raise storage_error(self._folder, error) from error

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._file.seek(0)
        for _ in range(self._types.records):
            yield pickle.load(self._file)

    def close(self) -> None:
        """Close the file, which removes it."""
        self._file.close()


def is_in_memory(source: object) -> bool:
    """Whether a source is records in memory, written to a file or not yet, and no URL or path."""
    if isinstance(source, (str, bytes, bytearray, Mapping)):
        return False
    return isinstance(source, (MemoryRecords, Iterable, pa.RecordBatch)) or hasattr(source, "__arrow_c_stream__")


def write_records(source: Any, folder: Storage) -> MemoryRecords:
    """Write records in memory to a file in a folder; a generator or reader is read to its end.

    Args:
        source: a DataFrame of pandas or Polars, an Arrow table, batch or reader, or anything else that exports an Arrow
            stream; an iterable of dicts, or of Arrow batches or tables of one schema; a `RecordSpool`.

    Raises:
        SourceError: there are no records, or no column can hold their values.
    """
    items, types = _typed(source, folder)
    try:
        if twice := next((name for name in types.names if types.names.count(name) > 1), None):
            raise SourceError(f"{IN_MEMORY}: column names must differ, got {twice!r} more than once; rename one")
        content = ContentHash()
        with folder.open_output(_FILE, durable=False) as file:
            _write(items, types, file, content)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{IN_MEMORY}: {brief(error)}; fix it, or write it to Parquet and build from that") from error
    finally:
        if isinstance(items, RecordSpool):
            items.close()
    return MemoryRecords(name=IN_MEMORY, url=folder.locate(_FILE), fingerprint=content.digest())


def _typed(source: Any, folder: Storage) -> tuple[Iterable[Any], pa.Schema]:
    """Return dicts or Arrow batches that can be read once more, and their types."""
    iterator = iter(_items(source))
    first = next(iterator, None)
    if first is not None and isinstance(source, RecordSpool):
        return source, source.types
    if first is None:
        raise SourceError(f"{IN_MEMORY} holds no records; a generator can be read only once, so make a new one")
    items = chain([first], iterator)
    if isinstance(first, (pa.RecordBatch, pa.Table)):
        kept = {_IMAGES: first.schema.metadata[_IMAGES]} if _IMAGES in (first.schema.metadata or {}) else None
        types = mark_categories(plain_types(first.schema), lambda _: first)
        if odd := next((field for field in types if holds_union(field.type)), None):
            raise SourceError(
                f"{IN_MEMORY}: column {odd.name!r} has type {odd.type}, which no feature can hold; leave it out, with "
                f"drop_columns([{odd.name!r}]) of the table, or convert it first"
            )
        return map(_plain, items), types.with_metadata(kept)
    spool = RecordSpool(None if folder.local_path is None else str(folder.local_path))
    try:
        for record in items:
            spool.add(record)
        return spool, spool.types
    except BaseException:
        spool.close()
        raise


def _plain(item: pa.RecordBatch | pa.Table) -> pa.Table:
    batches = [item] if isinstance(item, pa.RecordBatch) else item.to_batches()
    return pa.Table.from_batches(map(plain_batch, batches), plain_types(item.schema))


def _items(source: Any) -> Any:
    """Return an iterable of dicts, or of Arrow batches or tables."""
    if _is_frame(source):
        return [_table_of(source)]
    if isinstance(source, (pa.RecordBatch, pa.Table)):
        return [source]
    return pa.RecordBatchReader.from_stream(source) if hasattr(source, "__arrow_c_stream__") else source


def _is_frame(source: object) -> bool:
    """Whether a source is a DataFrame of pandas, which need not be installed."""
    return type(source).__name__ == "DataFrame" and type(source).__module__.partition(".")[0] == "pandas"


def _table_of(frame: Any) -> pa.Table:
    """Return a DataFrame of pandas as a table; levels of its index are columns if they have names."""
    named = any(level is not None for level in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=named)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SourceError(f"{IN_MEMORY}: {brief(error)}; fix it") from error


def _write(items: Iterable[Any], types: pa.Schema, sink: IO[bytes], content: ContentHash) -> None:
    stored = pa.schema([_stored_field(field) for field in types], types.metadata)
    with pa.ipc.new_file(sink, stored) as writer:
        for batch in batched(IN_MEMORY, items, types, types.names):
            for piece in list(slice_batch(batch)) or [batch]:
                columns = map(_stored, types, piece.columns)
                whole = pa.RecordBatch.from_arrays(list(columns), schema=stored)
                content.add(whole)
                writer.write_batch(whole)


def _stored_field(field: pa.Field) -> pa.Field:
    return with_categories(pa.field(field.name, _stored(field, pa.nulls(0, field.type)).type), categories_of(field))


def _stored(field: pa.Field, column: pa.Array) -> pa.Array:
    """A column as the file holds it: tensors nested by their shape, and no dictionaries, which may differ by batch."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    shape = (field.metadata or {}).get(b"shape", b"").decode()
    if not shape or not pa.types.is_fixed_size_list(column.type):
        return column
    present = column.is_valid()
    values = column.filter(present).flatten()
    for size in reversed(shape.split(",")):
        values = pa.FixedSizeListArray.from_arrays(values, int(size))
    return insert_nulls(values, present)

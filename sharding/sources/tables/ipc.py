"""Arrow IPC files, Feather version 2 among them, and streams, as Arrow, pandas, Polars and Hugging Face write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from ringfeed.sharding.compute.batches import slice_batch
from ringfeed.sharding.errors import RingfeedError, SourceError
from ringfeed.sharding.formats.ipc_claims import BatchClaims, Block, block_places, claimed_bytes
from ringfeed.sharding.messages import brief
from ringfeed.sharding.sources.base import Part, ReadSizes
from ringfeed.sharding.sources.files.inflation import check_held
from ringfeed.sharding.sources.files.snapshot import SourceFile
from ringfeed.sharding.storage.storage import Storage

from .categories import mark_categories
from .plain_arrays import plain_batch, plain_types
from .table_files import TableSource, check_batch, group_blocks, open_table, part_limits
from .table_schemas import plain_schema

_FILE_MAGIC, _FEATHER_1_MAGIC = b"ARROW1", b"FEA1"
_CONTINUED = b"\xff\xff\xff\xff"  # starts each message since Arrow 0.15
_OLD_END = b"\0\0\0\0"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_FILE_START = 8  # the magic bytes and their padding come first
_FILE_END, _FOOTER_LENGTH = 10, 4  # the length of the footer and the magic bytes come last


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcSource(TableSource):
    """A source of Arrow IPC files and streams. Both are named ``.arrow``; their first bytes tell which they are.

    A part is a run of a file's record batches as one block, with its bounds; or a whole stream, which has no footer to
    find them in, and no pieces.
    """

    kind: ClassVar[str] = "Arrow IPC"
    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc", ".arrows")

    @classmethod
    def inspect(cls, file: SourceFile, sizes: ReadSizes) -> tuple[pa.Schema, Sequence[Part]]:
        """Read the footer, or the head of a stream."""
        if not _is_file(file.url):
            _check_claims(file, 0)
            with _open_stream(file.url, None) as stream:
                return _schema(stream.schema, lambda: next(iter(stream), None)), [Part(path=file.url)]
        _check_claims(file, _FILE_START)
        with _open_file(file.url, None) as (reader, get_batch):
            batches = reader.num_record_batches
            schema = _schema(reader.schema, lambda: get_batch(0) if batches else None)
            if file.bytes <= part_limits(sizes)[1]:
                return schema, [Part(path=file.url, pieces=(((0, batches), _count_rows(reader)),))] if batches else []
        with open_table(file.url, "Arrow IPC", mapped=True) as source:  # the footer lacks the batches' lengths
            rows = [_read_claims(source, block).rows for block in _blocks(source)[1]]
        stored_bytes = [file.bytes // batches] * batches
        return schema, [
            Part(path=file.url, pieces=(((start, stop), sum(rows[start:stop])),), first_record=first)
            for start, stop, first in group_blocks(rows, stored_bytes, sizes)
        ]

    def count(self, part: Part) -> int:
        """Return the number of records; for a stream, read its narrowest column to count them."""
        if part.pieces:
            return TableSource.count(self, part)
        with _open_stream(part.path, None) as stream:
            narrowest = _narrowest(stream.schema)
        with _open_stream(part.path, narrowest) as stream:
            return sum(batch.num_rows for batch in stream)

    def blocks(self, part: Part) -> Iterator[tuple[Part, int]]:
        """Yield the whole part."""
        yield part, self.count(part)

    def read(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read the record batches as they were written."""
        if part.pieces:
            with _open_file(part.path, columns) as (_, get_batch):
                ((bounds, _),) = part.pieces
                yield from _plain_slices(map(get_batch, range(*bounds)))
        else:
            with _open_stream(part.path, columns) as stream:
                yield from _plain_slices(stream)


def _schema(stored: pa.Schema, first: Callable[[], pa.RecordBatch | None]) -> pa.Schema:
    """The schema of a file, with the categories of its first batch."""
    return mark_categories(plain_schema(plain_types(stored)), lambda _: first())


def _plain_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode batches slice by slice: values that rows share may be long."""
    for batch in batches:
        for piece in slice_batch(check_batch(batch)):
            yield plain_batch(piece)


def _check_claims(file: SourceFile, start: int) -> None:
    """Refuse a local file whose compressed buffers would take far more memory than they should.

    A file in a store is checked as it is read. `start` is the offset of the first message.

    Raises:
        SourceError: they would.
    """
    if Storage(file.url).local_path is None:
        return
    with open_table(file.url, "Arrow IPC", mapped=True) as source:
        source.seek(start)
        with _damaged():
            for message in pa.ipc.MessageReader.open_stream(source):
                if message.body is not None:
                    check_held(file.url, "record batch", message.body.size, claimed_bytes(message))


def _count_rows(reader: pa.ipc.RecordBatchFileReader) -> int:
    if hasattr(reader, "count_rows"):  # not in old versions of pyarrow
        return int(reader.count_rows())
    return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))


def _is_file(path: str) -> bool:
    """Whether a path is an IPC file with a footer, and no stream."""
    with open_table(path, "Arrow IPC") as source:
        magic = source.read(len(_FILE_MAGIC))
    if magic.startswith(_FEATHER_1_MAGIC):
        raise SourceError(f"{path} is Feather version 1, which is obsolete; write it again as version 2")
    return bool(magic == _FILE_MAGIC)


@contextmanager
def _open_file(
    path: str, columns: Sequence[str] | None
) -> Iterator[tuple[pa.ipc.RecordBatchFileReader, Callable[[int], pa.RecordBatch]]]:
    """Open a file; return its reader, and what reads a record batch, first checked in a store: local files were."""
    with open_table(path, "Arrow IPC", mapped=True, held=True) as source:
        reader = pa.ipc.open_file(source)
        if columns is not None:
            reader = pa.ipc.open_file(source, options=_only(reader.schema, columns))
        dictionaries, batches = ([], []) if Storage(path).local_path is not None else _blocks(source)

        def get_batch(number: int) -> pa.RecordBatch:
            while dictionaries:
                _check_block(path, source, dictionaries.pop())
            if batches:
                _check_block(path, source, batches[number])
            return reader.get_batch(number)

        yield reader, get_batch


def _blocks(source: pa.NativeFile) -> tuple[list[Block], list[Block]]:
    """The places of a file's dictionaries and record batches."""
    source.seek(source.size() - _FILE_END)
    size = int.from_bytes(source.read(_FOOTER_LENGTH), "little")
    source.seek(source.size() - _FILE_END - size)
    with _damaged():
        return block_places(source.read(size))


def _check_block(path: str, source: pa.NativeFile, block: Block) -> None:
    with _damaged():
        claims = _read_claims(source, block)
        body = source.read_buffer(block[2]) if claims.is_compressed else None
        check_held(path, "record batch", block[2], claims.bytes_in(body, block[2]))


def _read_claims(source: pa.NativeFile, block: Block) -> BatchClaims:
    """What the metadata of a record batch claims; the file is at its body then."""
    offset, metadata_bytes, _ = block
    if min(block) < 0 or sum(block) > source.size():
        raise pa.ArrowInvalid("a record batch lies beyond the end of the file")
    source.seek(offset)
    metadata = source.read(metadata_bytes)
    with _damaged():
        return BatchClaims.of(metadata[8 if metadata.startswith(_CONTINUED) else 4 :])


@contextmanager
def _damaged() -> Iterator[None]:
    """Raise errors of damaged metadata as Arrow does."""
    try:
        yield
    except RingfeedError:
        raise
    except (ValueError, EOFError) as error:
        raise error if isinstance(error, pa.ArrowInvalid) else pa.ArrowInvalid(brief(error)) from error


@contextmanager
def _open_stream(path: str, columns: Sequence[str] | None) -> Iterator[pa.ipc.RecordBatchStreamReader]:
    with open_table(path, "Arrow IPC", mapped=True, read_ahead=True) as source:
        if not _is_ended(source):  # else a stream cut between two batches would read as a shorter one
            raise pa.ArrowInvalid("the Arrow stream has no end mark: it is cut short, or its writer did not close it")

        def opened(options: pa.ipc.IpcReadOptions | None = None) -> pa.ipc.RecordBatchStreamReader:
            source.seek(0)
            checked = source if Storage(path).local_path else pa.PythonFile(_CheckedStream(path, source), "r")
            return pa.ipc.open_stream(checked, options=options)

        reader = opened()
        yield reader if columns is None else opened(_only(reader.schema, columns))


class _CheckedStream:
    """A stream in a store, each of whose messages is checked before Arrow reads it."""

    closed = False

    def __init__(self, path: str, source: pa.NativeFile) -> None:
        self._path, self._messages = path, iter(pa.ipc.MessageReader.open_stream(source))
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        pieces = []
        while size and (self._rest or self._next()):
            piece, self._rest = self._rest[:size], self._rest[size:]
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _next(self) -> bool:
        message = next(self._messages, None)
        if message is None:
            return False
        if message.body is not None:
            with _damaged():
                check_held(self._path, "record batch", message.body.size, claimed_bytes(message))
        self._rest = memoryview(message.serialize())
        return True


def _is_ended(source: pa.NativeFile) -> bool:
    """Whether a stream has its end mark."""
    size = source.size()
    mark = _END if source.read(len(_CONTINUED)) == _CONTINUED else _OLD_END
    source.seek(max(0, size - len(mark)))
    if source.read() != mark:
        return False
    if mark == _END:
        return True
    source.seek(0)  # the padding of a batch may look like the mark of an old stream, so walk all messages
    messages, last = pa.ipc.MessageReader.open_stream(source), 0
    for _ in messages:
        last = source.tell()
    return bool(last + len(mark) == size)


def _only(schema: pa.Schema, columns: Sequence[str]) -> pa.ipc.IpcReadOptions:
    return pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in columns])


def _narrowest(schema: pa.Schema) -> list[str]:
    """Return the cheapest column to read for counting rows."""
    widths = {field.name: field.type.bit_width for field in schema if pa.types.is_primitive(field.type)}
    return [min(widths, key=lambda name: widths[name])] if widths else schema.names[:1]

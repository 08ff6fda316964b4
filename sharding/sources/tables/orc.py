"""ORC files, as Hive and Spark write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyarrow import orc

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.formats.protobuf_wire import read_fields
from ringfeed.sharding.messages import brief
from ringfeed.sharding.sources.base import Part, ReadSizes
from ringfeed.sharding.sources.files.inflation import bounded_memory, check_held
from ringfeed.sharding.sources.files.snapshot import SourceFile

from .table_files import TableSource, check_batch, group_blocks, open_table
from .table_schemas import plain_schema

# Field numbers of orc_proto.proto: FileTail.footer, Footer.stripes, and of StripeInformation.
_FOOTER, _STRIPES, _SIZES, _ROWS = 2, 3, (2, 3, 4), 5
_STATISTICS, _SUMS = 7, ((4, 3), (8, 1))  # Footer.statistics, and the sums of lengths of its texts and binaries


@dataclass(frozen=True, slots=True, kw_only=True)
class OrcSource(TableSource):
    """A source of ORC files; a part is a run of stripes."""

    kind: ClassVar[str] = "ORC"
    suffixes: ClassVar[tuple[str, ...]] = (".orc",)

    @classmethod
    def inspect(cls, file: SourceFile, sizes: ReadSizes) -> tuple[pa.Schema, Sequence[Part]]:
        with _open(file.url) as reader:
            rows, stored_bytes = _stripes(reader.reader.serialized_file_tail())
            if len(rows) != reader.nstripes or sum(rows) != reader.nrows:
                raise pa.ArrowInvalid(
                    f"the ORC footer has {sum(rows)} rows in {len(rows)} stripes, not {reader.nrows} in "
                    f"{reader.nstripes}"
                )
            if sum(stored_bytes) > file.bytes:
                raise pa.ArrowInvalid(f"its stripes take {sum(stored_bytes):,} bytes of {file.bytes:,}")
            fixed_bytes = sum(kind.bit_width for kind in reader.schema.types if pa.types.is_primitive(kind)) // 8
            row_bytes = fixed_bytes + _text_bytes(reader.reader.serialized_file_tail()) // max(reader.nrows, 1)
            for records, stored in zip(rows, stored_bytes, strict=True):
                check_held(file.url, "stripe", stored, records * row_bytes)
            blocks = tuple(enumerate(rows))
            return plain_schema(reader.schema), [
                Part(path=file.url, pieces=blocks[start:stop], first_record=first)
                for start, stop, first in group_blocks(rows, stored_bytes, sizes)
            ]

    def read(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read each stripe as a batch, the least that Arrow reads."""
        with _open(part.path) as reader:
            names = list(columns) or reader.schema.names[:1]  # without columns, Arrow reads no rows
            _, sizes = _stripes(reader.reader.serialized_file_tail())
            for stripe, _ in part.pieces:
                with bounded_memory(part.path, "stripe", sizes[stripe]):  # its statistics may lie
                    batch = _read_stripe(reader, stripe, names, part.path)
                yield check_batch(batch)


@contextmanager
def _open(path: str) -> Iterator[orc.ORCFile]:
    with open_table(path, "ORC") as source:
        yield orc.ORCFile(source)


def _read_stripe(reader: orc.ORCFile, stripe: int, names: Sequence[str], path: str) -> pa.RecordBatch:
    """Read columns of a stripe; raises a SourceError if a time exceeds the nanoseconds that Arrow reads times in."""
    try:
        return reader.read_stripe(stripe, columns=list(names))
    except pa.ArrowInvalid as error:
        if "nanosecond" not in str(error):
            raise
        if len(names) > 1:
            for name in names:
                _read_stripe(reader, stripe, [name], path)
        raise SourceError(
            f"{path}: column {names[0]!r} holds a time outside of the years 1677 to 2262, the range of the nanoseconds "
            f"that ORC is read in ({brief(error)}); leave it out by --drop-columns, or write the times as integers"
        ) from error


def _stripes(tail: bytes) -> tuple[list[int], list[int]]:
    """Return the rows and bytes of each stripe from a serialised FileTail; Arrow gives only their sums."""
    (footer,) = _messages(tail, _FOOTER)
    stripes = [{number: int(value) for number, value in read_fields(stripe)} for stripe in _messages(footer, _STRIPES)]
    return [stripe[_ROWS] for stripe in stripes], [sum(stripe.get(n, 0) for n in _SIZES) for stripe in stripes]


def _text_bytes(tail: bytes) -> int:
    """The bytes of all texts and binaries of a file, from the statistics of a serialised FileTail."""
    (footer,) = _messages(tail, _FOOTER)
    sums = (
        dict(read_fields(entry)).get(total, 0)
        for column in _messages(footer, _STATISTICS)
        for kind, total in _SUMS
        for entry in _messages(column, kind)
    )
    return sum(int(value) >> 1 for value in sums if isinstance(value, int))  # zigzag: no sum is negative


def _messages(message: bytes, number: int) -> list[bytes]:
    return [value for field, value in read_fields(message) if field == number and isinstance(value, bytes)]

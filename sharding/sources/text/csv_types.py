"""The types of delimited text's columns: the narrowest that hold every value of every block."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import SourceError
from ...messages import counted
from ...schema import Feature
from ..base import BadRecord, Part, Reject, ignore_bad
from ..files.find import SourceFile
from .blocks import Block, Mark, Span, cut_parts, read_blocks
from .csv_parse import MISSING, Header, parse_block
from .csv_records import cut_records
from .declared_types import beyond_integers, cast_text, is_farther

__all__ = ["infer_types"]

_HEXADECIMAL = re.compile(rb"0[xX][0-9A-Fa-f]{1,16}(?![0-9A-Fa-f])")  # no more digits: hashes and the like are text
_NUMBERS = (pa.int64(), pa.uint64(), pa.float64())
_DATES = (pa.date32(), pa.timestamp("s"), pa.timestamp("ns"))
_ZONED = (pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"))
_LAST = (pa.float64(), pa.string())


def infer_types(
    files: Sequence[SourceFile],
    headers: Sequence[Header],
    given: Collection[str],
    reject: Reject,
    wanted: Callable[[str], bool],
    block_bytes: int,
) -> tuple[pa.Schema, list[Part]]:
    """Read all files once, and columns that are still in doubt once more.

    Args:
        files: to read.
        headers: of the files; all of the same names.
        given: columns that are left as text.
        reject: called with each line that cannot be read.
        wanted: whether a column is, by its name.
        block_bytes: what is read at once.

    Returns:
        The type of each column, text where it has no value, and the parts of all files.

    Raises:
        SourceError: there is no record, or a file holds not what CSV does; or a column holds numbers that would be
            rounded or infinite.
    """
    types = _Types(headers[0].names, given)
    first_bad: list[BadRecord] = []

    def note(record: BadRecord) -> None:
        reject(record)
        first_bad[:] = first_bad or [record]

    parts: list[Part] = []
    found = False
    for file, header in zip(files, headers, strict=True):
        marks: list[Mark] = []
        for block in _blocks(file, header, block_bytes):
            rows = parse_block(file.url, header, block, types.text, None, note)
            schema = rows.table.schema
            for name, least in _beyond_int64(rows.table):
                types.large[name] = None
                if least >= 0 and _holds(file, header, block, name, pa.uint64()):
                    schema = _changed(schema, name, pa.uint64())
            for name in _hexadecimal(file, header, block, schema):
                schema = _changed(schema, name, pa.string())
            types.add(schema)
            marks.append(Mark.of(block, rows.table.num_rows, clean=rows.clean))
        parts += cut_parts(file, marks)
        found = found or any(mark.records for mark in marks)
    if not found:
        if first_bad:
            raise SourceError(f"{first_bad[0]}: there is no other record")
        what = "the file is empty" if len(files) == 1 else f"this file and {counted(len(files) - 1, 'other')} are empty"
        raise SourceError(f"{files[0].url}: {what}; a CSV needs a header and at least one line")
    for name in types.unsure:
        while types.known[name] not in _LAST and not all(
            _holds(file, header, block, name, types.known[name])
            for file, header in zip(files, headers, strict=True)
            for block in _blocks(file, header, block_bytes)
        ):
            types.widen(name)
    for name in types.large:
        if wanted(name) and types.known[name] == pa.float64():
            _check_large(list(zip(files, headers, strict=True)), name, block_bytes)
    return types.schema(), parts


def _blocks(file: SourceFile, header: Header, block_bytes: int) -> Iterator[Block]:
    span = Span(start=header.start, line=header.line)
    return read_blocks(file.url, span, partial(cut_records, delimiter=header.delimiter), block_bytes)


def _holds(file: SourceFile, header: Header, block: Block, name: str, kind: pa.DataType) -> bool:
    """Whether a type holds all values of a column in a block."""
    try:
        parse_block(file.url, header, block, {name: kind}, [name], ignore_bad)
        return True
    except SourceError:
        return False


def _hexadecimal(file: SourceFile, header: Header, block: Block, schema: pa.Schema) -> list[str]:
    """Columns of a block that were taken for integers, but hold such as 0x1F, which Arrow reads as 31: text, mostly."""
    integers = [field.name for field in schema if field.type in (pa.int64(), pa.uint64())]
    if not integers or not _HEXADECIMAL.search(block.data):
        return []
    rows = parse_block(file.url, header, block, dict.fromkeys(integers, pa.string()), integers, ignore_bad)
    columns = zip(rows.table.column_names, rows.table.columns, strict=True)
    return [name for name, text in columns if pc.any(pc.match_substring_regex(text, "^\\s*0[xX]"), min_count=0).as_py()]


def _changed(schema: pa.Schema, name: str, kind: pa.DataType) -> pa.Schema:
    """The schema, with another type for a column."""
    return schema.set(schema.get_field_index(name), pa.field(name, kind))


class _Types:
    """What is known of the columns after some blocks.

    The types of a block hold its values. Where two blocks differ, the wider type may still not hold all values of the
    other, as nanoseconds do not hold every date: such columns are `unsure`, to be read once more.
    """

    def __init__(self, names: Iterable[str], given: Collection[str]) -> None:
        self.known = {name: pa.string() if name in given else pa.null() for name in names}
        self.unsure: dict[str, None] = {}
        self.large: dict[str, None] = {}  # columns with numbers beyond int64

    @property
    def text(self) -> dict[str, pa.DataType]:
        """The columns that need not be inferred any more."""
        return {name: kind for name, kind in self.known.items() if kind == pa.string()}

    def add(self, schema: pa.Schema) -> None:
        """The types of one more block."""
        for field in schema:
            before = self.known[field.name]
            if before != field.type:
                self.known[field.name], sure = _join(before, field.type)
                if not sure:
                    self.unsure[field.name] = None

    def widen(self, name: str) -> None:
        """The type of an unsure column does not hold a value."""
        self.known[name] = pa.float64() if self.known[name] == pa.uint64() else pa.string()

    def schema(self) -> pa.Schema:
        """Of all columns; those without any value are text."""
        return pa.schema([(n, pa.string() if kind == pa.null() else kind) for n, kind in self.known.items()])


def _join(one: pa.DataType, other: pa.DataType) -> tuple[pa.DataType, bool]:
    """The narrowest type for the values of two, and whether it surely holds them."""
    if pa.null() in (one, other):
        return (other if one == pa.null() else one), True
    if one in _NUMBERS and other in _NUMBERS:
        wider = _NUMBERS[max(_NUMBERS.index(one), _NUMBERS.index(other))]
        return wider, wider != pa.uint64()
    for chain in (_DATES, _ZONED):
        if one in chain and other in chain:
            return chain[max(chain.index(one), chain.index(other))], False
    return pa.string(), True


def _beyond_int64(table: pa.Table) -> Iterator[tuple[str, float]]:
    """Columns that were taken for floats, but might hold integers beyond int64, and the least value of each."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.type == pa.float64():
            bounds = pc.min_max(column).as_py()
            if bounds["max"] is not None and (bounds["max"] >= 2.0**63 or bounds["min"] <= -(2.0**63)):
                yield name, bounds["min"]


def _check_large(sources: Sequence[tuple[SourceFile, Header]], name: str, block_bytes: int) -> None:
    """Refuse a column of integers alone that would be rounded, and numbers that would be infinite.

    Raises:
        SourceError: names the first value that is too large.
    """
    far: tuple[str, int, int] | None = None
    integers, low = True, 0
    feature = Feature(name=name, dtype="float64")
    for file, header in sources:
        for block in _blocks(file, header, block_bytes):
            rows = parse_block(file.url, header, block, {name: pa.string()}, [name], ignore_bad)
            text = rows.table.column(0).combine_chunks()
            for row in np.flatnonzero(cast_text(text, feature, MISSING)[1]).tolist():
                raise SourceError(
                    f"{file.url}: line {rows.line(row)}: {name!r}: the number {text[row].as_py()[:20]} is beyond what "
                    f"a float64 holds; mend it, or say by --schema that {name!r} is a string"
                )
            there = pc.invert(pc.is_in(text, pa.array(MISSING)))
            whole = pc.match_substring_regex(text, "^-?[0-9]+$")
            integers = integers and pc.all(pc.or_(whole, pc.invert(there)), min_count=0).as_py()
            if not integers:
                continue
            long = pc.and_(there, pc.greater(pc.utf8_length(text), 18))  # of fewer digits, all are of 64 bits
            low = min(low, -1 if pc.any(pc.starts_with(text, "-"), min_count=0).as_py() else 0)
            for row in np.flatnonzero(long.to_numpy(zero_copy_only=False)).tolist():
                value = int(text[row].as_py())
                if not -(1 << 63) <= value < 1 << 63 and (far is None or is_farther(value, far[2])):
                    far = (file.url, rows.line(row), value)
    if far is not None and integers:
        raise SourceError(beyond_integers(far[0], far[1], name, far[2], low))

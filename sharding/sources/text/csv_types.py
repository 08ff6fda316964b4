"""Types of CSV columns: the narrowest that hold every value of every block.

A column has the type that Arrow reads from all its values, and is text if there is none. Integers keep every digit: one
may have a plus sign, and none is rounded. A spelling that a number would lose makes text: 0x1F, and labels such as 1
and 01.
Tested in tests/sharding/sources/text/test_csv.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.messages import counted
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources.base import BadRecord, Part, ignore_bad
from ringfeed.sharding.sources.files.snapshot import SourceFile

from .blocks import Block, Mark, Span, cut_parts, read_blocks
from .csv_parse import MISSING, Header, Rows, cut_records, parse_block, with_points
from .declared_types import beyond_integers, cast_text, exceeds_more
from .doubtful_text import (
    count_missing,
    first_texts,
    warn_of_commas,
    warn_of_missing,
    warn_of_odd_texts,
    warn_of_spellings,
)
from .text_source import InferenceOptions

_HEXADECIMAL = re.compile(rb"0[xX][0-9A-Fa-f]{1,16}(?![0-9A-Fa-f])")  # longer ones are hashes, which stay text anyway
# A pattern that begins with a character is found ten times as fast as one that begins by looking behind it.
_PLUS = re.compile(rb"\+(?<![0-9eE.]\+)[0-9]")
_LEADING_ZERO = re.compile(rb"0(?<![0-9.:/-]0)[0-9]")
_INTEGER = "^[ \t]*[+-]?[0-9]+[ \t]*$"
_INTEGERS = (pa.int64(), pa.uint64())
_NUMBERS = (pa.int64(), pa.uint64(), pa.float64())
_DATES = (pa.date32(), pa.timestamp("s"), pa.timestamp("ns"))
_ZONED = (pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"))
_WIDEST = (pa.float64(), pa.string())  # hold all values of narrower types


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredTypes:
    """What the first pass over some files finds."""

    types: pa.Schema  # type that each column is parsed as; string if it has no value
    # Features of the columns that are parsed as text but hold integers, some with a plus sign, which Arrow reads as
    # floats
    signed: dict[str, Feature]
    parts: list[Part]


def infer_types(
    files: Sequence[SourceFile], headers: Sequence[Header], label: str | None, options: InferenceOptions
) -> InferredTypes:
    """Infer the types of all columns; reads the files once, and columns of doubtful types again.

    A label of integers is text if one of them is spelled in several ways, such as 1 and 01: these may be two classes.

    Args:
        headers: header of each file; all have the same names, in any order.
        label: name of the label column, or None.
        options: declared columns, which are read as text, and what the build needs.

    Raises:
        SourceError: there is no record, a file is not CSV, or a column's numbers would be rounded or become infinite.
    """
    types = _ColumnTypes(headers[0].names, options.declared)
    parts = _survey(files, headers, types, options)
    for name in types.unsure:
        _settle(headers, types, name)
    for name in types.beyond_int64:
        if options.wanted(name) and types.known[name] == pa.float64():
            _check_exact(headers, name)
    if label in types.respelled and types.known[label] in _INTEGERS:
        _settle_label(headers, types, label)
    first = {name: text for name, text in types.first.items() if options.wanted(name) and name != label}
    odd_texts = warn_of_commas(files[0].url, first, headers[0].delimiter, headers[0].dialect.decimal)
    if not options.unlabelled:
        warn_of_odd_texts(files[0].url, odd_texts)
        warn_of_missing(files[0].url, _count_missing(headers, types, options), label, options.null_values)
    schema = types.schema()
    integers = [field for field in schema if field.name in types.signed and field.type in _INTEGERS]
    for field in integers:
        schema = _with_type(schema, field.name, pa.string())
    return InferredTypes(
        types=schema,
        signed={field.name: Feature(name=field.name, dtype=str(field.type)) for field in integers},
        parts=parts,
    )


def _survey(
    files: Sequence[SourceFile], headers: Sequence[Header], types: _ColumnTypes, options: InferenceOptions
) -> list[Part]:
    """Read all files: widen the types by each block, and return the parts."""
    bad: list[BadRecord] = []

    def note(record: BadRecord) -> None:
        options.reject(record)
        bad[:] = bad or [record]

    parts: list[Part] = []
    records = 0
    for file, header in zip(files, headers, strict=True):
        marks: list[Mark] = []
        for block in _blocks(header):
            rows = parse_block(header, block, types.text, None, note)
            types.add(_block_schema(header, rows, types))
            types.count_missing(rows.table)
            types.first = types.first or first_texts(rows.table, [*types.known.keys() - options.declared.keys()])
            marks.append(Mark.of(block, rows.table.num_rows, clean=rows.clean))
            records += rows.table.num_rows
        parts += cut_parts(file, marks, options.sizes.part_bytes, header.dialect.reader)
    if records:
        return parts
    if bad:
        raise SourceError(f"{bad[0]}: there is no other record")
    others = len(files) - 1
    what = f"this file and {counted(others, 'other')} are empty" if others else "the file is empty"
    raise SourceError(f"{files[0].url}: {what}; a CSV needs a header and at least one line")


def _block_schema(header: Header, rows: Rows, types: _ColumnTypes) -> pa.Schema:
    """The types of a block's columns: Arrow's, except for hexadecimal, signed and large integers."""
    data, schema = rows.block.data, rows.table.schema
    is_signed, may_be_hexadecimal = bool(_PLUS.search(data)), bool(_HEXADECIMAL.search(data))
    integers = [field.name for field in schema if field.type in _INTEGERS and may_be_hexadecimal]
    floats = [field.name for field in schema if field.type == pa.float64()]
    large = dict.fromkeys(name for name in floats if _is_beyond_int64(rows.table.column(name)))
    types.beyond_int64 |= large
    doubtful = integers + (floats if is_signed else list(large))
    texts = _texts(header, rows.block, doubtful).table if doubtful else pa.table({})
    for name, text in zip(texts.column_names, texts.columns, strict=True):
        if name in integers:
            is_hexadecimal = pc.any(pc.match_substring_regex(text, "^\\s*0[xX]"), min_count=0).as_py()
            kind = pa.string() if is_hexadecimal else None  # Arrow reads 0x1F as 31
        else:
            kind = _integer_type(text)
            types.signed |= {name: None} if kind is not None and is_signed else {}
        if kind is not None:
            schema = _with_type(schema, name, kind)
    if types.signed or _LEADING_ZERO.search(data):
        types.respelled |= dict.fromkeys(field.name for field in schema if field.type in _INTEGERS)
    return schema


def _is_beyond_int64(column: pa.ChunkedArray) -> bool:
    """Whether floats may be integers beyond int64."""
    bounds = pc.min_max(column).as_py()
    return bounds["max"] is not None and (bounds["max"] >= 2.0**63 or bounds["min"] <= -(2.0**63))


def _integer_type(text: pa.ChunkedArray) -> pa.DataType | None:
    """The narrowest type of integers; None if other values are among them, or no type holds them."""
    present = text.filter(pc.invert(pc.is_in(text, pa.array(MISSING))))
    if not pc.all(pc.match_substring_regex(present, _INTEGER), min_count=0).as_py():
        return None
    return next((kind for kind in _INTEGERS if not _cast(text, kind)[1].any()), None)


def _settle(headers: Sequence[Header], types: _ColumnTypes, name: str) -> None:
    """Read a column of a doubtful type again, and widen the type until it holds all values."""
    while types.known[name] not in _WIDEST and not all(
        _holds(header, block, name, types.known[name]) for header in headers for block in _blocks(header)
    ):
        types.widen(name)


def _blocks(header: Header) -> Iterator[Block]:
    span = Span(start=header.start, line=header.line)
    cut = partial(cut_records, delimiter=header.delimiter)
    return read_blocks(header.path, span, cut, header.block_bytes, header.dialect.reader)


def _holds(header: Header, block: Block, name: str, kind: pa.DataType) -> bool:
    """Whether a type holds all values of a column in a block; integers may have a plus sign."""
    if kind in _INTEGERS and _PLUS.search(block.data):
        return not _cast(_texts(header, block, [name]).table.column(0), kind)[1].any()
    try:
        parse_block(header, block, {name: kind}, [name], ignore_bad)
        return True
    except SourceError:
        return False


def _texts(header: Header, block: Block, names: Sequence[str]) -> Rows:
    """Parse columns of a block as text."""
    return parse_block(header, block, dict.fromkeys(names, pa.string()), names, ignore_bad)


def _column_texts(headers: Sequence[Header], name: str) -> Iterator[tuple[Header, Rows, pa.ChunkedArray]]:
    """Parse a column of all files as text, block by block; yield it with the rows that it lies in."""
    for header in headers:
        for block in _blocks(header):
            rows = _texts(header, block, [name])
            yield header, rows, rows.table.column(0)


def _cast(text: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Cast a column of text; see `cast_text`."""
    return cast_text(text.combine_chunks(), Feature(name="", dtype=str(kind)), MISSING)


def _settle_label(headers: Sequence[Header], types: _ColumnTypes, name: str) -> None:
    """Make a label of integers text if one of them is spelled in several ways."""
    kind, spellings = types.known[name], pa.array([], pa.string())
    for _, _, column in _column_texts(headers, name):
        spellings = pa.chunked_array([spellings, *column.chunks]).unique()
    values = _cast(pa.chunked_array([spellings]), kind)[0]
    by_value: dict[int, list[str]] = {}
    for value, text in zip(values.to_pylist(), spellings.to_pylist(), strict=True):
        if value is not None:
            by_value.setdefault(value, []).append(text)
    if merged := [texts for texts in by_value.values() if len(texts) > 1]:
        types.known[name] = pa.string()
        warn_of_spellings(headers[0].path, name, merged[0])


def _count_missing(
    headers: Sequence[Header], types: _ColumnTypes, options: InferenceOptions
) -> dict[str, Counter[str]]:
    """Count the texts such as NA in columns of text, by column."""
    result: dict[str, Counter[str]] = {}
    for name, kind in types.known.items():
        if kind not in (pa.string(), pa.null()) or name in options.declared or not options.wanted(name):
            continue
        result[name] = types.missing[name]
        if types.nulls[name]:  # in blocks where the column has another type, for which Arrow makes them nulls
            columns = (column for _, _, column in _column_texts(headers, name))
            result[name] = sum(map(count_missing, columns), Counter())
    return result


def _with_type(schema: pa.Schema, name: str, kind: pa.DataType) -> pa.Schema:
    return schema.set(schema.get_field_index(name), pa.field(name, kind))


class _ColumnTypes:
    """The types of the columns after some blocks.

    The types of a block hold its values. Where two blocks differ, the wider type may still not hold all values of the
    other, as nanoseconds do not hold every date: such columns are `unsure`, and are read again.
    """

    def __init__(self, names: Iterable[str], declared: Collection[str]) -> None:
        self.known = {name: pa.string() if name in declared else pa.null() for name in names}
        self.unsure: dict[str, None] = {}
        self.beyond_int64: dict[str, None] = {}  # columns with numbers beyond int64
        self.signed: dict[str, None] = {}  # columns with integers that have a plus sign
        self.respelled: dict[str, None] = {}  # columns of integers that may have a plus sign or leading zeros
        self.missing = {name: Counter[str]() for name in self.known}  # texts like NA in blocks where it is text
        self.first: dict[str, pa.Array] = {}  # the first texts of columns of text
        self.nulls = Counter[str]()  # nulls in blocks where the column has another type

    @property
    def text(self) -> dict[str, pa.DataType]:
        """The columns that are text already."""
        return {name: kind for name, kind in self.known.items() if kind == pa.string()}

    def add(self, schema: pa.Schema) -> None:
        """Widen the types by those of another block."""
        for field in schema:
            before = self.known[field.name]
            if before != field.type:
                self.known[field.name], sure = _join(before, field.type)
                if not sure:
                    self.unsure[field.name] = None

    def count_missing(self, table: pa.Table) -> None:
        """Count the texts that may mean a missing value in a block."""
        for name, column in zip(table.column_names, table.columns, strict=True):
            if column.type == pa.string():
                self.missing[name] += count_missing(column)
            else:
                self.nulls[name] += column.null_count

    def widen(self, name: str) -> None:
        """Widen an unsure type that does not hold a value."""
        self.known[name] = pa.float64() if self.known[name] == pa.uint64() else pa.string()

    def schema(self) -> pa.Schema:
        """The types of all columns; those without any value are text."""
        return pa.schema([(n, pa.string() if kind == pa.null() else kind) for n, kind in self.known.items()])


def _join(one: pa.DataType, other: pa.DataType) -> tuple[pa.DataType, bool]:
    """Return the narrowest type for the values of two, and whether it surely holds them."""
    if pa.null() in (one, other):
        return (other if one == pa.null() else one), True
    if one in _NUMBERS and other in _NUMBERS:
        wider = _NUMBERS[max(_NUMBERS.index(one), _NUMBERS.index(other))]
        return wider, wider != pa.uint64()
    for chain in (_DATES, _ZONED):
        if one in chain and other in chain:
            return chain[max(chain.index(one), chain.index(other))], False
    return pa.string(), True


def _check_exact(headers: Sequence[Header], name: str) -> None:
    """Refuse numbers that float64 would make infinite, and a column of integers only that it would round.

    Raises:
        SourceError: names the first value that is too large.
    """
    excess: tuple[str, int, int] | None = None
    integers, low = True, 0
    feature = Feature(name=name, dtype="float64")
    for header, rows, column in _column_texts(headers, name):
        text = with_points(column, header.dialect.decimal).combine_chunks()
        for row in np.flatnonzero(cast_text(text, feature, MISSING)[1]).tolist():
            raise SourceError(
                f"{header.path}: line {rows.line(row)}: {name!r}: the number {text[row].as_py()[:20]} is beyond what "
                f"a float64 holds; fix it, or declare {name!r} a string with --schema"
            )
        present = pc.invert(pc.is_in(text, pa.array(MISSING)))
        whole = pc.match_substring_regex(text, "^[+-]?[0-9]+$")
        integers = integers and pc.all(pc.or_(whole, pc.invert(present)), min_count=0).as_py()
        if not integers:
            continue
        long = pc.and_(present, pc.greater(pc.utf8_length(text), 18))  # fewer digits always fit into 64 bits
        low = min(low, -1 if pc.any(pc.starts_with(text, "-"), min_count=0).as_py() else 0)
        for row in np.flatnonzero(long.to_numpy(zero_copy_only=False)).tolist():
            value = int(text[row].as_py())
            if not -(1 << 63) <= value < 1 << 63 and (excess is None or exceeds_more(value, excess[2])):
                excess = (header.path, rows.line(row), value)
    if excess is not None and integers:
        raise SourceError(beyond_integers(excess[0], f"line {excess[1]}", name, excess[2], low))

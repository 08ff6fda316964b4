"""Parses blocks of CSV into Arrow tables; errors name the line. Finds the ends of records as Arrow's parser does: line
ends within quotes do not count.

Tested in tests/sharding/sources/text/test_csv.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.sources.base import BadRecord, Reject
from ringfeed.sharding.sources.files.open import source_error

from .blocks import Block, count_lines, not_utf8_record
from .csv_dialect import CsvDialect

MISSING = tuple(pacsv.ConvertOptions().null_values)  # texts that mean null in columns that are not text
NAME_ENCODING = "if the file has another encoding, name it, for example: --encoding {encoding}"
_THREAD_COLUMNS = 1 << 10  # with more, the overhead of each column in each piece outweighs the threads
_THREAD_BYTES = 1 << 20  # size of the pieces that Arrow parses concurrently
_QUOTE, _LF, _CR = 0x22, 0x0A, 0x0D
_WITHIN = re.compile(rb'[^"]*(?:""[^"]*)*')  # a quoted field, without its outer quotes
_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]  # 1 and 0 are numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """How to read a file."""

    path: str  # path or URL of the file
    names: tuple[str, ...]
    delimiter: str  # separator of fields
    start: int  # offset of the first record
    line: int
    null_values: tuple[str, ...] = ()  # texts that mean null in columns of every type, text too
    dialect: CsvDialect = field(default_factory=CsvDialect)  # how the file is written
    record: bytes = b""  # the first line, if it holds the names
    block_bytes: int | None = None  # bytes to read at a time; None: as many as suit text


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The parsed records of a block."""

    table: pa.Table  # records that were not rejected
    block: Block  # block that they were parsed from
    delimiter: str  # separator of fields
    # Line number of each record, int64; None: not computed, as it is needed only for errors
    lines: npt.NDArray[np.int64] | None
    clean: bool  # whether no record was rejected

    def line(self, row: int) -> int:
        """Return the number of the line in which a row of the table starts."""
        lines = record_lines(self.block, self.delimiter) if self.lines is None else self.lines
        return int(lines[row])


def parse_block(
    header: Header,
    block: Block,
    types: Mapping[str, pa.DataType],
    columns: Sequence[str] | None,
    reject: Reject,
) -> Rows:
    """Parse the records of a block.

    Args:
        types: known types of columns, by name; others are inferred from this block alone.
        columns: names of the columns to convert; None: all.
        reject: called with each record that is not UTF-8, or has too few or too many fields.

    Raises:
        SourceError: a quoted field has no end, or a value does not fit its type (the file changed).
    """
    data, lines = _utf8(header.path, block, header.delimiter, reject)
    if block.final and b'"' in block.data:
        check_quotes(header.path, block, find_records(block.data, header.delimiter).open_quote)
    convert = pacsv.ConvertOptions(
        column_types=types,
        include_columns=columns,
        true_values=_TRUE,
        false_values=_FALSE,
        null_values=[*MISSING, *header.null_values],
        decimal_point=header.dialect.decimal,
    )
    bad: list[tuple[int | None, str]] = []

    def skip(row: pacsv.InvalidRow) -> str:
        bad.append((row.number, f"Expected {row.expected_columns} columns, got {row.actual_columns}"))
        return "skip"

    parse = pacsv.ParseOptions(delimiter=header.delimiter, newlines_in_values=block.multiline, invalid_row_handler=skip)
    try:
        wide = len(header.names) > _THREAD_COLUMNS
        table = _read(data, header.names, parse, convert, threads=not wide, whole=wide)
        if bad:  # with threads, Arrow does not number the rows
            bad.clear()
            table = _read(data, header.names, parse, convert, threads=False, whole=True)
    except pa.ArrowInvalid as error:
        raise source_error(header.path, error, "the file changed while it was read; build again") from error
    table = _without_nulls(table, header.null_values)
    clean = lines is None and not bad
    if bad:
        lines = record_lines(block, header.delimiter) if lines is None else lines
        rows = [0 if number is None else number - 1 for number, _ in bad]
        for row, (_, reason) in zip(rows, bad, strict=True):
            reject(BadRecord(path=header.path, place=f"line {lines[row]}", reason=reason))
        lines = np.delete(lines, rows)
    return Rows(table=table, block=block, delimiter=header.delimiter, lines=lines, clean=clean)


def with_points(text: pa.ChunkedArray, decimal: str) -> pa.ChunkedArray:
    """The texts of numbers with a point before the fraction."""
    return text if decimal == "." else pc.replace_substring(text, decimal, ".")


def _without_nulls(table: pa.Table, null_values: Sequence[str]) -> pa.Table:
    """Replace the texts that mean null in columns of text, where Arrow knows all such texts or none."""
    for number, column in enumerate(table.schema if null_values else ()):
        if column.type == pa.string():
            text = table.column(number)
            is_null = pc.is_in(text, pa.array(null_values, pa.string()))
            table = table.set_column(number, column, pc.if_else(is_null, pa.scalar(None, pa.string()), text))
    return table


def _read(
    data: bytes,
    names: Sequence[str],
    parse: pacsv.ParseOptions,
    convert: pacsv.ConvertOptions,
    *,
    threads: bool,
    whole: bool = False,
) -> pa.Table:
    read = pacsv.ReadOptions(
        column_names=names, use_threads=threads, block_size=len(data) + 1 if whole else _THREAD_BYTES
    )
    try:
        return pacsv.read_csv(
            pa.BufferReader(data or b"\n"), read_options=read, parse_options=parse, convert_options=convert
        )
    except pa.ArrowInvalid as error:
        if whole or "straddl" not in str(error):
            raise
    return _read(data, names, parse, convert, threads=threads, whole=True)  # a record is longer than a piece


def _utf8(path: str, block: Block, delimiter: str, reject: Reject) -> tuple[bytes, npt.NDArray[np.int64] | None]:
    """Return the records that are UTF-8, and if some are not, the line numbers of those that are."""
    try:
        block.data.isascii() or block.data.decode()
        return block.data, None
    except UnicodeDecodeError:
        pass
    records = find_records(block.data, delimiter)
    lines = record_lines(block, delimiter)
    kept: list[int] = []
    for number, (start, stop) in enumerate(zip(records.starts.tolist(), records.stops.tolist(), strict=True)):
        try:
            block.data[start:stop].decode()
            kept.append(number)
        except UnicodeDecodeError as error:
            reject(not_utf8_record(path, int(lines[number]), error, NAME_ENCODING))
    return b"".join(block.data[records.starts[k] : records.stops[k]] + b"\n" for k in kept), lines[kept]


def record_lines(block: Block, delimiter: str) -> npt.NDArray[np.int64]:
    """Return the numbers of the lines in which the records of a block start; int64 [records]."""
    letters = np.frombuffer(block.data, np.uint8)
    ends = letters == 0x0A
    if b"\r" in block.data:
        ends[:-1] |= (letters[:-1] == 0x0D) & (letters[1:] != 0x0A)
    before = np.cumsum(ends) - ends
    lines: npt.NDArray[np.int64] = block.line + before[find_records(block.data, delimiter).starts]
    return lines


def check_quotes(path: str, block: Block, open_quote: int) -> None:
    """Refuse a quoted field without an end.

    Raises:
        SourceError: there is one in the block, at `open_quote`; -1: there is none.
    """
    if open_quote >= 0:
        line = block.line + count_lines(block.data[:open_quote])
        raise SourceError(f"{path}: line {line}: a quoted field begins there and never ends; close it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records in some bytes that start with one; empty lines do not count."""

    starts: npt.NDArray[np.int64]  # offset of each, int64
    stops: npt.NDArray[np.int64]  # end of each, without its line end, int64
    open_quote: int  # offset of a quoted field without an end; -1: none


def find_records(data: bytes, delimiter: str) -> Records:
    r"""Find the records in some bytes that start with one.

    >>> found = find_records(b'a,"b\n"\n\nc,d\r\ne', ",")
    >>> found.starts.tolist(), found.stops.tolist()
    ([0, 8, 13], [6, 11, 14])
    """
    letters, quotes, ends = _find(data, delimiter)
    ends = ends[~_within(quotes, ends)]
    starts, stops = np.concatenate([[0], ends + 1]), np.concatenate([ends, [len(data)]])
    if b"\r" in data:
        stops = stops - ((stops > starts) & (letters[stops - 1] == _CR))
    filled = stops > starts
    return Records(starts=starts[filled], stops=stops[filled], open_quote=int(quotes[-1]) if len(quotes) % 2 else -1)


def cut_records(data: bytes, delimiter: str) -> tuple[int, bool]:
    r"""Return where the last whole record of some bytes ends, and whether a field contains a line end.

    >>> cut_records(b'a,"b\n"\nc,d', ",")
    (7, True)
    """
    if b'"' not in data and b"\n" in data:
        return data.rfind(b"\n") + 1, False
    _, quotes, ends = _find(data, delimiter)
    within = _within(quotes, ends)
    real = np.flatnonzero(~within)
    return (int(ends[real[-1]]) + 1 if len(real) else 0), bool(within.any())


def _within(quotes: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which places lie within quotes."""
    within: npt.NDArray[np.bool_] = np.searchsorted(quotes, places) % 2 == 1
    return within


def _find(data: bytes, delimiter: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bytes as an array, the places where quoted fields begin and end, and those of all line ends."""
    letters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(letters == _LF)
    if b"\r" in data:
        returns = np.flatnonzero(letters[:-1] == _CR)  # a final \r may be half of \r\n
        ends = np.sort(np.concatenate([ends, returns[letters[returns + 1] != _LF]]))
    return letters, _quotes(data, letters, delimiter), ends


def _quotes(data: bytes, letters: npt.NDArray[np.uint8], delimiter: str) -> npt.NDArray[np.int64]:
    """Return the places where quoted fields begin and end, in turn; an escaped quote may count as an end and a begin.

    A quote opens a field only as its first character. So the quotes simply alternate if every odd one is the first
    character of a field, or directly follows the quote before it (an escaped quote); else fields are searched one by
    one.
    """
    if b'"' not in data:
        return np.empty(0, np.int64)
    quotes = np.flatnonzero(letters == _QUOTE)
    opening = quotes[::2]
    first = (opening == 0) | np.isin(letters[opening - 1], [ord(delimiter), _LF, _CR])
    doubled = np.concatenate([[False], opening[1:] == quotes[1:-1:2] + 1])
    if np.all(first | doubled):
        return quotes
    beginning = re.compile(rb'(?:\A|[\r\n%b])"' % re.escape(delimiter.encode()))
    places: list[int] = []
    place = 0
    while (match := beginning.search(data, place)) is not None:
        places.append(match.end() - 1)
        within = _WITHIN.match(data, match.end())
        place = len(data) if within is None else within.end() + 1
        if place > len(data):
            break
        places.append(place - 1)
    return np.array(places, np.int64)

"""Reads the names of CSV columns, and tells a header from a record.

Tested in tests/sharding/sources/text/test_csv_dialect.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.csv as pacsv

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.messages import listed
from ringfeed.sharding.schema import check_distinct_names
from ringfeed.sharding.sources.base import fail_on_bad

from .blocks import Block, Span, count_lines, read_blocks
from .csv_dialect import CsvDialect
from .csv_faults import check_dialect, counts_columns, holds_only_numbers
from .csv_parse import MISSING, Header, Records, check_quotes, cut_records, find_records, parse_block

_MOST_COLUMNS = 1 << 15  # each takes about 25 KB of memory while a block is parsed
_SHOWN = 5  # fields of a line, in a message
_logger = logging.getLogger(__name__)


def read_header(
    path: str,
    dialect: CsvDialect,
    null_values: tuple[str, ...] = (),
    block_bytes: int | None = None,
    *,
    lenient: bool = False,
) -> Header:
    """Read the first record of a file, and name the columns.

    Args:
        path: path or URL of the file.
        dialect: how the file is written.
        null_values, block_bytes: see `Header`.
        lenient: see `check_dialect`.

    Raises:
        SourceError: the file is empty, its first record is not a valid header, or the dialect does not fit.
    """
    delimiter = dialect.delimiter_of(path)
    block, records = _first_block(path, dialect, block_bytes)
    data = block.data[records.starts[0] : records.stops[0]]
    check_dialect(path, block, data, dialect, lenient=lenient)
    names = _fields(path, data, delimiter)
    if dialect.header == "none":
        stop = int(records.starts[0])
        own = [f"f{number}" for number in range(len(names))]
    else:
        stop = int(records.starts[1]) if len(records.starts) > 1 else len(block.data)
        own = names
    if dialect.columns and len(dialect.columns) != len(own):
        raise SourceError(
            f"{path}: line {block.line} has {len(own)} fields, and --columns names {len(dialect.columns)}; name each"
        )
    names = list(dialect.columns) or own
    _check_names(path, names)
    return Header(
        path=path,
        names=tuple(names),
        delimiter=delimiter,
        start=block.start + stop,
        line=block.line + count_lines(block.data[:stop]),
        null_values=null_values,
        dialect=dialect,
        record=b"" if dialect.header == "none" else data,
        block_bytes=block_bytes,
    )


def _first_block(path: str, dialect: CsvDialect, block_bytes: int | None) -> tuple[Block, Records]:
    """Read the first block of a file, and find its records; it has at least one."""
    delimiter = dialect.delimiter_of(path)
    cut = partial(cut_records, delimiter=delimiter)
    block = next(read_blocks(path, Span(), cut, block_bytes, dialect.reader), None)
    if block is not None:
        records = find_records(block.data, delimiter)
        check_quotes(path, block, records.open_quote)
        if len(records.starts):
            return block, records
    raise SourceError(f"{path}: the file is empty; a CSV needs a header and at least one line")


def _fields(path: str, data: bytes, delimiter: str) -> list[str]:
    """Return the fields of the first record, whose bytes are `data`."""
    columns = data.count(delimiter.encode()) + 1
    if columns > _MOST_COLUMNS:
        raise SourceError(
            f"{path}: the header has {columns:,} columns, but the limit is {_MOST_COLUMNS:,}; "
            "store numbers that belong together as lists, for example in a Parquet file"
        )
    parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    read = pacsv.ReadOptions(block_size=len(data) + 2)
    return list(pacsv.read_csv(pa.BufferReader(data + b"\n"), read_options=read, parse_options=parse).column_names)


def check_header(header: Header, types: pa.Schema) -> None:
    """Report a first line that may be a record.

    Args:
        types: types of the columns, inferred from the other lines.

    Raises:
        SourceError: it holds nothing but numbers, other than those that count the columns.
    """
    texts = pacsv.ReadOptions(column_names=header.names, block_size=len(header.record) + 2)
    parse = pacsv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True)
    convert = pacsv.ConvertOptions(column_types=dict.fromkeys(header.names, pa.string()), strings_can_be_null=False)
    table = pacsv.read_csv(pa.BufferReader(header.record + b"\n"), texts, parse, convert)
    fields = [column[0].as_py().strip() for column in table.columns]
    remedy = (
        "if it is a record, add --header none, perhaps with --columns NAME,...; if it holds the names, --header first"
    )
    shown = listed(fields, _SHOWN)
    if holds_only_numbers(fields):
        raise SourceError(f"{header.path}: its first line holds only numbers, as a record would ({shown}); {remedy}")
    if not fields[0] and counts_columns(fields[1:]):
        return  # a table of pandas with its index
    typed = {field.name for field in types if field.type != pa.string()}
    telling = [
        field for field, name in zip(fields, header.names, strict=True) if name in typed and field not in MISSING
    ]
    if telling and _fits(header, types):
        _logger.warning(
            "%s: its first line may be a record: %s fit the types of their columns; %s", header.path, shown, remedy
        )


def _fits(header: Header, types: pa.Schema) -> bool:
    """Whether the first line has values of the columns' types."""
    block = Block(data=header.record + b"\n", start=0, line=1, final=False, multiline=True)
    known = dict(zip(types.names, types.types, strict=True))
    try:
        return bool(parse_block(header, block, known, None, fail_on_bad).table.num_rows)
    except SourceError:
        return False


def _check_names(path: str, names: Sequence[str]) -> None:
    remedy = "rename all but one in the first line or, if that is a record, add --header none"
    check_distinct_names(names, f"{path}: ", remedy)
    if zero := next((name for name in names if "\0" in name), ""):
        raise SourceError(f"{path}: the column name {zero!r} holds a zero byte; rename it")

"""Compares the first records of a CSV file with its dialect, and names all that does not fit at once.

Tested in tests/sharding/sources/text/test_csv_dialect.py.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice, zip_longest

import pyarrow as pa

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.messages import counted
from ringfeed.sharding.sources.base import SKIP_REMEDY, BadRecord

from .blocks import Block, not_utf8_record
from .csv_dialect import CsvDialect
from .csv_parse import NAME_ENCODING
from .doubtful_text import has_decimal_commas

_SAMPLE_BYTES, _SAMPLE_RECORDS = 1 << 20, 1000
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def check_dialect(path: str, block: Block, header: bytes, dialect: CsvDialect, *, lenient: bool) -> None:
    """Check a file's delimiter, that its first records are UTF-8, and that its header names each field.

    Args:
        path: path or URL of the file.
        block: first block of the file.
        header: first record in it.
        dialect: how the file is said to be written.
        lenient: whether bad records other than the header are skipped, so that they are not judged here.

    Raises:
        SourceError: one of these is not so; names all that seems to be otherwise, and `flags` that say so.
    """
    bad, encoding = _not_utf8(path, block, header if lenient else block.data)
    text = block.data[:_SAMPLE_BYTES].decode(encoding, errors="replace").removeprefix("\ufeff")
    if len(block.data) > _SAMPLE_BYTES:
        text = text[: text.rfind("\n") + 1] or text
    delimiter = dialect.delimiter_of(path)
    separator = "" if dialect.delimiter else _separator(text, delimiter)
    if bad is None and not separator:
        if dialect.header != "none" and not lenient:
            _check_counts(path, text, delimiter)
        return
    records = _records(text, separator or delimiter)
    columns = [pa.array(column, pa.string()) for column in zip_longest(*records[1:])]
    differences, values = (
        list[str](),
        dict[str, str](),
    )  # what is unlike the dialect, in words; and what flags should say
    if separator:
        values["--delimiter"] = "tab" if separator == "\t" else separator
    if "," not in (dialect.decimal, separator or delimiter) and any(map(has_decimal_commas, columns)):
        values["--decimal"] = ","
        differences.append("numbers seem to have a decimal comma")
    if bad is not None:
        values["--encoding"] = encoding
        differences.append(f"{bad.place}, {bad.reason}")
    add = " ".join(f"{flag} {value if flag == '--decimal' else _shown(value)}" for flag, value in values.items())
    if separator and dialect.header == "auto" and holds_only_numbers(records[0], commas=separator != ","):
        values["--header"] = "none"
        add += f", and --header none if {'it' if separator == 'spaces' else 'the first line, of numbers,'} is a record"
    flags = tuple(word for pair in values.items() for word in pair)
    also = "".join(f", and {text}" for text in differences)
    if separator == "spaces":
        raise SourceError(f"{path}: its first line holds numbers separated by spaces{also}; add {add}", flags)
    if separator:
        raise SourceError(f"{path}: the fields seem to be separated by {separator!r}{also}; if so, add {add}", flags)
    decimal = " --decimal , (numbers seem to have a decimal comma)" if "--decimal" in values else ""
    raise SourceError(f"{bad}{decimal}, or {SKIP_REMEDY}", flags)


def _check_counts(path: str, text: str, delimiter: str) -> None:
    """Check that the header has as many fields as the records, if these agree."""
    two = _records(text, delimiter, 2)
    if len(two) < 2 or len(two[0]) == len(two[1]):
        return
    header, *records = _records(text, delimiter)
    if len(records) > 1 and _are_even(records):
        raise SourceError(
            f"{path}: its header has {counted(len(header), 'field')}, and each record after it {len(records[0])}; name "
            "every field (R leaves out the name of the row names), or remove the first line if it is no header"
        )


def _shown(value: str) -> str:
    """The value of a flag, as in a shell."""
    return value if value.replace("-", "").isalnum() else f"'{value}'"


def _not_utf8(path: str, block: Block, data: bytes) -> tuple[BadRecord | None, str]:
    """The record of the block's first bytes that is not UTF-8, and the encoding that the file may have."""
    try:
        data.isascii() or data.decode()
        return None, "utf-8"
    except UnicodeDecodeError as error:
        bad = not_utf8_record(path, block.line, error, NAME_ENCODING)
        return bad, bad.remedy.split()[-1]


def _separator(text: str, delimiter: str) -> str:
    """What separates the fields of a text in place of the delimiter; empty if it seems to be the delimiter."""
    first, records = next(filter(None, text.splitlines()), ""), _records(text, delimiter)
    if len(records[0]) > 1:
        for other in ";\t|":
            others = _records(text, other) if other in first and other != delimiter else [[]]
            if _are_even(others) and (not _are_even(records) or holds_only_numbers(others[0], commas=True)):
                return other
        return ""
    numbers = first.split()
    if len(numbers) > 1 and all(map(_NUMBER.fullmatch, numbers)):
        return "spaces"
    return next((other for other in ";\t|," if other in first and other != delimiter), "")


def _are_even(records: Sequence[Sequence[str]]) -> bool:
    """Whether all records have the same number of fields, more than one."""
    return len(records[0]) > 1 and len(set(map(len, records))) == 1


def _records(text: str, delimiter: str, most: int = _SAMPLE_RECORDS) -> list[list[str]]:
    """The fields of a text's first records, at least of one."""
    if delimiter == "spaces":
        return [line.split() for line in text.splitlines()[:most]]
    records: list[list[str]] = []
    with suppress(csv.Error):  # a field that is too long
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        records += islice(filter(None, rows), most)
    return records or [[]]


def holds_only_numbers(fields: Sequence[str], *, commas: bool = False) -> bool:
    """Whether the fields of a first line are those of a record: numbers, other than those that count the columns.

    >>> holds_only_numbers(["1.5", "2"]), holds_only_numbers(["0", "1"]), holds_only_numbers(["1,5", "2"], commas=True)
    (True, False, True)
    """
    texts = [field.strip().replace(",", ".", commas) for field in fields]
    return all(map(_NUMBER.fullmatch, texts)) and not counts_columns(texts)


def counts_columns(fields: Sequence[str]) -> bool:
    """Whether the fields are 0, 1, 2, ... or 1, 2, 3, ..., as names of columns often are."""
    return any(list(fields) == [str(first + number) for number in range(len(fields))] for first in (0, 1))

"""Parses lines of JSON: by Arrow's parser where it is known to be right, else by Python's, line by line.

Arrow alone would accept two objects in a line or one in two lines, turn text that looks like a time into one, crash
when it infers types from deeply nested lists or a line of ``null``, and report an error without its line. So it is
only given types that are known, and its result is used only if it confirms them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isinf
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pajson

from ringfeed.sharding.sources.base import BadRecord, Reject

from .blocks import Block, not_utf8_record

_INF = re.compile(rb"[:\[,]\s*-?Inf(?!inity)")  # only Arrow's parser takes Inf for a number
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Tree = dict[str, Any]  # names to Arrow types, or to the trees of nested objects


class Number(str):
    """A number as it was written."""

    __slots__ = ()


class Lines:
    """Consecutive lines of a file.

    Attributes:
        data: bytes with line ends.
        first: number of the first line.
        starts: offset of each line, int64.
        stops: end of each line, after its line end, int64.
        unit: what messages call a line, ``line`` or ``record``.
    """

    __slots__ = ("data", "first", "starts", "stops", "unit")

    def __init__(self, data: bytes, first: int, unit: str = "line") -> None:
        self.data = data
        self.first = first
        self.unit = unit
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 0x0A) + 1
        if not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        self.starts, self.stops = np.concatenate([[0], ends[:-1]]), ends

    @classmethod
    def of(cls, block: Block, *, is_array: bool) -> Lines:
        """Return the lines of a block; those of an array are records, which count from 0."""
        return cls(block.data, block.line - 1, "record") if is_array else cls(block.data, block.line)

    def __len__(self) -> int:
        return len(self.starts)

    def filled(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the lines that are not empty."""
        spans = enumerate(zip(self.starts.tolist(), self.stops.tolist(), strict=True), self.first)
        return np.array([n for n, (start, stop) in spans if self.data[start:stop].strip(b" \t\r\n")], np.int64)

    def part(self, start: int, stop: int) -> Lines:
        """Return the lines [start, stop), counted from 0, as far as there are so many."""
        stop = min(stop, len(self))
        if (start, stop) == (0, len(self)):
            return self
        return Lines(self.data[self.starts[start] : self.stops[stop - 1]], self.first + start, self.unit)


def split_lines(block: Block, rows: int, *, is_array: bool) -> Iterator[Lines]:
    """Split the lines of a block into runs of up to `rows`; see `Lines.of`."""
    lines = Lines.of(block, is_array=is_array)
    for start in range(0, len(lines), rows):
        yield lines.part(start, start + rows)


def parse_fast(lines: Lines, tree: Tree, *, closed: bool) -> pa.Table | None:
    """Parse lines with Arrow; return None unless each line is one object, and every value has the type in the tree.

    Args:
        tree: names and types of the columns.
        closed: whether to return None if there is another key.
    """
    records = _plain_objects(lines)
    if records is None:
        return None
    parse = pajson.ParseOptions(
        explicit_schema=pa.schema(_fields(tree)), unexpected_field_behavior="error" if closed else "ignore"
    )
    read = pajson.ReadOptions(block_size=len(lines.data) + 1, use_threads=False)
    try:
        table = pajson.read_json(pa.BufferReader(lines.data), read_options=read, parse_options=parse)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return table.combine_chunks() if table.num_rows == records else None


def _fields(tree: Mapping[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_fields(entry)) if isinstance(entry, dict) else entry) for name, entry in tree.items()
    ]


def _plain_objects(lines: Lines) -> int | None:
    """Return the number of lines that are not empty, or None unless each of them starts with ``{`` and ends with ``}``.

    Then no object spans two lines: after the ``}`` at the end of the first would follow the ``{`` of the second, where
    JSON needs ``,`` or ``}``. So there are as many objects as lines only if each line is one.
    """
    data = lines.data
    letters = np.frombuffer(data, np.uint8)
    ends = lines.stops - (letters[lines.stops - 1] == 0x0A)
    if b"\r" in data:
        ends = ends - ((ends > lines.starts) & (letters[ends - 1] == 0x0D))
    filled = ends > lines.starts
    starts, ends = lines.starts[filled], ends[filled]
    if not len(starts) or np.any(letters[starts] != 0x7B) or np.any(letters[ends - 1] != 0x7D):
        return None
    if b"Inf" in data and _INF.search(data):
        return None
    try:
        data.isascii() or data.decode()
    except UnicodeDecodeError:
        return None
    return len(starts)


def make_decoder(number: Callable[[str], Any], integer: Callable[[str], Any]) -> json.JSONDecoder:
    """Return a decoder that turns the text of numbers into values with these functions."""

    def finite(make: Callable[[str], Any]) -> Callable[[str], Any]:
        def convert(text: str) -> Any:
            if isinf(float(text)):  # Arrow refuses it in any column
                raise ValueError(f"the number {text[:20]} is beyond what a float64 holds")
            return make(text)

        return convert

    return json.JSONDecoder(
        parse_float=finite(number), parse_int=finite(integer), parse_constant=number, object_pairs_hook=_object
    )


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return result


def decode_document(decoder: json.JSONDecoder, text: str) -> Any:
    """Return the value of a JSON document.

    Raises:
        ValueError: it is not JSON, or holds half a surrogate pair.
        RecursionError: it is nested too deeply.
    """
    value = decoder.decode(text)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            raise ValueError("half a surrogate pair is no character") from error
    return value


def decode_lines(
    path: str, lines: Lines, decoder: json.JSONDecoder, reject: Reject
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's number and object; reject lines that are no object, and skip empty ones."""
    for number, (start, stop) in enumerate(zip(lines.starts.tolist(), lines.stops.tolist(), strict=True), lines.first):
        data, place = lines.data[start:stop], f"{lines.unit} {number}"
        try:
            text = data.decode().strip(" \t\r\n")
            if not text:
                continue
            if text.startswith("["):
                raise ValueError(
                    "it is no object in braces but begins a list; jq -c '.[]' FILE makes lines of it, and "
                    "--source-kind json reads a file that is one list"
                )
            if text == "{":
                raise ValueError("the object goes on in other lines; jq -c . FILE writes each as a line")
            value = decode_document(decoder, text)
            if not isinstance(value, dict):
                raise ValueError("it is no object in braces")
        except UnicodeDecodeError as error:
            reject(replace(not_utf8_record(path, number, error), place=place))
        except RecursionError:
            reject(_bad(path, place, "it is nested too deeply"))
        except json.JSONDecodeError as error:
            reject(_bad(path, place, f"{error.msg} at character {error.pos + 1}"))
        except ValueError as error:
            reject(_bad(path, place, str(error)))
        else:
            yield number, value


def _bad(path: str, place: str, reason: str) -> BadRecord:
    return BadRecord(path=path, place=place, reason=f"no JSON object: {reason}")

"""Finds the ends of CSV records as Arrow's parser does: line ends within quotes do not count.

Tested in tests/sharding/sources/text/test_csv.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_QUOTE, _LF, _CR = 0x22, 0x0A, 0x0D
_WITHIN = re.compile(rb'[^"]*(?:""[^"]*)*')  # a quoted field, without its outer quotes


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

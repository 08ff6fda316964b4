"""Reads a JSON array of records, ``[{...}, {...}]``, as one record a line, in bounded memory.

Only the structure is read here: where texts, brackets and records begin and end. Each record is parsed afterwards, as a
line of JSON Lines is, which finds what is wrong within it.
Tested in tests/sharding/sources/text/test_json_array.py.
"""

from __future__ import annotations

from typing import IO

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.errors import SourceError

_READ_BYTES = 1 << 20
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def _table(letters: bytes) -> Mask:
    table = np.zeros(256, bool)
    table[list(letters)] = True
    return table


_OPENS, _CLOSES, _SPACES, _LINE_ENDS = _table(b"[{"), _table(b"]}"), _table(_SPACE), _table(b"\r\n")


def begins_array(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is an array.

    >>> begins_array(b" [{"), begins_array(b'{"a": [1]}')
    (True, False)
    """
    return head.removeprefix(_BOM).lstrip(_SPACE).startswith(b"[")


def read_array(file: IO[bytes], path: str) -> IO[bytes]:
    """Return a file that is an array as a file with a line for each record.

    Raises:
        SourceError: while it is read, the array has no end, an empty place, or something behind its end.
    """
    return _Array(file, path)  # type: ignore[return-value]  # blocks are read from it, and nothing else


class _Array:
    """The records of an array as lines: spaces between records go, and line ends within them become spaces."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file, self._path = file, path
        self._depth = self._records = 0  # brackets that are open; records that have ended
        self._in_text = self._is_escaped = self._has_content = self._is_over = False
        self._ready, self._ended = b"", False

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end only."""
        while not self._ended and len(self._ready) < size:
            data = self._file.read(_READ_BYTES)
            self._ended = not data
            self._ready += self._lines(np.frombuffer(data, np.uint8)) if data else self._last()
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def _last(self) -> bytes:
        if not self._is_over:
            within = " in a text without an end" if self._in_text else ""
            raise SourceError(
                f"{self._path}: the array ends{within} in record {self._records}, without a ]; the file is cut "
                "short, or a quote is missing: fetch it again, or mend it"
            )
        return b"\n" if self._has_content else b""

    def _lines(self, letters: Bytes) -> bytes:
        if self._is_over:
            self._check_rest(letters)
            return b""
        outside = self._outside(letters)
        opens, closes = outside & _OPENS[letters], outside & _CLOSES[letters]
        after = self._depth + np.cumsum(opens.astype(np.int8) - closes, dtype=np.int64)
        whole, ends = letters, np.flatnonzero(closes & (after <= 0))
        if len(ends):
            letters, outside, opens, after = letters[: ends[0]], outside[: ends[0]], opens[: ends[0]], after[: ends[0]]
        between = outside & (after == 1) & ~closes[: len(letters)]  # the bytes of the array itself, not of its records
        is_start = opens & (after == 1)
        kept = ~is_start & ~(between & _SPACES[letters]) & (after > 0)
        commas = between & (letters == 0x2C)
        self._count(kept & ~commas, commas)
        if len(ends):
            self._end(whole[ends[0] :])
        lines = letters.copy()
        lines[outside & _LINE_ENDS[letters]] = 0x20
        lines[commas] = 0x0A
        self._depth = int(after[-1]) if len(after) else self._depth
        data: bytes = lines[kept].tobytes()
        return data

    def _outside(self, letters: Bytes) -> Mask:
        """Whether each byte is outside a text; its quotes belong to it. Counts the texts and escapes on."""
        quotes = letters == 0x22
        backslashes = letters == 0x5C
        if backslashes.any() or self._is_escaped:
            places = np.arange(len(letters))
            last_other = np.maximum.accumulate(np.where(backslashes, -1, places))
            runs = places - last_other + np.where(last_other < 0, self._is_escaped, 0)  # that end with each byte
            escaped = np.append(self._is_escaped, runs[:-1] % 2 == 1)
            quotes &= ~escaped
            self._is_escaped = bool(runs[-1] % 2)
        in_text = (self._in_text + np.cumsum(quotes)) % 2 == 1
        self._in_text = bool(in_text[-1])
        outside: Mask = ~(in_text | quotes)
        return outside

    def _count(self, content: Mask, commas: Mask) -> None:
        """Count records, each of which a comma ends; refuse one without content."""
        places = np.flatnonzero(commas)
        before = np.cumsum(content)[places]
        filled = np.diff(before, prepend=0) > 0
        if len(filled):
            filled[0] |= self._has_content
        if not filled.all():
            self._refuse_empty(self._records + int(np.argmin(filled)))
        self._records += len(places)
        since = content[places[-1] :] if len(places) else content
        self._has_content = bool(since.any()) or (self._has_content and not len(places))

    def _end(self, rest: Bytes) -> None:
        """Check what begins with the bracket that ends the array."""
        self._is_over = True
        if rest[0] != 0x5D:
            raise SourceError(
                f"{self._path}: a }} ends the array in record {self._records}; mend the brackets of that record"
            )
        if self._records and not self._has_content:
            self._refuse_empty(self._records)
        self._check_rest(rest[1:])

    def _refuse_empty(self, record: int) -> None:
        raise SourceError(f"{self._path}: record {record} of the array is empty; remove the comma before or after it")

    def _check_rest(self, letters: Bytes) -> None:
        if not _SPACES[letters].all():
            raise SourceError(
                f"{self._path}: something follows the end of the array; remove it, or check the brackets of its records"
            )

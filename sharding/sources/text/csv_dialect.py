"""How CSV files are written: with or without a header, and with which delimiter and encoding."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from ringfeed.sharding.common.validation import choice
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.schema import check_distinct_names
from ringfeed.sharding.sources.files.find import compression_of, plain_name

from .blocks import Reader

HEADERS = ("auto", "first", "none")
DECIMALS = (".", ",")
DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", "space": " ", "spaces": "spaces"}
_RUNS = "spaces"  # the delimiter that is one or more spaces or tabs
_GAPS = re.compile(rb'(?<![^ \t\n])"(?:[^"\n]|"")*"(?=[ \t\r\n]|\Z)|(?<![^ \t\n])("[^\n]*)|[ \t]+')
_MARGINS = re.compile(rb"(?m)^ | (?=\r?$)")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvDialect:
    """How the CSV files of a source are written.

    Attributes:
        header: ``first``: the first line holds the names of the columns; ``none``: it is a record; ``auto``: as
            ``first``, but a first line that may be a record is reported, and one of numbers alone is refused.
        columns: names of the columns, in place of those in the header, or of ``f0``, ``f1``, ... without a header.
        delimiter: character between fields; ``spaces``: one or more spaces or tabs; empty: a tab in files called
            ``.tsv``, else a comma.
        encoding: Python's name of the encoding.
        decimal: character before the fraction of a number, ``.`` or ``,``.

    Raises:
        ConfigError: a value violates its rule, or the decimal separates fields, too.

    >>> CsvDialect(delimiter=";", encoding="latin-1").recorded()
    {'delimiter': ';', 'encoding': 'iso8859-1'}
    """

    header: str = "auto"
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    encoding: str = "utf-8"
    decimal: str = "."

    def __post_init__(self) -> None:
        choice("header", self.header, HEADERS)
        choice("decimal", self.decimal, DECIMALS)
        object.__setattr__(self, "columns", tuple(self.columns))
        try:
            object.__setattr__(self, "delimiter", self.delimiter and parse_delimiter(self.delimiter))
            object.__setattr__(self, "encoding", encoding_name(self.encoding))
            check_distinct_names(self.columns, "columns: ")
        except (SourceError, ValueError) as error:
            raise ConfigError(str(error)) from error
        if self.delimiter == self.decimal:
            raise ConfigError(f"{self.decimal!r} cannot both separate fields and begin fractions; change --decimal")

    def delimiter_of(self, path: str) -> str:
        """Return the character between the fields of a file, after `reader` has read it.

        >>> CsvDialect().delimiter_of("a.tsv.gz"), CsvDialect().delimiter_of("a.tsv-00000-of-00002")
        ('\\t', '\\t')
        >>> CsvDialect().delimiter_of("a.csv"), CsvDialect(delimiter="spaces").delimiter_of("a.csv")
        (',', ' ')
        """
        if self.delimiter:
            return " " if self.delimiter == _RUNS else self.delimiter
        name = plain_name(path)
        stem = name.rpartition(".")[0] if compression_of(path) else name
        return "\t" if stem.endswith(".tsv") else ","

    @property
    def reader(self) -> Reader | None:
        """What turns a file into UTF-8 with single delimiters; None where it has that form already."""
        return self._read if self.encoding != "utf-8" or self.delimiter == _RUNS else None

    def _read(self, file: IO[bytes], path: str) -> IO[bytes]:
        return _Recoded(file, path, self.encoding, single=self.delimiter == _RUNS)  # type: ignore[return-value]

    def recorded(self) -> dict[str, Any]:
        """The dialect as in `dataset.json`, without keys for defaults; `from_json` is the inverse."""
        values = {
            "header": self.header if self.header == "none" else "",
            "columns": list(self.columns),
            "delimiter": self.delimiter,
            "encoding": self.encoding if self.encoding != "utf-8" else "",
            "decimal": self.decimal if self.decimal != "." else "",
        }
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CsvDialect:
        """The dialect of an earlier build, whose header was accepted then."""
        return cls(**{"header": "first", **value, "columns": tuple(value.get("columns", ()))})


def parse_delimiter(text: str) -> str:
    """Return the delimiter that a character or a name of `DELIMITERS` means.

    Raises:
        ValueError: it means none.

    >>> parse_delimiter("tab"), parse_delimiter(";"), parse_delimiter("spaces")
    ('\\t', ';', 'spaces')
    """
    delimiter = DELIMITERS.get(text, "\t" if text == "\\t" else text)
    if delimiter != _RUNS and (
        len(delimiter) != 1 or not delimiter.isascii() or delimiter.isalnum() or delimiter in '"\r\n\0'
    ):
        raise ValueError(
            f"a delimiter is one ASCII character that is no letter, digit, quote or line end, or one of "
            f"{', '.join(DELIMITERS)}; got {text!r}"
        )
    return delimiter


def encoding_name(text: str) -> str:
    """Return Python's name of an encoding of text.

    Raises:
        ValueError: there is none of that name.

    >>> encoding_name("UTF8"), encoding_name("windows-1252")
    ('utf-8', 'cp1252')
    """
    try:
        codec = codecs.lookup(text)
        "a".encode(codec.name)  # refuses codecs of bytes, such as base64
    except (LookupError, ValueError) as error:
        raise ValueError(f"there is no encoding {text!r}; name one such as utf-16, windows-1252 or latin-1") from error
    return codec.name


class _Recoded:
    """A file as UTF-8, perhaps with one space for each run of spaces and tabs outside quotes."""

    def __init__(self, file: IO[bytes], path: str, encoding: str, *, single: bool) -> None:
        self._file = file
        self._path = path
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("strict") if encoding != "utf-8" else None
        self._single = single
        self._ready, self._line, self._ended = b"", b"", False

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end only."""
        while not self._ended and len(self._ready) < size:
            self._ready += self._next()
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def _next(self) -> bytes:
        data = self._file.read(_READ_BYTES)
        self._ended = not data
        if self._decoder is not None:
            try:
                data = self._decoder.decode(data, final=self._ended).encode()
            except UnicodeError as error:
                what = error.reason if isinstance(error, UnicodeDecodeError) else error
                raise SourceError(
                    f"{self._path}: it is not {self._encoding} ({what}); name its encoding with --encoding"
                ) from error
        if not self._single:
            return data
        lines, end, rest = (self._line + data).rpartition(b"\n")
        whole, self._line = (self._line + data, b"") if self._ended else (lines + end, rest)
        return _MARGINS.sub(b"", _GAPS.sub(self._gap, whole))

    def _gap(self, match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            raise SourceError(
                f"{self._path}: the quoted field {match[1][:40].decode(errors='replace')!r} does not end in its line, "
                "which --delimiter spaces needs; close it, or write the file with another delimiter"
            )
        return b" " if match[0][:1] in b" \t" else match[0]

"""CSV files with a header: types inferred over every line, so that no value is found unreadable half-way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as pacsv

from ..errors import ConfigError, SourceError
from ..schema import Feature, Schema
from .base import Part, Reject, fail_on_bad, fingerprint_files, list_files, open_file, translate_errors

__all__ = ["CsvSource"]

_SUFFIXES = tuple(f".csv{ending}" for ending in ("", ".gz", ".bz2", ".xz", ".zst"))
_BLOCK_BYTES = 8 << 20
_BY_WORD = {"null": pa.null(), "int64": pa.int64()}
_WIDER = {pa.null(): pa.int64(), pa.int64(): pa.float64()}  # any other type that a value breaks becomes text


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvSource:
    """A source of CSV files; a part is a file."""

    url: str
    schema: Schema
    types: pa.Schema
    parts: tuple[Part, ...]
    fingerprint: str

    @classmethod
    def open(cls, url: str, label: str | None, features: Mapping[str, Feature] | None = None) -> CsvSource:
        """Read all files once to find each column's type.

        Args:
            url: of a file, a folder or a glob.
            label: the column that classes are made of, or None.
            features: scalars that are of these types, by name, whatever they look like.

        Raises:
            ConfigError: a feature is no scalar.
            SourceError: there is no file, one is not UTF-8, a line has too few or too many fields, or headers differ.
        """
        files = list_files(url, _SUFFIXES)
        paths = [file.url for file in files]
        if not paths:
            raise SourceError(f"there is no CSV file ({', '.join(_SUFFIXES)}) at {url}")
        types = _infer(paths, features or {})
        return cls(
            url=url,
            schema=Schema.from_arrow(types, label),
            types=types,
            parts=tuple(Part(path=path) for path in paths),
            fingerprint=fingerprint_files(files),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """The label column; the lines are parsed, the other fields are not converted."""
        label = self.schema.label
        for batch in _read(part.path, self.types, [self.types.names[0] if label is None else label]):
            yield pa.nulls(batch.num_rows) if label is None else self.schema[label].conform(batch.column(0))

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """The records; they are complete."""
        for batch in _read(part.path, self.types, None):
            yield self.schema.conform(batch)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The head of the file."""
        return next(self.drafts(part)).slice(0, records)

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Nothing is left to do."""
        return drafts


def _read(path: str, types: pa.Schema, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Batches of the columns, which are of the types found before.

    Raises:
        SourceError: a value is not: the file changed.
    """
    try:
        yield from _parse(path, types, columns)
    except pa.ArrowInvalid as error:
        raise translate_errors(path, error, "the file changed while it was read; build again") from error


def _parse(path: str, types: pa.Schema, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    convert = pacsv.ConvertOptions(column_types=types, include_columns=columns)
    read = pacsv.ReadOptions(block_size=_BLOCK_BYTES)
    parse = pacsv.ParseOptions(newlines_in_values=True)
    with (
        open_file(path) as file,
        pacsv.open_csv(file, read_options=read, parse_options=parse, convert_options=convert) as reader,
    ):
        yield from reader


def _infer(paths: list[str], features: Mapping[str, Feature]) -> pa.Schema:
    """The narrowest types that hold every value of all files: a type that a value breaks is widened, and again."""
    for feature in features.values():
        if feature.shape:
            raise ConfigError(f"column {feature.name!r}: a field of a CSV file is a scalar, got shape {feature.shape}")
    types: dict[str, pa.DataType] = {name: feature.arrow_type for name, feature in features.items()}
    while True:
        header: pa.Schema | None = None
        try:
            for path in paths:
                schema = _scan(path, types)
                header = header or schema
                if schema.names != header.names:
                    raise SourceError(f"{path}: its header differs from that of {paths[0]}; the columns must agree")
                types = {field.name: types.get(field.name, field.type) for field in schema}
            # Types found in one file were not yet asked of the files before it.
            if all(_scan_types(path, types) for path in paths[:-1]):
                break
        except _Widen as widen:
            if widen.column in features:
                dtype = features[widen.column].dtype
                raise SourceError(f"column {widen.column!r} holds values that are no {dtype}; {widen}") from widen
            types[widen.column] = widen.type
    return pa.schema([(name, pa.string() if kind == pa.null() else kind) for name, kind in types.items()])


def _scan_types(path: str, types: dict[str, pa.DataType]) -> bool:
    _scan(path, types)
    return True


def _scan(path: str, types: dict[str, pa.DataType]) -> pa.Schema:
    """Convert every value of a file; the types given are taken, the others inferred from the first block.

    Raises:
        _Widen: a value does not fit.
        SourceError: the file is no readable CSV.
    """
    schema: pa.Schema | None = None
    try:
        for batch in _parse(path, pa.schema(list(types.items())), None):
            schema = batch.schema
        names = [] if schema is None else schema.names
    except UnicodeDecodeError as error:  # of a column's name
        raise _not_utf8(path) from error
    except pa.ArrowInvalid as error:
        raise _explain(path, error, types, schema) from error
    if schema is None:
        raise SourceError(f"{path}: the file is empty; a CSV needs a header and at least one line")
    if len(names) == 1 and (separator := next((s for s in ";\t|" if s in names[0]), "")):
        raise SourceError(f"{path}: the fields seem to be separated by {separator!r}; write the file with commas")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SourceError(f"{path}: column names must differ, got {', '.join(map(repr, twice))} more than once")
    for field in schema:
        if field.type == pa.binary():  # what Arrow makes of text that is not UTF-8
            raise _not_utf8(path)
    return schema


class _Widen(Exception):
    """A value that the column's type does not hold."""

    def __init__(self, column: str, kind: pa.DataType, told: str) -> None:
        super().__init__(told)
        self.column = column
        self.type = kind


def _explain(path: str, error: pa.ArrowInvalid, types: dict[str, pa.DataType], schema: pa.Schema | None) -> Exception:
    text = str(error)
    with open_file(path) as file:
        utf16 = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
    if utf16 or "UTF8" in text or "UTF-8" in text:
        return _not_utf8(path)
    match = re.search(r"In CSV column #(\d+): CSV conversion error to (\w+)", text)
    if match is None:
        if "Empty CSV" in text:
            return SourceError(f"{path}: the file is empty; a CSV needs a header and at least one line")
        return translate_errors(path, error, "mend that line, or quote its fields")
    name = _header(path)[int(match.group(1))]
    kind = types.get(name) or (schema.field(name).type if schema else _BY_WORD.get(match.group(2), pa.string()))
    return _Widen(name, _WIDER.get(kind, pa.string()), f"{path}: {' '.join(text.split())[:200]}")


def _header(path: str) -> list[str]:
    with open_file(path) as file:
        line = file.readline()
    return list(pacsv.read_csv(pa.BufferReader(line)).column_names)


def _not_utf8(path: str) -> SourceError:
    """Names the line."""
    with open_file(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return SourceError(
                    f"{path}: line {number}, byte {error.start + 1} is not UTF-8; "
                    "convert the file first, for example with: iconv -f latin1 -t utf-8"
                )
    return SourceError(f"{path}: the file is not UTF-8; convert it first, for example with: iconv -f latin1 -t utf-8")

"""Partition keys in folder names, as Hive and Spark write them: ``year=2024/month=01/x.parquet``.

Tested in tests/sharding/sources/tables/test_table_files.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.errors import SourceError

from .find import root_of, split_chain
from .http_listing import decode_name

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The partition keys of a source, the same for all of its files."""

    root: str  # folder below which folder names hold keys, with a slash at the end
    # Nullable column of each key: int64 if all values are integers, each spelled one way, else string
    fields: tuple[pa.Field, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys."""
        return tuple(field.name for field in self.fields)

    def without(self, names: Collection[str]) -> Partitions:
        """Return the partitions without some keys, which the files have as columns, too."""
        return Partitions(root=self.root, fields=tuple(field for field in self.fields if field.name not in names))

    def only(self, names: Collection[str]) -> Partitions:
        """Return the partitions with some of the keys alone."""
        return Partitions(root=self.root, fields=tuple(field for field in self.fields if field.name in names))

    def check(self, name: str, column: pa.Array, path: str) -> None:
        """Check that a column of a file has the value of the key of its name in each row.

        Raises:
            SourceError: a row has another value.
        """
        value = self.values(path)[name]
        values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if value is None:
            odd = values.drop_null()
        else:
            try:
                same = pc.equal(values, pa.scalar(value).cast(values.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):  # it is no value of this type
                same = pa.array([False] * len(values))
            odd = values.filter(pc.invert(pc.fill_null(same, False)))
        if len(odd):
            raise SourceError(
                f"{path}: its column {name!r} holds {odd[0].as_py()!r}, and its folder is called {name}={value}; leave "
                "the column out of the files, or rename the folders"
            )

    def values(self, path: str) -> dict[str, str | None]:
        """Return a file's value of each key, as text; None: null."""
        texts = _values(self.root, path) if self.fields else {}
        return {name: texts[name] for name in self.names}

    def column(self, name: str, path: str, rows: int) -> pa.Array:
        """Return a file's value of a key as a column."""
        (kind,) = (field.type for field in self.fields if field.name == name)
        value = self.values(path)[name]
        if value is None:
            return pa.nulls(rows, kind)
        return pa.repeat(pa.scalar(int(value) if kind == pa.int64() else value, kind), rows)

    def append(self, batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
        """Add a column for each key to a batch of a file."""
        for field in self.fields:
            batch = batch.append_column(field, self.column(field.name, path, batch.num_rows))
        return batch


def find_partitions(url: str, paths: Sequence[str], texts: Collection[str] = ()) -> Partitions:
    """Find the partition keys in the folders below `root_of` a source.

    Args:
        url: URL of the source.
        paths: URLs of its files.
        texts: keys to read as text even if all values are integers.

    Raises:
        SourceError: the files have different keys.
    """
    root = root_of(url, paths)
    parsed = [_values(root, path) for path in paths]
    for path, values in zip(paths, parsed, strict=True):
        if values.keys() != parsed[0].keys():
            raise SourceError(
                f"{path}: its folders name the partition keys ({', '.join(values)}), but {paths[0]} names "
                f"({', '.join(parsed[0])}); give all files of a source the same keys"
            )
    kinds = {name: pa.string() if name in texts else _kind([values[name] for values in parsed]) for name in parsed[0]}
    fields = [pa.field(name, kind) for name, kind in kinds.items()]
    return Partitions(root=root, fields=tuple(fields))


def _values(root: str, path: str) -> dict[str, str | None]:
    """
    >>> _values("data/", "data/year=2024/raw/city=K%C3%B6ln/zip=__HIVE_DEFAULT_PARTITION__/x=1.parquet")
    {'year': '2024', 'city': 'Köln', 'zip': None}
    """
    folders = decode_name(root, split_chain(path)[0][len(root) :]).split("/")[:-1]
    pairs = [folder.partition("=")[::2] for folder in folders if folder.find("=") > 0]
    return {_unquoted(key): None if value == _NULL else _unquoted(value) for key, value in pairs}


def _unquoted(text: str) -> str:
    """Decode escapes; text whose escapes are not UTF-8 stays as it is, so that different folders stay different."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def _kind(values: Sequence[str | None]) -> pa.DataType:
    present = {value for value in values if value is not None}
    integers = present and all(_INTEGER.fullmatch(value) and -(1 << 63) <= int(value) < 1 << 63 for value in present)
    return pa.int64() if integers and len(set(map(int, present))) == len(present) else pa.string()

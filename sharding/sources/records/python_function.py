"""Python functions that return records: dicts, or Arrow batches and tables."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_BYTES, BATCH_ROWS, copy_batch
from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import brief, closest
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.sources.base import Part, RecordSource, Reject, fail_on_bad
from ringfeed.sharding.sources.tables.table_schemas import feature_of
from ringfeed.sharding.sources.user_code import code_hash, describe_error

from .python_values import RecordTypes, column_of_values, copy_value, entries_of

_BATCH_DICTS = 4096  # Python objects take many times their size in Arrow
_SIZED = (str, bytes, bytearray, list, tuple, np.ndarray)  # types that take more memory than a number


@dataclass(frozen=True, slots=True, kw_only=True)
class IterableSource(RecordSource):
    """A source of the records that a function returns, as a single part.

    The function is called without arguments, once a pass, and must return the same records each time: an iterable of
    dicts, or of Arrow batches or tables of one schema. The values of dicts are None, numbers, strings, bytes, dates,
    times, NumPy scalars and arrays, and lists; a nested dict becomes columns such as ``box.x``.
    """

    types: pa.Schema  # types of all columns that the function returns
    records: int  # number of records
    left_out: tuple[str, ...] = ()  # unwanted Arrow columns that no feature can hold

    @classmethod
    def open(cls, url: str, label: str | None, wanted: Callable[[str], bool] = lambda _: True) -> IterableSource:
        """Call the function ``module:function`` once to infer the types of all values; see `open_source`.

        The module may lie in the current folder. Unwanted Arrow columns may have any type.

        Raises:
            SourceError: there is no such function, it fails, or it returns no records, or none that fit in columns.
            ConfigError: no wanted column is left.
        """
        module, _ = _load(url)
        inferred = RecordTypes(url)
        types: pa.Schema | None = None
        count = 0
        for item in _items(url):
            if isinstance(item, Mapping):
                inferred.add(item)
                continue
            types = types or item.schema.remove_metadata()
            _check_schema(url, item.schema, types, count)
            count += item.num_rows
        if not count + inferred.records:
            raise SourceError(f"{url} returned no records")
        if types is None:
            types, count = inferred.schema(), inferred.records
        elif inferred.records:
            raise SourceError(f"{url} returned both dicts and Arrow batches; return records of one kind")
        left_out = tuple(field.name for field in types if not (wanted(field.name) or feature_of(field)))
        if left_out and len(left_out) == len(types):
            raise ConfigError(f"{url}: no column is left; leave fewer out")
        return cls(
            url=url,
            schema=Schema.from_arrow(pa.schema([field for field in types if field.name not in left_out]), label),
            types=types,
            records=count,
            parts=(Part(path=url),),
            fingerprint=f"{derive_key(url, code_hash(module.__name__), count):016x}",
            left_out=left_out,
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Call the function, and convert the label alone."""
        label = self.schema.label
        for batch in self._batches([] if label is None else [label]):
            yield pa.nulls(batch.num_rows) if label is None else self.schema[label].conform(batch.column(label))

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Call the function, and convert its records."""
        for batch in self._batches(self.schema.names):
            yield self.schema.conform(batch)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Call the function, and take its first records."""
        with closing(_items(self.url)) as items:
            for batch in batched(self.url, islice(items, records), self.types, self.schema.names):
                return self.schema.conform(batch.slice(0, records))
        return self.schema.empty

    def _batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in batched(self.url, _items(self.url), self.types, names):
            count += batch.num_rows
            yield batch
        if count != self.records:
            raise SourceError(
                f"{self.url} returned {self.records} records in its first call, and {count} now; it must return the "
                "same ones each time: start afresh in every call, and seed all random numbers"
            )


def batched(url: str, items: Iterable[Any], types: pa.Schema, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Convert dicts, or Arrow batches or tables, to batches of bounded size with the named columns."""
    rows: list[dict[str, Any]] = []
    size = count = 0
    for item in items:
        if not isinstance(item, Mapping):
            _check_schema(url, item.schema, types, count)
            _check_sound(url, item, count)
            count += item.num_rows
            table = pa.Table.from_batches([item]) if isinstance(item, pa.RecordBatch) else item
            most = max(1, min(BATCH_ROWS, item.num_rows * BATCH_BYTES // max(1, item.nbytes)))
            yield from map(copy_batch, _with_rows(table, names).to_batches(max_chunksize=most))
            continue
        entries = entries_of(f"{url}: record {count}", item)
        rows.append({name: copy_value(value) for name, value in entries.items()})
        count += 1
        size += sum(map(_weigh, rows[-1].values()))
        if len(rows) == _BATCH_DICTS or size >= BATCH_BYTES:
            yield _columns(url, rows, types, names, count)
            rows, size = [], 0
    if rows:
        yield _columns(url, rows, types, names, count)


def _columns(
    url: str, rows: list[dict[str, Any]], types: pa.Schema, names: Sequence[str], count: int
) -> pa.RecordBatch:
    where = f"{url}: among the records {count - len(rows)} to {count - 1}"
    known = set(types.names)
    if unknown := next((k for row in rows for k in row if k not in known and row[k] is not None), None):
        raise SourceError(f"{where}: the column {unknown!r} is new; return the same records in each call")
    arrays = [_column(where, [row.get(name) for row in rows], types.field(name)) for name in names]
    if not names:
        return pa.RecordBatch.from_arrays([pa.nulls(len(rows))], names=[""])
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([types.field(name) for name in names]))


def _column(where: str, values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return column_of_values(values, field)
    except UnicodeEncodeError as error:
        raise SourceError(
            f"{where}: the column {field.name!r}: half a surrogate pair is no text: {error.object[:20]!r}; fix it"
        ) from error
    except (TypeError, ValueError) as error:  # Arrow's are ValueErrors too
        raise SourceError(
            f"{where}: the column {field.name!r}: {brief(error)}; return the same records in each call, or fix it"
        ) from error


def _with_rows(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Select columns; if there are none, return a column of nulls, as a table without columns has no rows."""
    return table.select(list(names)) if names else pa.table({"": pa.nulls(table.num_rows)})


def _weigh(value: Any) -> int:
    """Estimate the bytes of a value, assuming that the elements of a list are alike."""
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.nbytes
    if isinstance(value, np.ndarray):
        value = value.ravel()
    if not isinstance(value, (list, tuple, np.ndarray)):
        return 8
    return sum(map(_weigh, value)) if len(value) and isinstance(value[0], _SIZED) else 8 * len(value)


def _check_sound(url: str, batch: pa.RecordBatch | pa.Table, count: int) -> None:
    """Check offsets and text, which Arrow trusts when an array is made of buffers or bytes are cast unchecked."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{url}: the batch from record {count} on is invalid: {brief(error)}; fix it") from error


def _check_schema(url: str, schema: pa.Schema, types: pa.Schema, count: int) -> None:
    ours, theirs = (sorted(fields.remove_metadata(), key=lambda field: field.name) for fields in (schema, types))
    if ours != theirs:
        raise SourceError(
            f"{url}: from record {count} on the schema differs from the first batch; cast one to the other"
        )


# --- the function ------------------------------------------------------------------------------------------------


def _load(url: str) -> tuple[ModuleType, Callable[[], Any]]:
    """Import the module and find the function."""
    name, colon, attribute = url.partition(":")
    if not colon or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name) or not attribute.isidentifier():
        raise SourceError(f"a Python source is MODULE:FUNCTION, such as flights:records, got {url!r}")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    invalidate_caches()
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise SourceError(
                f"there is no module {error.name!r} in {folder} or among the installed ones; check its name, or run "
                "the command in its folder"
            ) from error
        raise _failure(url, error, "") from error
    except (Exception, SystemExit) as error:
        raise _failure(url, error, "") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        close = closest(attribute, [name for name, value in vars(module).items() if callable(value)])
        hint = f"; did you mean {close}?" if close else ""
        raise SourceError(f"{getattr(module, '__file__', name)} has no function {attribute!r}{hint}")
    return module, function


def _items(url: str) -> Generator[Any, None, None]:
    """Call the function, and yield its dicts, batches and tables."""
    module, function = _load(url)
    file = getattr(module, "__file__", None) or ""
    count = 0
    try:
        result = function()
        if isinstance(result, (pa.Table, pa.RecordBatch)):
            result = [result]
        if not isinstance(result, Iterable):
            raise SourceError(f"{url} returned a value of type {type(result).__name__}; it must return records")
        for item in result:
            if not isinstance(item, (Mapping, pa.RecordBatch, pa.Table)):
                raise SourceError(
                    f"{url}: record {count} is of type {type(item).__name__}; return records as dicts, or in Arrow "
                    "batches or tables"
                )
            count += 1
            yield item
    except SourceError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(url, error, file) from error


def _failure(url: str, error: BaseException, file: str) -> SourceError:
    return SourceError(f"{describe_error(error, url, file)}; fix it, or see the traceback with --debug")

"""Infers the types of columns of Python values, and converts them to Arrow columns.

`python_function.py` and `webdataset_members.py` use it for dicts and for JSON.
Tested in tests/sharding/sources/records/test_python_function.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.arrow_casts import is_list, is_number
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import insert_nulls, to_lists

_PYTHON = {bool: pa.bool_(), float: pa.float64(), str: pa.string(), bytes: pa.binary(), bytearray: pa.binary()}
_ARRAYS = (list, tuple, np.ndarray)
_CHANGEABLE = (*_ARRAYS, bytearray)
_RAGGED = "has nested lists of different lengths"
_SUPPORTED = "use numbers, strings, bytes, dates, or lists of them"


def flatten(record: Mapping[str, Any], prefix: str = "", dicts: set[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a record with their values; a nested mapping becomes columns with a dot in their names.

    Args:
        dicts: set to which the names of nested mappings are added.

    >>> dict(flatten({"a": 1, "b": {"c": [2, 3]}}))
    {'a': 1, 'b.c': [2, 3]}
    """
    for key, value in record.items():
        if not isinstance(key, str):
            raise TypeError(f"the name of a column must be a string, got {key!r}")
        if isinstance(value, Mapping):
            if dicts is not None:
                dicts.add(prefix + key)
            yield from flatten(value, f"{prefix}{key}.", dicts)
        else:
            yield prefix + key, value


def copy_value(value: Any) -> Any:
    """Copy a value that its producer may change later: an array, a list or a bytearray that is used again.

    >>> buffer = [1, 2]
    >>> kept = copy_value(buffer)
    >>> buffer.append(3)
    >>> kept
    [1, 2]
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        return (
            [copy_value(element) for element in value]
            if any(isinstance(element, _CHANGEABLE) for element in value)
            else list(value)
        )
    return value


class ColumnType:
    """The narrowest Arrow type that holds every value of a column.

    Integers widen to floats beside floats, and NumPy integers to the widest of their types. Arrays and lists of one
    shape become tensors; one-dimensional ones of different lengths become variable-length lists.
    """

    def __init__(self) -> None:
        self._types: dict[pa.DataType, int] = {}  # each with the first record that has it
        self._shapes: dict[tuple[int, ...], int] = {}  # likewise, at most two of one dimension; () is a scalar
        self._low, self._high = 0, 0
        self._settled: set[Any] = set()  # types, and shapes and dtypes of arrays, that cannot widen the column further

    @property
    def seen(self) -> bool:
        """Whether there was a value yet."""
        return bool(self._shapes)

    def add_one(self, value: Any, record: int) -> None:
        """Do as `add` for one record; skip a value like one that was added before."""
        kind = type(value)
        key = (value.shape, value.dtype) if kind is np.ndarray else kind
        if key in self._settled:
            return
        self.add((value,), record)
        if kind in (str, float, bool, type(None)) or (kind is np.ndarray and value.dtype.kind in "bf"):
            self._settled.add(key)

    def add(self, values: Sequence[Any], first_record: int) -> None:
        """Widen the type by the values of consecutive records; None is a null.

        Raises:
            TypeError: a value has a type that no column can hold, or an array is ragged.
        """
        for kind in set(map(type, values)) - {type(None)}:
            chosen = [(i, value) for i, value in enumerate(values, first_record) if type(value) is kind]
            if not issubclass(kind, _ARRAYS):
                self._add_shape((), chosen[0][0])
                self._add_elements([value for _, value in chosen], chosen[0][0])
                continue
            for record, value in chosen:
                shape, flat = _flat(value)
                self._add_shape(shape, record)
                if isinstance(flat, np.ndarray) and flat.dtype != object:
                    self._add_type(_from_numpy(flat.dtype), record)
                    if flat.dtype.kind in "iu" and flat.size:
                        self._add_range(int(flat.min()), int(flat.max()))
                else:
                    self._add_elements(flat, record)

    def _add_shape(self, shape: tuple[int, ...], record: int) -> None:
        if shape not in self._shapes and sum(len(known) == len(shape) for known in self._shapes) < 2:
            self._shapes[shape] = record

    def _add_type(self, kind: pa.DataType, record: int) -> None:
        self._types.setdefault(kind, record)

    def _add_range(self, low: int, high: int) -> None:
        self._low, self._high = min(self._low, low), max(self._high, high)

    def _add_elements(self, values: Sequence[Any], record: int) -> None:
        for kind in set(map(type, values)):
            if kind is int:
                integers = [value for value in values if type(value) is int]
                self._add_range(min(integers), max(integers))
                self._add_type(pa.int64(), record)
            elif kind in _PYTHON:
                self._add_type(_PYTHON[kind], record)
            elif issubclass(kind, np.generic):
                numbers = np.array([value for value in values if type(value) is kind])
                self._add_type(_from_numpy(numbers.dtype), record)
                if numbers.dtype.kind in "iu":
                    self._add_range(int(numbers.min()), int(numbers.max()))
            else:
                chosen = [value for value in values if type(value) is kind]
                zoned = [value for value in chosen if getattr(value, "tzinfo", None) is not None]
                for group in (zoned, [value for value in chosen if getattr(value, "tzinfo", None) is None]):
                    if group:
                        self._add_type(_from_python(kind, group), record)

    def field(self, name: str) -> pa.Field:
        """Return the column as a field that `Schema.from_arrow` understands.

        Raises:
            TypeError: no type holds all of the values.
        """
        element = self._element()
        shapes = list(self._shapes)
        if len({len(shape) for shape in shapes}) > 1 or (len(shapes) > 1 and len(shapes[0]) != 1):
            (a, first), (b, second) = list(self._shapes.items())[:2]
            raise TypeError(
                f"has {_describe(a)} in record {first} and {_describe(b)} in record {second}; make all arrays of one "
                "shape, or one-dimensional"
            )
        if not shapes or shapes == [()]:
            return pa.field(name, element)
        if pa.types.is_temporal(element):
            raise TypeError(f"has lists of {element} values, which no column can hold; convert them to numbers")
        if len(shapes) > 1 or shapes == [(0,)]:
            return pa.field(name, pa.list_(element))
        size = int(np.prod(shapes[0]))
        if not size:
            raise TypeError(f"has {_describe(shapes[0])}, which are empty")
        metadata = {"shape": ",".join(map(str, shapes[0]))} if len(shapes[0]) > 1 else None
        return pa.field(name, pa.list_(element, size), metadata=metadata)

    def _element(self) -> pa.DataType:
        types = list(self._types)
        if not -(1 << 63) <= self._low <= self._high < 1 << 64:
            raise TypeError(f"has integers from {self._low} to {self._high}, which take more than 64 bits")
        if all(is_number(kind) for kind in types) and types:
            dtype = np.result_type(*(kind.to_pandas_dtype() for kind in types))
            if all(pa.types.is_integer(kind) for kind in types) and (dtype.kind == "f" or self._high >= 1 << 63):
                if self._low < 0:
                    raise TypeError(f"has integers from {self._low} to {self._high}, which no integer type holds")
                dtype = np.dtype(np.uint64)
            return pa.from_numpy_dtype(dtype)
        if len(types) > 1:
            (a, first), (b, second) = list(self._types.items())[:2]
            raise TypeError(
                f"has {a} values in record {first} and {b} values in record {second}; convert them to one type"
            )
        return types[0] if types else pa.string()


class RecordTypes:
    """The columns of dicts, and the types that hold the values of all of them.

    Attributes:
        records: number of dicts so far.
    """

    def __init__(self, source: str) -> None:
        self.records = 0
        self._source = source
        self._columns: dict[str, ColumnType] = {}
        self._dicts: set[str] = set()

    def add(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Widen the types by a record; returns its columns.

        Raises:
            SourceError: the record is no dict, or a value fits no column.
        """
        where = f"{self._source}: record {self.records}"
        if not isinstance(record, Mapping):
            raise SourceError(f"{where} is of type {type(record).__name__}; give dicts, or Arrow batches or tables")
        entries = entries_of(where, record, self._dicts)
        for name, value in entries.items():
            try:
                self._columns.setdefault(name, ColumnType()).add_one(value, self.records)
            except TypeError as error:
                raise SourceError(f"{where}: the column {name!r} {error}") from error
        self.records += 1
        return entries

    def schema(self) -> pa.Schema:
        """The columns as fields that `Schema.from_arrow` understands.

        Raises:
            SourceError: no type holds all values of a column.
        """
        fields = []
        for name, column in self._columns.items():
            if column.seen or name not in self._dicts:
                try:
                    fields.append(column.field(name))
                except TypeError as error:
                    raise SourceError(f"{self._source}: the column {name!r} {error}") from error
        return pa.schema(fields)


def entries_of(where: str, record: Mapping[str, Any], dicts: set[str] | None = None) -> dict[str, Any]:
    """Return the columns of a record with their values, as `flatten` does.

    Raises:
        SourceError: a name is no string, or two values have one; `where` says in which record.
    """
    try:
        entries = list(flatten(record, dicts=dicts))
    except TypeError as error:
        raise SourceError(f"{where}: {error}") from error
    known = dict(entries)
    if len(known) < len(entries):
        raise SourceError(f"{where}: two of its values would be columns of the same name")
    return known


def column_of_values(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Convert values to the type that `ColumnType` inferred.

    Raises:
        TypeError, ValueError: a value does not fit.
    """
    kind = field.type
    if not is_list(kind):
        values = [value[()] if isinstance(value, np.ndarray) else value for value in values]  # zero-dimensional arrays
        if kind == pa.float64():  # Arrow refuses integers above 2**53
            values = [float(value) if _is_integer(value) else value for value in values]
        elif kind == pa.date32():  # Arrow refuses NumPy scalars of days
            values = [value.item() if isinstance(value, np.datetime64) else value for value in values]
        return pa.array(values, kind)
    absent = np.array([value is None for value in values], bool)
    flats = [_flat(value)[1] for value in values if value is not None]
    lengths = np.zeros(len(values), np.int64)
    lengths[~absent] = [len(flat) for flat in flats]
    if pa.types.is_list(kind):
        mask = pa.array(absent) if absent.any() else None
        return to_lists(_elements(flats, kind.value_type), lengths, mask)
    if (lengths[~absent] != kind.list_size).any():
        raise ValueError(f"an array does not have {kind.list_size} elements, as all had before")
    tensors = pa.FixedSizeListArray.from_arrays(_elements(flats, kind.value_type), kind.list_size)
    return insert_nulls(tensors, pa.array(~absent))


def _is_integer(value: Any) -> bool:
    return type(value) is int or isinstance(value, np.integer)


def _elements(flats: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if flats and all(isinstance(flat, np.ndarray) and flat.dtype.kind in "biuf" for flat in flats):
        if pa.types.is_integer(kind) and len({flat.dtype for flat in flats}) > 1:  # int64 and uint64 would be rounded
            return pa.concat_arrays([pa.array(flat).cast(kind) for flat in flats])
        return pa.array(np.concatenate(flats)).cast(kind)
    return column_of_values(list(chain.from_iterable(flats)), pa.field("", kind))


def _flat(value: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape of an array or of nested lists, and the elements.

    Raises:
        TypeError: nested lists differ in length, or an array is masked.
    """
    if isinstance(value, np.ndarray):
        if np.ma.isMaskedArray(value):
            raise TypeError("has masked arrays; fill them, or remove the masked elements")
        flat = value.reshape(-1)
        return value.shape, flat.tolist() if flat.dtype.kind in "SUO" else flat
    shape: tuple[int, ...] = (len(value),)
    while any(isinstance(element, _ARRAYS) for element in value):
        inner = {_length(element) for element in value}
        if len(inner) > 1:
            raise TypeError(_RAGGED)
        if any(isinstance(element, np.ndarray) for element in value):
            return _flat_arrays(value, shape)
        shape = (*shape, len(value[0]))
        value = list(chain.from_iterable(value))
    return shape, value


def _flat_arrays(value: Sequence[Any], shape: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
    """Do as `_flat` for arrays, perhaps with lists among them, nested in lists of shape `shape`."""
    shapes, flats = zip(*map(_flat, value), strict=True)
    if len(set(shapes)) > 1:
        raise TypeError(_RAGGED)
    alike = all(isinstance(flat, np.ndarray) for flat in flats) and len({flat.dtype for flat in flats}) == 1
    return (*shape, *shapes[0]), np.concatenate(flats) if alike else list(chain.from_iterable(flats))


def _length(element: Any) -> tuple[int, ...] | None:
    """Return the first dimension of an array or list, ``()`` if it has none, and None for other elements."""
    if not isinstance(element, _ARRAYS):
        return None
    return () if isinstance(element, np.ndarray) and not element.ndim else (len(element),)


def _from_numpy(dtype: npt.DTypeLike) -> pa.DataType:
    dtype = np.dtype(dtype)
    if dtype.kind == "U":
        return pa.string()
    if dtype.kind == "S":
        return pa.binary()
    try:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    except pa.ArrowNotImplementedError as error:
        raise TypeError(f"has NumPy values of type {dtype}, which no column can hold; {_SUPPORTED}") from error


def _from_python(kind: type, values: Sequence[Any]) -> pa.DataType:
    """Return the Arrow type of dates, times and durations."""
    if kind is type(None):
        raise TypeError("has lists with None in them; remove such elements, or use another value")
    if kind.__name__ == "NaTType":  # of pandas; Arrow infers a timestamp, then cannot convert it
        raise TypeError("has NaT; use None for missing values")
    try:
        inferred = pa.infer_type(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TypeError(f"has a value of type {kind.__name__}, which no column can hold; {_SUPPORTED}") from error
    if not pa.types.is_temporal(inferred):
        raise TypeError(f"has a value of type {kind.__name__}, which no column can hold; {_SUPPORTED}")
    if any(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) for value in values):  # of pandas
        raise TypeError(f"has a {kind.__name__} with nanoseconds, which Arrow truncates; use its to_numpy()")
    if pa.types.is_time(inferred) and any(value.tzinfo is not None for value in values):
        raise TypeError("has a time with a zone, which Arrow drops; add its date, or remove the zone")
    return inferred


def _describe(shape: tuple[int, ...]) -> str:
    return f"arrays of shape {shape}" if shape else "single values"

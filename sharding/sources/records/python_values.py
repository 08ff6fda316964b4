"""Types for columns of Python values, found over all of them, and their columns in Arrow.

For sources whose records are Python objects: functions of the user's, JSON. Not here: what a record is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...compute.arrow_casts import is_list, is_number
from ...schema import in_lists, with_missing

__all__ = ["ColumnType", "column_of_values", "flatten"]

_PYTHON = {bool: pa.bool_(), float: pa.float64(), str: pa.string(), bytes: pa.binary(), bytearray: pa.binary()}
_ARRAYS = (list, tuple, np.ndarray)
_RAGGED = "has lists within lists that are not all of one length"
_GIVE = "give numbers, strings, bytes, dates, or lists of them"


def flatten(record: Mapping[str, Any], prefix: str = "", dicts: set[str] | None = None) -> Iterator[tuple[str, Any]]:
    """The values of a record by column; a mapping within it becomes columns with a dot in their names.

    Args:
        record: to be told.
        prefix: of the names.
        dicts: to which the names of mappings within it are added.

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


class ColumnType:
    """The narrowest Arrow type that holds every value of a column.

    Integers widen to floats where there are some, and to the widest of NumPy's widths where they are NumPy's. Arrays
    and lists that are all of one shape make a tensor of it; of one dimension and several lengths, variable lists.
    """

    def __init__(self) -> None:
        self._types: dict[pa.DataType, int] = {}  # each with the first record that has it
        self._shapes: dict[tuple[int, ...], int] = {}  # likewise, at most two of one dimension; () is a scalar
        self._low, self._high = 0, 0
        self._settled: set[Any] = set()  # types, and shapes and dtypes of arrays, of which nothing is to be learned

    @property
    def seen(self) -> bool:
        """Whether there was a value yet."""
        return bool(self._shapes)

    def add_one(self, value: Any, record: int) -> None:
        """As `add`, of one record: at once where one like it was seen."""
        kind = type(value)
        key = (value.shape, value.dtype) if kind is np.ndarray else kind
        if key in self._settled:
            return
        self.add((value,), record)
        if kind in (str, float, bool, type(None)) or (kind is np.ndarray and value.dtype.kind in "bf"):
            self._settled.add(key)

    def add(self, values: Sequence[Any], first_record: int) -> None:
        """Widen the type by some records' values; None is none.

        Raises:
            TypeError: a value is of a type that no column has; or an array is ragged.
        """
        for kind in set(map(type, values)) - {type(None)}:
            chosen = [(i, value) for i, value in enumerate(values, first_record) if type(value) is kind]
            if not issubclass(kind, _ARRAYS):
                self._see_shape((), chosen[0][0])
                self._see_elements([value for _, value in chosen], chosen[0][0])
                continue
            for record, value in chosen:
                shape, flat = _flat(value)
                self._see_shape(shape, record)
                if isinstance(flat, np.ndarray) and flat.dtype != object:
                    self._see_type(_of_numpy(flat.dtype), record)
                    if flat.dtype.kind in "iu" and flat.size:
                        self._see_range(int(flat.min()), int(flat.max()))
                else:
                    self._see_elements(flat, record)

    def _see_shape(self, shape: tuple[int, ...], record: int) -> None:
        if shape not in self._shapes and sum(len(seen) == len(shape) for seen in self._shapes) < 2:
            self._shapes[shape] = record

    def _see_type(self, kind: pa.DataType, record: int) -> None:
        self._types.setdefault(kind, record)

    def _see_range(self, low: int, high: int) -> None:
        self._low, self._high = min(self._low, low), max(self._high, high)

    def _see_elements(self, values: Sequence[Any], record: int) -> None:
        for kind in set(map(type, values)):
            if kind is int:
                integers = [value for value in values if type(value) is int]
                self._see_range(min(integers), max(integers))
                self._see_type(pa.int64(), record)
            elif kind in _PYTHON:
                self._see_type(_PYTHON[kind], record)
            elif issubclass(kind, np.generic):
                numbers = np.array([value for value in values if type(value) is kind])
                self._see_type(_of_numpy(numbers.dtype), record)
                if numbers.dtype.kind in "iu":
                    self._see_range(int(numbers.min()), int(numbers.max()))
            else:
                chosen = [value for value in values if type(value) is kind]
                zoned = [value for value in chosen if getattr(value, "tzinfo", None) is not None]
                for group in (zoned, [value for value in chosen if getattr(value, "tzinfo", None) is None]):
                    if group:
                        self._see_type(_of_python(kind, group), record)

    def field(self, name: str) -> pa.Field:
        """The column, as `Schema.from_arrow` reads it.

        Raises:
            TypeError: no type holds all of the values.
        """
        element = self._element()
        shapes = list(self._shapes)
        if len({len(shape) for shape in shapes}) > 1 or (len(shapes) > 1 and len(shapes[0]) != 1):
            (a, first), (b, second) = list(self._shapes.items())[:2]
            raise TypeError(
                f"has {_describe(a)} in record {first} and {_describe(b)} in record {second}; arrays are of one shape, "
                "or of one dimension"
            )
        if not shapes or shapes == [()]:
            return pa.field(name, element)
        if pa.types.is_temporal(element):
            raise TypeError(f"has lists of {element} values, which no column has; give them as numbers")
        if len(shapes) > 1 or shapes == [(0,)]:
            return pa.field(name, pa.list_(element))
        size = int(np.prod(shapes[0]))
        if not size:
            raise TypeError(f"has {_describe(shapes[0])}, which hold nothing")
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
                f"has {a} values in record {first} and {b} values in record {second}; make them of one type"
            )
        return types[0] if types else pa.string()


def column_of_values(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """The values as the type that `ColumnType` found.

    Raises:
        TypeError, ValueError: one does not fit.
    """
    kind = field.type
    if not is_list(kind):
        values = [value[()] if isinstance(value, np.ndarray) else value for value in values]  # arrays of no dimension
        if kind == pa.float64():  # Arrow makes none of integers above 2**53
            values = [float(value) if _is_integer(value) else value for value in values]
        elif kind == pa.date32():  # Arrow takes no NumPy scalars of days
            values = [value.item() if isinstance(value, np.datetime64) else value for value in values]
        return pa.array(values, kind)
    absent = np.array([value is None for value in values], bool)
    flats = [_flat(value)[1] for value in values if value is not None]
    lengths = np.zeros(len(values), np.int64)
    lengths[~absent] = [len(flat) for flat in flats]
    if pa.types.is_list(kind):
        mask = pa.array(absent) if absent.any() else None
        return in_lists(_elements(flats, kind.value_type), lengths, mask)
    if (lengths[~absent] != kind.list_size).any():
        raise ValueError(f"an array has not the {kind.list_size} elements that all had before")
    tensors = pa.FixedSizeListArray.from_arrays(_elements(flats, kind.value_type), kind.list_size)
    return with_missing(tensors, pa.array(~absent))


def _is_integer(value: Any) -> bool:
    return type(value) is int or isinstance(value, np.integer)


def _elements(flats: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if flats and all(isinstance(flat, np.ndarray) and flat.dtype.kind in "biuf" for flat in flats):
        if pa.types.is_integer(kind) and len({flat.dtype for flat in flats}) > 1:  # int64 and uint64 would be rounded
            return pa.concat_arrays([pa.array(flat).cast(kind) for flat in flats])
        return pa.array(np.concatenate(flats)).cast(kind)
    return column_of_values(list(chain.from_iterable(flats)), pa.field("", kind))


def _flat(value: Any) -> tuple[tuple[int, ...], Any]:
    """The shape of an array or of nested lists, and the elements.

    Raises:
        TypeError: lists within it are of several lengths.
    """
    if isinstance(value, np.ndarray):
        if np.ma.isMaskedArray(value):
            raise TypeError("has masked arrays; fill them, or leave such elements out")
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
    """As `_flat`, of arrays, perhaps with lists among them: so many as `shape` says."""
    shapes, flats = zip(*map(_flat, value), strict=True)
    if len(set(shapes)) > 1:
        raise TypeError(_RAGGED)
    alike = all(isinstance(flat, np.ndarray) for flat in flats) and len({flat.dtype for flat in flats}) == 1
    return (*shape, *shapes[0]), np.concatenate(flats) if alike else list(chain.from_iterable(flats))


def _length(element: Any) -> tuple[int, ...] | None:
    """Of an element that is an array or a list: none if it has no dimension."""
    if not isinstance(element, _ARRAYS):
        return None
    return () if isinstance(element, np.ndarray) and not element.ndim else (len(element),)


def _of_numpy(dtype: npt.DTypeLike) -> pa.DataType:
    dtype = np.dtype(dtype)
    if dtype.kind == "U":
        return pa.string()
    if dtype.kind == "S":
        return pa.binary()
    try:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    except pa.ArrowNotImplementedError as error:
        raise TypeError(f"has NumPy values of type {dtype}, which no column has; {_GIVE}") from error


def _of_python(kind: type, values: Sequence[Any]) -> pa.DataType:
    """Dates, times and the like, as Arrow takes them."""
    if kind is type(None):
        raise TypeError("has lists with None in them; leave such elements out, or use another value")
    if kind.__name__ == "NaTType":  # of pandas; Arrow takes it for a timestamp, and then cannot read it
        raise TypeError("has NaT; give None where there is no value")
    try:
        found = pa.infer_type(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TypeError(f"has a value of type {kind.__name__}, which no column has; {_GIVE}") from error
    if not pa.types.is_temporal(found):
        raise TypeError(f"has a value of type {kind.__name__}, which no column has; {_GIVE}")
    if any(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) for value in values):  # of pandas
        raise TypeError(f"has a {kind.__name__} with nanoseconds, which Arrow cuts off; give its to_numpy()")
    if pa.types.is_time(found) and any(value.tzinfo is not None for value in values):
        raise TypeError("has a time with a zone, which Arrow leaves out; give it with its date, or without the zone")
    return found


def _describe(shape: tuple[int, ...]) -> str:
    return f"arrays of shape {shape}" if shape else "single values"

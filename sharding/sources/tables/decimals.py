"""Default features of decimal columns, which hold every value of theirs.

Tested in tests/sharding/sources/tables/test_plain_arrays.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from ringfeed.sharding.compute.arrow_casts import is_list
from ringfeed.sharding.schema import Feature

_INTEGER_DIGITS = 18  # every number of so many digits fits int64
_FLOAT_DIGITS = 15  # that a float64 gives back as they were


def decimal_features(schemas: Iterable[pa.Schema]) -> Mapping[str, Feature]:
    """The features of columns of decimals, and of lists of them, by name; fields of structs by their dotted names.

    Whole numbers of up to 18 digits are int64, others of up to 15 digits float64, and longer ones text.

    >>> schema = pa.schema({"price": pa.decimal128(10, 2), "rate": pa.decimal128(38, 18)})
    >>> [feature.dtype for feature in decimal_features([schema]).values()]
    ['float64', 'string']
    """
    digits: dict[str, tuple[int, int, tuple[int | None, ...]]] = {}
    for schema in schemas:
        for name, kind, shape in _decimals("", schema):
            whole, places, _ = digits.get(name, (0, 0, shape))
            digits[name] = max(whole, kind.precision - kind.scale), max(places, kind.scale), shape
    return {
        name: Feature(name=name, dtype=_dtype(whole, places), shape=shape)
        for name, (whole, places, shape) in digits.items()
    }


def _decimals(before: str, fields: Iterable[pa.Field]) -> Iterator[tuple[str, pa.DataType, tuple[int | None, ...]]]:
    for field in fields:
        kind: pa.DataType = field.type
        shape: tuple[int | None, ...] = ()
        if is_list(kind):
            shape, kind = (kind.list_size if pa.types.is_fixed_size_list(kind) else None,), kind.value_type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_decimal(kind):
            yield before + field.name, kind, shape
        elif pa.types.is_struct(kind) and not shape:
            yield from _decimals(f"{before}{field.name}.", kind)


def _dtype(whole: int, places: int) -> str:
    if places <= 0 and whole <= _INTEGER_DIGITS:
        return "int64"
    return "float64" if whole + max(places, 0) <= _FLOAT_DIGITS else "string"

"""Exact casts between Arrow types: a value that the new type cannot hold is an error, never changed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.schema import Feature, insert_nulls

_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_INFINITE = ("inf", "infinity")  # as Arrow reads them, without a sign and in lower case


def can_cast(kind: pa.DataType, feature: Feature) -> bool:
    """Whether `cast_to_feature` can cast columns of a type to a feature, if the feature can hold their values.

    >>> can_cast(pa.decimal128(3, 2), Feature(name="x", dtype="float64"))
    True
    >>> can_cast(pa.list_(pa.list_(pa.int8())), Feature(name="x", dtype="int8", shape=(2, 2)))
    True
    """
    if pa.types.is_null(kind):
        return True
    for _ in feature.shape:
        if not is_list(kind):
            return False
        kind = kind.value_type
    if is_list(kind) or pa.types.is_temporal(kind):  # the unit of time would be lost
        return False
    try:
        pc.cast(pa.array([], kind), feature.primitive)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def cast_to_feature(column: pa.Array, feature: Feature, what: str) -> pa.Array:
    """Cast a column to the type of a feature that it `can_cast`.

    Args:
        column: only nulls, or scalars, or lists nested as deep as the feature's shape.

    Raises:
        SourceError: the feature cannot hold a value.
    """
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), feature.arrow_type)
    if len(feature.shape) > 1:
        column = _flattened(column, feature, what)
    return cast_column(column, feature.arrow_type, what)


def _flattened(column: pa.Array, feature: Feature, what: str) -> pa.Array:
    """Flatten nested lists of the feature's shape to one list per row; nulls stay."""
    present = column.is_valid()
    values = column.filter(present)
    for size in feature.shape:
        if pc.any(pc.fill_null(pc.not_equal(pc.list_value_length(values), size), True)).as_py():
            raise SourceError(
                f"{what}: a value is not of shape {list(feature.shape)}; declare their common shape, or drop the column"
            )
        values = values.flatten()
    return insert_nulls(pa.FixedSizeListArray.from_arrays(values, feature.elements), present)


def is_number(kind: pa.DataType) -> bool:
    """Whether a type holds integers or floats; decimals do not count."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a type holds lists, of fixed or variable length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def cast_column(column: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """Cast a column to another type; raises a SourceError if the type cannot hold a value."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == kind:
        return column
    try:
        result = pc.cast(_exact_text(column, kind), kind)
        _check_held(column, result)
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"{what}: {brief(error)}; choose a type that holds every value, or drop such records with --filter first"
        ) from error
    return result


def _exact_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Write decimals that become floats as text, which Arrow rounds to the nearest float; decimals it does not."""
    source, target = column.type, kind
    while is_list(source) and is_list(target):
        source, target = source.value_type, target.value_type
    if not (pa.types.is_decimal(source) and pa.types.is_floating(target)):
        return column
    return pc.cast(column, _with_element(column.type, pa.string()))


def _with_element(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    """Return the type of the same lists of other elements."""
    if not is_list(kind):
        return element
    inner = _with_element(kind.value_type, element)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def _check_held(column: pa.Array, result: pa.Array) -> None:
    """Refuse what Arrow lets pass: infinity for large numbers, true for any number, integers rounded by float16.

    Raises:
        pa.ArrowInvalid: names the first such value.
    """
    while is_list(column.type):
        column, result = column.flatten(), result.flatten()
    before, after = column.type, result.type
    if pa.types.is_floating(after):
        if pa.types.is_integer(before):
            changed = pc.not_equal(result.cast(pa.float64()), column.cast(pa.float64(), safe=False))
        elif pa.types.is_floating(before):
            changed = pc.and_(_infinite(result), pc.invert(_infinite(column)))
        elif before in _TEXTS:
            infinite = pc.is_in(pc.utf8_lower(pc.utf8_ltrim(column.cast(pa.string()), "+-")), pa.array(_INFINITE))
            changed = pc.and_(_infinite(result), pc.invert(infinite))
        elif pa.types.is_decimal(before):
            changed = pc.not_equal(result.cast(pa.string()).cast(before), column)  # by way of the shortest digits
        else:
            return
    elif pa.types.is_boolean(after) and is_number(before):
        changed = pc.not_equal(result.cast(before), column)
    else:
        return
    lost = column.filter(changed)
    if len(lost):
        raise pa.ArrowInvalid(f"value {lost[0].as_py()!r} does not fit")


def _infinite(column: pa.Array) -> pa.Array:
    return pc.is_inf(column.cast(pa.float64()))

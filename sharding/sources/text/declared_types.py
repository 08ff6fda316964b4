"""Declared types: whether text can have them, and casts of text to them that are exact or fail.

Tested in tests/sharding/sources/text/test_csv.py and tests/sharding/sources/text/test_jsonl.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean, listed
from ringfeed.sharding.schema import Feature

_TRUE, _FALSE = ("true", "True", "TRUE", "1"), ("false", "False", "FALSE", "0")
_INFINITE = ("inf", "infinity")
_TEMPORAL = ("date32[day]", "timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]")


def check_names(features: Mapping[str, Feature], names: Iterable[str]) -> None:
    """Refuse declared types of missing columns; the ConfigError names the column, and those that might be meant."""
    known = list(names)
    for name in features:
        if name not in known:
            hint = did_you_mean(name, known, f"they are: {listed(known)}")
            raise ConfigError(f"a type is given for {name!r}, but there is no such column; {hint}")


def beyond_integers(path: str, place: str, name: str, value: int, low: int) -> str:
    """Return the error of a column of integers that no integer type holds.

    Args:
        path: file of such an integer.
        value: the integer.
        low: least integer of the column.
    """
    digits = f"{str(value)[:50]}..." if value.bit_length() > 200 else str(value)
    mixed = low < 0 and -(1 << 63) <= value < 1 << 64
    what = "is beyond 63 bits, and others are negative" if mixed else "is beyond 64 bits"
    return (
        f"{path}: {place}: {name!r}: the integer {digits} {what}; declare {name!r} with --schema: string keeps "
        "every digit, float64 rounds, int64 with --on-bad-record skip:N skips such records; or leave it out by "
        "the first --drop-columns or --select"
    )


def exceeds_more(value: int, other: int) -> bool:
    """Whether one integer exceeds every 64-bit type, and another does not."""
    return not -(1 << 63) <= value < 1 << 64 and -(1 << 63) <= other < 1 << 64


def declared_arrow_type(feature: Feature) -> pa.DataType:
    """Return the Arrow type of one element; raises a ConfigError if text cannot hold such values."""
    if not feature.logical:
        return feature.primitive
    if feature.logical not in _TEMPORAL:
        raise ConfigError(
            f"column {feature.name!r} cannot be read from text as {feature.logical}; give it as string or as one of "
            f"{', '.join(_TEMPORAL)}"
        )
    return pa.type_for_alias(feature.logical)


def cast_text(text: pa.Array, feature: Feature, missing: Sequence[str] = ()) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Cast text to elements of a feature.

    Args:
        text: strings; nulls stay null.
        missing: texts that mean null, unless the elements are strings.

    Returns:
        The elements, null where the type cannot hold the text; and a mask of these, bool [elements].
    """
    kind = declared_arrow_type(feature)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return text.cast(kind), np.zeros(len(text), bool)
    if missing:
        text = pc.if_else(pc.is_in(text, pa.array(missing)), None, text)
    if pa.types.is_boolean(kind):
        true = pc.is_in(text, pa.array(_TRUE))
        known = pc.or_(true, pc.is_in(text, pa.array(_FALSE)))
        values = pc.if_else(known, true, None)
    else:
        values = _finite(text, _cast(_digits(text, kind), kind))
    bad = pc.and_(values.is_null(), text.is_valid())
    return values, np.asarray(bad.to_numpy(zero_copy_only=False), bool)


def _digits(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return text without the spaces around numbers, and the plus signs of integers, which Arrow does not cast."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if not is_number or not pc.any(pc.match_substring_regex(text, "[ \t+]"), min_count=0).as_py():
        return text
    trimmed = pc.utf8_trim(text, " \t")
    return pc.replace_substring_regex(trimmed, "^[+]([0-9])", "\\1") if pa.types.is_integer(kind) else trimmed


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast, with null for a value that does not fit: bisects the column until such a value stands alone."""
    try:
        return pc.cast(text, kind)
    except pa.ArrowInvalid:
        if len(text) > 1:
            half = len(text) // 2
            return pa.concat_arrays([_cast(text[:half], kind), _cast(text[half:], kind)])
    return pa.array([_integer(text[0].as_py(), kind)], kind)


def _integer(text: str, kind: pa.DataType) -> int | None:
    """Return a whole number written as a float, such as 3.0, which pandas writes for integer columns with nulls."""
    if not pa.types.is_integer(kind) or "_" in text or not text.isascii():  # Python would read 1_0 and other digits
        return None
    try:
        value = Decimal(text)
        if value != value.to_integral_value() or value.adjusted() > 20:
            return None
        pa.scalar(int(value), kind)
        return int(value)
    except (InvalidOperation, OverflowError, pa.ArrowInvalid):
        return None


def _finite(text: pa.Array, values: pa.Array) -> pa.Array:
    """Return null for a number beyond the type's range, which Arrow reads as infinity."""
    if not pa.types.is_floating(values.type):
        return values
    infinite = np.flatnonzero(np.isinf(values.fill_null(0).to_numpy(zero_copy_only=False)))
    over = [row for row in infinite if text[int(row)].as_py().strip(" \t+-").lower() not in _INFINITE]
    if not over:
        return values
    mask = np.zeros(len(values), bool)
    mask[over] = True
    return pc.if_else(pa.array(mask), None, values)

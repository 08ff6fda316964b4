"""Whether values that were read are of the types that dataclasses declare: a sealed file may be another program's."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["misfit"]

_MOST = 1 << 64  # no whole number of a dataset is as large


def misfit(value: object, kind: Any, where: str = "") -> str:
    """What of a value is not of a type, in words, or empty.

    Args:
        value: of any kind.
        kind: an annotation, of dataclasses, unions, mappings from text, sequences, tuples of one kind, and plain types.
        where: the value stands, for the words.

    >>> misfit({"a": 1, "b": "2"}, Mapping[str, int], "counts")
    "counts['b'] is '2', which is no int"
    """
    if kind is Any:
        return ""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        found = [misfit(value, one, where) for one in arguments]
        return "" if "" in found else found[0]
    if is_dataclass(kind):
        if type(value) is not kind:
            return _said(value, kind, where)
        parts = ((getattr(value, name), own, f"{where}.{name}".lstrip(".")) for name, own in _types(kind))
    elif origin is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return _said(value, dict, where)
        parts = ((one, arguments[1], f"{where}[{key!r}]") for key, one in value.items())
    elif origin in (tuple, Sequence):
        if not isinstance(value, Sequence) or isinstance(value, str):
            return _said(value, list, where)
        if arguments[0] is Any or hasattr(value, "__array__"):  # of numbers: millions, it may be
            return ""
        parts = ((one, arguments[0], f"{where}[{number}]") for number, one in enumerate(value))
    else:
        return "" if _is_plain(value, kind) else _said(value, kind, where)
    return next(filter(None, (misfit(*part) for part in parts)), "")


@cache
def _types(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is int:
        return type(value) is int and abs(value) < _MOST
    if kind is float:
        return type(value) in (int, float)
    return value is None if kind is types.NoneType else isinstance(value, kind)


def _said(value: object, kind: Any, where: str) -> str:
    text = repr(value)
    return f"{where} is {text if len(text) < 60 else text[:60] + '...'}, which is no {kind.__name__}"

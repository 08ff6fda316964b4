"""Checks values against types: options in Python, keys of YAML files, the content of manifests.

An error names the value by its dotted path, the type that it must have, and what it is. Rules beyond types, such as
ranges, stand in the classes that hold the values.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any, SupportsIndex, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean, one_line

_SHOWN = 80  # characters of a value in an error


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts."""

    words: str  # what a value must be, for errors: ``an integer``
    # Returns a value as the type; raises TypeError, ValueError or ArithmeticError for any other value
    convert: Callable[[Any], Any]


def _converter(accepted: Any, convert: Callable[[Any], Any], refused: Any = ()) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if not isinstance(value, accepted) or isinstance(value, refused):
            raise TypeError
        return convert(value)

    return checked


SCALARS: Mapping[Any, Scalar] = {
    bool: Scalar("True or False", _converter(bool | np.bool_, bool)),
    int: Scalar("an integer", _converter(object, operator.index, bool)),
    float: Scalar("a number", _converter(object, float, str | bytes | bool)),
    str: Scalar("text", _converter(str, lambda value: value)),
    # A float counts as the decimal that it is written as: 0.1 is a tenth.
    Fraction: Scalar(
        "a number such as 0.9", _converter(int | float | str | Fraction | Decimal, lambda x: Fraction(str(x)), bool)
    ),
    types.NoneType: Scalar("None", _converter(types.NoneType, lambda value: value)),
}


class _MisfitError(Exception):
    """A value at a path is not of its type."""

    def __init__(self, path: str, value: object, kind: Any, scalars: Mapping[Any, Scalar]) -> None:
        super().__init__(path, value, kind, scalars)
        self.path = path

    def __str__(self) -> str:  # made only when it is shown: a union raises one for each type that does not fit
        path, value, kind, scalars = self.args
        shown = one_line(repr(value))
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        return f"{path or 'the document'} must be {_described(kind, scalars)}, got {shown}"


def fit(name: str, value: object, kind: Any, scalars: Mapping[Any, Scalar] = SCALARS) -> Any:
    """Return a value as an annotated type.

    Args:
        name: dotted path of the value, for errors; empty for a whole document.
        value: the value. In place of a dataclass, an instance, which is checked field by field, or a mapping, from
            which one is made.
        kind: a dataclass, a union, a `Mapping`, a `Sequence` or tuple of one type, a scalar, or any other class. The
            types of a union must differ in more than their parts.

    Raises:
        ConfigError: the value is not of the type, lacks a key or has an unknown one.

    >>> fit("splits", {"train": 0.9, "test": "0.1"}, Mapping[str, Fraction])
    {'train': Fraction(9, 10), 'test': Fraction(1, 10)}
    >>> fit("counts", {"a": 1, "b": "2"}, Mapping[str, int])
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: counts.b must be an integer, got '2'
    """
    try:
        return _fit(name, value, kind, scalars)
    except _MisfitError as error:
        raise ConfigError(str(error)) from error


def fit_fields(options: Any, group: str = "") -> None:
    """Convert each field of a frozen dataclass to its annotated type, from its `__post_init__`.

    Args:
        group: what the names of its fields begin with in errors.

    Raises:
        ConfigError: a field is not of its type.
    """
    own: Any = type(options)
    for name, kind in _field_types(own):
        value = getattr(options, name)
        if not is_dataclass(kind):
            object.__setattr__(options, name, fit(_joined(group, name), value, kind))
        elif not isinstance(value, cast("type", kind)):
            raise ConfigError(f"{_joined(group, name)} must be {cast('type', kind).__name__}, got {value!r}")


def is_required(spec: Field[Any]) -> bool:
    """Whether a field of a dataclass has no default."""
    return spec.default is MISSING and spec.default_factory is MISSING


def _fit(path: str, value: Any, kind: Any, scalars: Mapping[Any, Scalar]) -> Any:
    if kind is Any:
        return value
    origin, parts = (kind, ()) if type(kind) is type else (get_origin(kind) or kind, get_args(kind))
    if origin in (Union, types.UnionType):
        return _fit_union(path, value, kind, scalars)
    if is_dataclass(origin):
        return _fit_dataclass(path, value, kind, scalars)
    if origin is Mapping and isinstance(value, Mapping):
        for key in value:
            if parts[0] is str and not isinstance(key, str):
                raise ConfigError(
                    f"{path} has the key {key!r}, which must be text; in YAML, put it in quotes: {str(key)!r}"
                )
        return {key: _fit(_joined(path, key), entry, parts[1], scalars) for key, entry in value.items()}
    if origin in (tuple, Sequence) and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if parts[0] is Any or hasattr(value, "__array__"):  # an array of numbers may hold millions
            return value
        return tuple(_fit(f"{path}[{i}]", entry, parts[0], scalars) for i, entry in enumerate(value))
    if origin in scalars:
        try:
            return scalars[origin].convert(value)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise _MisfitError(path, value, kind, scalars) from error
    if parts or not isinstance(value, origin):
        raise _MisfitError(path, value, kind, scalars)
    return value


def _fit_union(path: str, value: Any, kind: Any, scalars: Mapping[Any, Scalar]) -> Any:
    for option in get_args(kind):
        try:
            return _fit(path, value, option, scalars)
        except _MisfitError as error:
            if error.path != path:  # the type fits, but for a part
                raise
    raise _MisfitError(path, value, kind, scalars)


def _fit_dataclass(path: str, value: Any, kind: Any, scalars: Mapping[Any, Scalar]) -> Any:
    if isinstance(value, kind):
        for name, own in _field_types(kind):
            _fit(_joined(path, name), getattr(value, name), own, scalars)
        return value
    if not isinstance(value, Mapping):
        raise _MisfitError(path, value, kind, scalars)
    required = {spec.name: is_required(spec) for spec in fields(kind)}
    for key in value:
        if key not in required:
            hint = did_you_mean(key, required, f"the keys are: {', '.join(required)}")
            raise ConfigError(f"unknown key {_joined(path, key)!r}; {hint}")
    converted = {}
    for name, own in _field_types(kind):
        if name in value or (required[name] and is_dataclass(own)):  # an absent group is an empty one
            converted[name] = _fit(_joined(path, name), value.get(name, {}), own, scalars)
        elif required[name]:
            raise ConfigError(f"{_joined(path, name)} is missing")
    return kind(**converted)


@cache
def _field_types(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((spec.name, hints[spec.name]) for spec in fields(kind))


def _joined(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _described(kind: Any, scalars: Mapping[Any, Scalar]) -> str:
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_described(option, scalars) for option in parts)
    if origin in (tuple, Sequence):
        names = [scalars[part].words for part in get_args(parts[0]) or parts[:1] if part in scalars]
        plural = " or ".join(name.removeprefix("an ").removeprefix("a ") + "s" for name in names)
        return f"a list of {plural}" if plural else "a list"
    if origin is Mapping:
        return "a mapping"
    if is_dataclass(kind):
        return f"a group of keys ({', '.join(spec.name for spec in fields(kind))})"
    return scalars[kind].words if kind in scalars else str(kind.__name__)


def boolean(name: str, value: object) -> bool:
    """Return an argument that must be True or False.

    >>> boolean("shuffle", "no")
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: shuffle must be True or False, got 'no'
    """
    return cast("bool", fit(name, value, bool))


def integer(name: str, value: SupportsIndex, least: int | None = None) -> int:
    """Return an integer argument, at least `least`, as an `int`: NumPy's must give the same keys and JSON as Python's.

    >>> integer("seed", np.int64(3))
    3
    """
    whole = cast("int", fit(name, value, int))
    if least is not None and whole < least:
        raise ConfigError(f"{name} must be at least {least}, got {whole}")
    return whole


def number(name: str, value: Any) -> float:
    """Return an argument that must be a number; NaN is one."""
    return cast("float", fit(name, value, float))


def numbers(name: str, value: Any, count: int | None = None) -> tuple[float, ...]:
    """Return an argument that must hold `count` numbers, or any count of them."""
    try:
        items = tuple(number(name, each) for each in value)
        if count in (None, len(items)):
            return items
    except (TypeError, ConfigError):
        pass
    raise ConfigError(f"{name} must be {'several' if count is None else count} numbers, got {value!r}")


def text(name: str, value: object) -> str:
    """Return an argument that must be text."""
    return cast("str", fit(name, value, str))


def texts(name: str, value: Any, what: str) -> tuple[str, ...]:
    """Return an argument that must hold several texts; `what` names them in the error.

    >>> texts("columns", "word", "names")
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: columns must be a list of names, got 'word'
    """
    scalar = isinstance(value, str | bytes) or (isinstance(value, np.ndarray) and not value.ndim)
    items = None if scalar or not isinstance(value, Iterable) else tuple(value)
    if items is None or not all(isinstance(each, str) for each in items):
        raise ConfigError(f"{name} must be a list of {what}, got {value!r}")
    return items


def mapping(name: str, value: Any, what: str) -> Mapping[Any, Any]:
    """Return an argument that must be a mapping; `what` says from what to what."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a dict of {what}, got {value!r}")
    return value


def choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse an argument that is none of two or more words.

    >>> choice("remainder", "keep", ("drop", "pad", "wrap"))
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: remainder must be 'drop', 'pad' or 'wrap', got 'keep'
    """
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} must be {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}, got {value!r}")

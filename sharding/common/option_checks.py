"""The types of options that a program gives: taken as what they are, or refused by name. Not here: their rules."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, SupportsIndex

import numpy as np

from ..errors import ConfigError

__all__ = [
    "boolean",
    "check_flags",
    "check_texts",
    "choice",
    "integer",
    "mapping",
    "number",
    "numbers",
    "take_integers",
    "take_shares",
    "text",
    "texts",
]


def take_integers(options: object, *names: str) -> None:
    """Make integers of fields of a frozen dataclass that may be NumPy's; None stays.

    Raises:
        ConfigError: one is no integer.
    """
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        try:
            if isinstance(value, bool):
                raise TypeError
            object.__setattr__(options, name, operator.index(value))
        except TypeError as error:
            raise ConfigError(f"{name} must be a whole number, got {value!r}") from error


def check_texts(options: object, *names: str) -> None:
    """Refuse fields that are neither text nor None.

    Raises:
        ConfigError: names one.
    """
    for name in names:
        value = getattr(options, name)
        if not (value is None or isinstance(value, str)):
            raise ConfigError(f"{name} must be text, got {value!r}")


def check_flags(options: object, *names: str) -> None:
    """Refuse fields that are neither True nor False.

    Raises:
        ConfigError: names one.
    """
    for name in names:
        if not isinstance(value := getattr(options, name), bool):
            raise ConfigError(f"{name} must be True or False, got {value!r}")


def take_shares(splits: Any) -> dict[str, Fraction]:
    """The share of each split, exactly; a float is taken for the decimal that it is written as.

    Raises:
        ConfigError: they are no mapping of names to numbers.

    >>> take_shares({"train": 0.9, "test": "0.1"})
    {'train': Fraction(9, 10), 'test': Fraction(1, 10)}
    """
    if not isinstance(splits, Mapping):
        raise ConfigError(f"splits must map names to shares, such as {{'train': 0.9, 'test': 0.1}}, got {splits!r}")
    shares = {}
    for name, share in splits.items():
        known = isinstance(share, (int, float, str, Fraction, Decimal)) and not isinstance(share, bool)
        try:
            if not (known and isinstance(name, str)):
                raise ValueError
            shares[name] = share if isinstance(share, Fraction) else Fraction(str(share))
        except (ValueError, ZeroDivisionError) as error:
            raise ConfigError(f"the share of split {name!r} must be a number such as 0.9, got {share!r}") from error
    return shares


def boolean(name: str, value: object) -> bool:
    """A value that must be True or False.

    Raises:
        ConfigError: it is neither.

    >>> boolean("shuffle", "no")
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: shuffle must be True or False, got 'no'
    """
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Hold a value that must be one of some words, two at least, against them.

    Raises:
        ConfigError: it is none of them.

    >>> choice("remainder", "keep", ("drop", "pad", "wrap"))
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: remainder must be 'drop', 'pad' or 'wrap', got 'keep'
    """
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} must be {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}, got {value!r}")


def integer(name: str, value: SupportsIndex, least: int | None = None) -> int:
    """A value that must be a whole number, as an `int`: equal ones must mean the same, in keys too.

    Args:
        name: of the argument.
        value: that it was given.
        least: that it may be.

    >>> integer("seed", np.int64(3))
    3

    Raises:
        ConfigError: it is no whole number, or a smaller one.
    """
    try:
        whole = operator.index(value)
    except TypeError as error:
        raise ConfigError(f"{name} must be a whole number, got {value!r}") from error
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, got {value}")
    if least is not None and whole < least:
        raise ConfigError(f"{name} must be at least {least}, got {whole}")
    return whole


def number(name: str, value: Any) -> float:
    """A value that must be a number, which may be NaN.

    Raises:
        ConfigError: it is none.
    """
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{name} must be a number, got {value!r}") from error


def numbers(name: str, value: Any, count: int | None = None) -> tuple[float, ...]:
    """A value that must be several numbers.

    Args:
        name: of the argument.
        value: that it was given.
        count: how many; None: any.

    Raises:
        ConfigError: it is something else.
    """
    wanted = "several" if count is None else str(count)
    try:
        found = tuple(number(name, each) for each in value)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{name} must be {wanted} numbers, got {value!r}") from error
    if count not in (None, len(found)):
        raise ConfigError(f"{name} must be {wanted} numbers, got {value!r}")
    return found


def text(name: str, value: object) -> str:
    """A value that must be a text.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text, got {value!r}")
    return value


def texts(name: str, value: Any, what: str) -> tuple[str, ...]:
    """A value that must be several texts.

    Args:
        name: of the argument.
        value: that it was given.
        what: they are.

    Raises:
        ConfigError: it is one text, or something else.

    >>> texts("columns", "word", "names")
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: columns must be a list of names, got 'word'
    """
    scalar = isinstance(value, str | bytes) or (isinstance(value, np.ndarray) and not value.ndim)
    found = None if scalar or not isinstance(value, Iterable) else tuple(value)
    if found is None or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"{name} must be a list of {what}, got {value!r}")
    return found


def mapping(name: str, value: Any, what: str) -> Mapping[Any, Any]:
    """A value that must be a dict.

    Args:
        name: of the argument.
        value: that it was given.
        what: is in it.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a dict of {what}, got {value!r}")
    return value

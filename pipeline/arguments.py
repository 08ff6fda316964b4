"""Arguments as the user gives them, of Python or NumPy, held against their kind.

What is not of its kind must not pass for something else: the text ``"no"`` is true, and a text is a list of letters.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from ..sharding.errors import ConfigError

__all__ = ["boolean", "choice", "integer", "mapping", "number", "numbers", "text", "texts"]


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

"""The types of options that a program gives: taken as what they are, or refused by name. Not here: their rules."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .errors import ConfigError

__all__ = ["check_flags", "check_texts", "take_integers", "take_shares"]


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

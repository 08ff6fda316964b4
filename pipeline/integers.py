"""Whole numbers as the user gives them, of Python or NumPy: equal ones must mean the same, in keys too."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from ..sharding.errors import ConfigError

__all__ = ["integer"]


def integer(name: str, value: SupportsIndex, least: int | None = None) -> int:
    """The value as an `int`.

    Args:
        name: of the argument.
        value: that it was given.
        least: that it may be.

    >>> import numpy as np
    >>> integer("seed", np.int64(3))
    3

    Raises:
        ConfigError: it is no whole number, or a smaller one.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ConfigError(f"{name} must be a whole number, got {value!r}") from error
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, got {value}")
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}, got {number}")
    return number

"""Checks of configuration keys, whose errors name key, rule and value."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from ...sharding.errors import ConfigError

__all__ = ["are_sizes", "is_function", "is_pattern", "key", "one_of", "require", "require_finite", "require_size"]

_SIZES = 2**31  # TensorFlow's limit for many sizes; and a float holds the product of any two


def key(default: Any, text: str, *, is_path: bool = False) -> Any:
    """Declare a field with the line that `--help` prints for it.

    Args:
        default: default of the key; MISSING: it is required.
        text: what it is.
        is_path: whether a relative path in a file counts from the file's folder.
    """
    return field(default=default, metadata={"help": text, "is_path": is_path})


def require(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {rule}, got {value!r}")


def require_finite(key: str, value: float) -> None:
    require(0 <= value < math.inf, key, "finite and at least 0", value)


def require_size(key: str, value: int) -> None:
    """Check a size that TensorFlow, or a product of floats, must hold."""
    require(value >= 1, key, "at least 1", value)
    require(value < _SIZES, key, "below 2**31", value)


def are_sizes(values: Sequence[int]) -> bool:
    return all(1 <= value < _SIZES for value in values)


def is_function(text: str) -> bool:
    """Whether a text is `module:function`."""
    return re.fullmatch(r"\w+(\.\w+)*:\w+", text) is not None


def is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    require(value in allowed, key, f"one of {', '.join(allowed)}", value)

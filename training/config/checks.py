"""Checks of configuration keys, whose errors name key, rule and value.

Tested in tests/training/config/test_config.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from ringfeed.sharding.errors import ConfigError

__all__ = [
    "FUNCTION",
    "are_sizes",
    "duration_seconds",
    "is_function",
    "is_pattern",
    "key",
    "one_of",
    "require",
    "require_finite",
    "require_size",
]

FUNCTION = r"\w+(\.\w+)*:\w+"  # module:function
_SIZES = 2**31  # TensorFlow's limit for many sizes; and a float holds the product of any two


def key(
    default: Any, text: str, *, is_path: bool = False, choices: Sequence[str] | None = None, pattern: str | None = None
) -> Any:
    """Declare a field with the line that `--help` prints for it.

    Args:
        default: default of the key; MISSING: it is required.
        text: what it is.
        is_path: whether a relative path in a file counts from the file's folder.
        choices: the words that are allowed.
        pattern: a regular expression of what else is.
    """
    described = {"help": text, "is_path": is_path, "choices": choices, "pattern": pattern}
    return field(default=default, metadata=described)


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
    return re.fullmatch(FUNCTION, text) is not None


def duration_seconds(value: str | float) -> float | None:
    """Return the seconds of a time such as 90s, 30m or 1h30m, or of a number of seconds; None if it is none.

    >>> duration_seconds("1h30m"), duration_seconds(90), duration_seconds("soon")
    (5400.0, 90.0, None)
    """
    if not isinstance(value, str):
        return float(value)
    found = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", value)
    if not found or not value:
        return None
    return float(sum(int(count or 0) * unit for count, unit in zip(found.groups(), (86400, 3600, 60, 1), strict=True)))


def is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    require(value in allowed, key, f"one of {', '.join(allowed)}", value)

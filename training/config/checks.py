"""Declares the keys of a configuration with their rules, and checks values against them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from typing import Any, ClassVar

from ringfeed.sharding.common.validation import fit_fields
from ringfeed.sharding.errors import ConfigError

FUNCTION = "module:function"
"""Among the choices of a key: any function, by module and name."""
SIZES = 2**31
"""TensorFlow's limit for many sizes; a float holds the product of any two."""
_HOLDS = {"at_least": operator.ge, "above": operator.gt, "below": operator.lt, "at_most": operator.le}


def key(
    default: Any,
    text: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    choices: Sequence[str] | None = None,
    kind: str | None = None,
) -> Any:
    """Declare a field with the line that `--help` prints for it, and the rule of its value; null breaks no rule.

    Args:
        default: default of the key; MISSING: it is required; dict: an empty mapping.
        at_least, above, below, at_most: bounds of a number, which is then finite, too.
        choices: the words that are allowed; `FUNCTION` stands for any function.
        kind: "path" (or URL), which counts from the file's folder where it is relative; "disk": a path on a disk;
            "patterns": regular expressions.
    """
    bounds = {"at_least": at_least, "above": above, "below": below, "at_most": at_most}
    bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    made: Any = {"default_factory": dict} if default is dict else {"default": default}
    return field(**made, metadata={"help": text, "bounds": bounds, "choices": choices, "kind": kind})


class Options:
    """A group of keys, whose types and rules are checked when it is made.

    Raises:
        ConfigError: a value breaks its rule; the message names key, rule and value.
    """

    group: ClassVar[str] = ""

    def __init_subclass__(cls, group: str = "") -> None:
        if group:
            cls.group = group

    def __post_init__(self) -> None:
        fit_fields(self, self.group)
        for spec in fields(self):  # type: ignore[arg-type]  # each subclass is a dataclass
            value = getattr(self, spec.name)
            if value is not None and spec.metadata:
                name = f"{self.group}.{spec.name}" if self.group else spec.name
                _check(name, value, spec.metadata, or_null=", or null" if spec.default is None else "")
        self.check()

    def check(self) -> None:
        """Check what no key says alone."""


def _check(name: str, value: Any, rules: Mapping[str, Any], *, or_null: str) -> None:
    choices, kind, bounds = rules.get("choices"), rules.get("kind"), rules.get("bounds")
    if choices is not None:
        holds = value in choices or (FUNCTION in choices and is_function(value))
        words = [f"or {word}" if word == FUNCTION and len(choices) > 1 else word for word in choices]
        require(holds, name, f"{'one of ' if len(choices) > 1 else ''}{', '.join(words)}{or_null}", value)
    if kind in ("path", "disk"):
        require(value != "", name, f"a path or URL{or_null}", value)
        require(kind == "path" or "://" not in value, name, f"a path on a disk{or_null}", value)
    for pattern in value if kind == "patterns" else ():
        require(is_pattern(pattern), name, "regular expressions", pattern)
    if bounds:
        holds = all(_HOLDS[rule](value, bound) for rule, bound in bounds.items()) and math.isfinite(value)
        require(holds, name, _interval(bounds, is_float=isinstance(value, float)), value)


def _interval(bounds: Mapping[str, float], *, is_float: bool) -> str:
    """Bounds in words.

    >>> _interval({"above": 0, "at_most": 1}, is_float=True), _interval({"at_least": 1}, is_float=False)
    ('in (0, 1]', 'at least 1')
    """
    start, word, low = ("(", "above", bounds["above"]) if "above" in bounds else ("[", "at least", bounds["at_least"])
    if len(bounds) > 1:
        end, high = (")", bounds["below"]) if "below" in bounds else ("]", bounds["at_most"])
        return f"in {start}{_short(low)}, {_short(high)}{end}"
    return f"{'finite and ' if is_float else ''}{word} {_short(low)}"


def _short(bound: float) -> str:
    exponent = math.log2(bound) if bound else 0.0
    return f"2**{exponent:g}" if exponent > 16 and exponent.is_integer() else f"{bound:g}"


def require(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {rule}, got {value!r}")


def are_sizes(values: Sequence[int]) -> bool:
    return all(1 <= value < SIZES for value in values)


def is_function(text: str) -> bool:
    """Whether a text is `module:function`."""
    return re.fullmatch(r"\w+(\.\w+)*:\w+", text) is not None


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

"""Strict YAML: a repeated key is an error, where PyYAML takes the last; and the words for its scalars in errors."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import yaml

from .validation import SCALARS, Scalar

__all__ = ["YAML_SCALARS", "load_yaml"]

_EXPONENT_WITHOUT_DOT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def _number(value: Any) -> float:
    """A number; also `1e-3`, which PyYAML reads as text for want of a dot."""
    if isinstance(value, str) and _EXPONENT_WITHOUT_DOT.fullmatch(value):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf if value > 0 else -math.inf


YAML_SCALARS = {
    **SCALARS,
    bool: replace(SCALARS[bool], words="true or false"),
    float: Scalar("a number", _number),
    types.NoneType: replace(SCALARS[types.NoneType], words="null"),
}


def load_yaml(text: str | bytes) -> Any:
    """Parse a document of YAML's plain types.

    Raises:
        ValueError: it is not YAML, repeats a key, or holds a date that does not exist.

    >>> load_yaml("{a: 1, b: [x]}")
    {'a': 1, 'b': ['x']}
    """
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        where = f" in line {place.line + 1}, column {place.column + 1}" if place else ""
        raise ValueError(f"{error.problem or error.context}{where}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} appears twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

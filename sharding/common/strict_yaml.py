"""YAML, read strictly: of two equal keys it takes the last, here they are an error."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

__all__ = ["load_yaml"]


def load_yaml(text: str | bytes) -> Any:
    """A document of YAML's plain types.

    Raises:
        ValueError: it is none, or has two equal keys, or what looks like a date and is none.

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
                        None, None, f"the key {key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

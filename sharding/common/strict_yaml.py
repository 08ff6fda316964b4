"""Strict YAML: a repeated key is an error, where PyYAML takes the last; and the words for its scalars in errors."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import yaml

from .validation import SCALARS, Scalar

_MOST_LEVELS, _MOST_VALUES = 100, 100_000
_TEXT, _NULL, _MERGE = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "null", "merge"))
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


def load_yaml(text: str | bytes, are_names: Callable[[tuple[str, ...]], bool] = lambda path: False) -> Any:
    """Parse a document of YAML's plain types.

    Args:
        are_names: whether the value at a path of keys is a name, or a mapping or list of names: they stay as they are
            written, where YAML would take them for numbers, dates and so on. Null as a value stays null.

    Raises:
        ValueError: it is not YAML, repeats a key, holds a date that does not exist, is nested too deep, has more than
            100,000 values, or refers to itself or so often to its parts that it stands for more.

    >>> load_yaml("{a: 1, b: [x]}")
    {'a': 1, 'b': ['x']}
    >>> load_yaml("a: {01: 1, no: 01}", lambda path: path == ("a",))
    {'a': {'01': 1, 'no': 1}}
    >>> load_yaml("a: [01, no]", lambda path: path == ("a",))
    {'a': ['01', 'no']}
    """
    try:
        tree = _loaded(text, are_names)
        _count(tree, 0)
        return tree
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        where = f" in line {place.line + 1}, column {place.column + 1}" if place else ""
        problem = error.problem or error.context or ""
        remedy = ": indent with spaces, not tabs" if "'\\t'" in problem else ""
        raise ValueError(f"{problem}{where}{remedy}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _loaded(text: str | bytes, are_names: Callable[[tuple[str, ...]], bool]) -> Any:
    loader = _StrictLoader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else loader.construct_document(_with_names(node, (), are_names, set()))
    finally:
        loader.dispose()


def _with_names(
    node: yaml.Node, path: tuple[str, ...], are_names: Callable[[tuple[str, ...]], bool], above: set[int]
) -> yaml.Node:
    """A node with its names as texts. Nodes are made anew, since an alias may stand for one elsewhere, too."""
    if isinstance(node, yaml.ScalarNode):
        return _text(node) if are_names(path) and node.tag != _NULL else node
    if isinstance(node, yaml.SequenceNode) and id(node) not in above and are_names(path):
        names = [
            _text(item) if isinstance(item, yaml.ScalarNode) and item.value  # an empty one is null
            else _with_names(item, path, are_names, above | {id(node)})
            for item in node.value
        ]  # fmt: skip
        return yaml.SequenceNode(node.tag, names, node.start_mark, node.end_mark, node.flow_style)
    if not isinstance(node, yaml.MappingNode) or id(node) in above:
        return node
    is_named, above = are_names(path), above | {id(node)}
    pairs = [
        (
            _text(key) if is_named and isinstance(key, yaml.ScalarNode) and key.tag != _MERGE else key,
            _with_names(value, (*path, str(key.value)), are_names, above) if key.tag != _MERGE
            else _with_names(value, path, are_names, above),
        )
        for key, value in node.value
    ]  # fmt: skip
    return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark, node.flow_style)


def _text(node: yaml.ScalarNode) -> yaml.ScalarNode:
    return yaml.ScalarNode(_TEXT, node.value, node.start_mark, node.end_mark, node.style)


def _count(tree: Any, depth: int) -> int:
    """Return the number of values in a tree, each as often as an alias repeats it."""
    if depth > _MOST_LEVELS:
        raise ValueError(f"it is nested more than {_MOST_LEVELS} deep, or an alias (*name) refers to what contains it")
    inner = [*tree, *tree.values()] if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple, set)) else ()
    count = 1
    for value in inner:
        count += _count(value, depth + 1)
        if count > _MOST_VALUES:
            raise ValueError(f"its aliases (*name) stand for more than {_MOST_VALUES} values")
    return count


class _StrictLoader(yaml.SafeLoader):
    _nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Also stop at too many values: a large text takes PyYAML minutes."""
        self._nodes += 1
        if self._nodes > 2 * _MOST_VALUES:  # keys are nodes, too
            raise ValueError(f"it has more than {_MOST_VALUES} values")
        return super().compose_node(parent, index)

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

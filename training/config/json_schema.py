"""The keys of a configuration as JSON Schema, by which editors complete and check a file: `--print-schema`.

It knows types, allowed words and ranges. Options that do not go together are refused when a run reads its file.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any, Union, get_args, get_origin

from ringfeed.sharding.common.validation import is_required

from .checks import FUNCTION
from .method import Methods, key_default
from .registry import METHODS
from .train_config import TrainConfig

_BOUNDS = {"at_least": "minimum", "above": "exclusiveMinimum", "below": "exclusiveMaximum", "at_most": "maximum"}
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}


def config_schema() -> dict[str, Any]:
    """Return the schema of a file for `ringfeed train --config`, in draft 7, which editors know."""
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "ringfeed train --config FILE"}
    schema = draft | _group(TrainConfig)
    schema["properties"]["data"]["anyOf"] = [{"required": ["url"]}, {"required": ["mixture"]}]
    return schema


def _group(kind: Any) -> dict[str, Any]:
    """The schema of a dataclass; of a group with methods the keys of all of them."""
    hints = typing.get_type_hints(kind)
    properties = {}
    for spec in fields(kind):
        if kind is TrainConfig and spec.name in METHODS:
            properties[spec.name] = _group_of_methods(METHODS[spec.name])
        else:
            own = hints[spec.name]
            properties[spec.name] = _group(own) if is_dataclass(own) else _key(spec, own)
    return _object(properties, [spec.name for spec in fields(kind) if is_required(spec)])


def _group_of_methods(methods: Methods) -> dict[str, Any]:
    kinds = [*methods.classes, *([methods.own] if methods.own else [])]
    hints: dict[str, Any] = {}
    for kind in kinds:
        hints |= typing.get_type_hints(kind)
    return _object({name: _key(spec, hints[name]) for name, spec in methods.keys.items()}, [])


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": required}


def _key(spec: Field[Any], kind: Any) -> dict[str, Any]:
    """The schema of a key: its type or allowed words, help and default."""
    choices, bounds = spec.metadata.get("choices"), spec.metadata.get("bounds") or {}
    found: dict[str, Any] = _of_type(kind) | {_BOUNDS[name]: bound for name, bound in bounds.items()}
    if choices is not None:
        words = [*choices, *([None] if types.NoneType in get_args(kind) else [])]
        found = {"enum": [word for word in words if word != FUNCTION]}
        if FUNCTION in choices:
            found = {"anyOf": [found, {"type": "string", "pattern": r"^\w+(\.\w+)*:\w+$"}]}
    found["description"] = spec.metadata["help"]
    if not is_required(spec):
        default = key_default(spec)
        found["default"] = list(default) if isinstance(default, tuple) else default
    return found


def _of_type(kind: Any) -> dict[str, Any]:
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of_type(part) for part in parts]}
    if is_dataclass(kind):
        return _group(kind)
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _of_type(parts[1])}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": _of_type(parts[0])}
    return {"type": _SCALARS[origin]} if origin in _SCALARS else {}

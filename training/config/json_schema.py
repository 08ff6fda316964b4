"""The keys of a configuration as JSON Schema, by which editors complete and check a file: `--print-schema`.

It knows types and allowed words. Ranges, and options that do not go together, are checked when a run reads its file.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any, Union, get_args, get_origin

from ringfeed.sharding.common.validation import is_required

from .keys import key_default
from .train_config import TrainConfig

__all__ = ["config_schema"]

_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}


def config_schema() -> dict[str, Any]:
    """Return the schema of a file for `ringfeed train --config`, in draft 7, which editors know."""
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "ringfeed train --config FILE"}
    schema = draft | _group(TrainConfig)
    schema["properties"]["data"]["anyOf"] = [{"required": ["url"]}, {"required": ["mixture"]}]
    return schema


def _group(kind: Any) -> dict[str, Any]:
    """The schema of a dataclass."""
    hints = typing.get_type_hints(kind)
    properties = {
        spec.name: _group(hints[spec.name]) if is_dataclass(hints[spec.name]) else _key(spec, hints[spec.name])
        for spec in fields(kind)
    }
    own = [spec for spec in fields(kind) if is_required(spec)]
    required = [spec.name for spec in own]
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": required}


def _key(spec: Field[Any], kind: Any) -> dict[str, Any]:
    """The schema of a key: its type or allowed words, help and default."""
    choices, pattern = spec.metadata.get("choices"), spec.metadata.get("pattern")
    found: dict[str, Any] = _of_type(kind)
    if choices is not None:
        words = [*choices, *([None] if types.NoneType in get_args(kind) else [])]
        found = {"enum": words}
        if pattern is not None:
            found = {"anyOf": [found, {"type": "string", "pattern": pattern}]}
    elif pattern is not None:
        found = {"anyOf": [{"type": "null"}, {"type": "string", "pattern": pattern}]}
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

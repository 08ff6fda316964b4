"""All keys of a configuration in order, with their defaults: for `--help`, `--print-config` and the schema."""

from __future__ import annotations

import typing
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any

import yaml

from ringfeed.sharding.common.strict_yaml import load_yaml
from ringfeed.sharding.common.validation import is_required

from .method import key_default
from .registry import METHODS
from .train_config import TrainConfig


@cache
def all_keys() -> tuple[tuple[str, Field[Any]], ...]:
    """Return all keys in order: dotted name and field."""
    result: list[tuple[str, Field[Any]]] = []
    hints = typing.get_type_hints(TrainConfig)
    for spec in fields(TrainConfig):
        if spec.name in METHODS:
            result += [(f"{spec.name}.{leaf}", inner) for leaf, inner in METHODS[spec.name].keys.items()]
        elif is_dataclass(hints[spec.name]):
            result += [(f"{spec.name}.{inner.name}", inner) for inner in fields(hints[spec.name])]
        else:
            result.append((spec.name, spec))
    return tuple(result)


def describe_keys() -> str:
    """Return the help of all keys, with their defaults, for `--help`."""
    lines = []
    for name, spec in all_keys():
        default = "required" if is_required(spec) else as_yaml(key_default(spec))
        lines.append(f"  {name:<27}  {spec.metadata['help']} [{default}]")
    return "\n".join(lines)


def as_yaml(value: Any) -> str:
    """Return a value as one line of YAML, which `load_yaml` reads back.

    >>> as_yaml((256, 128)), as_yaml({1: 0.5}), as_yaml("null")
    ('[256, 128]', '{1: 0.5}', "'null'")
    """
    value = list(value) if isinstance(value, tuple) else value
    text: str = yaml.safe_dump(value, default_flow_style=True, explicit_end=False, width=2**31, allow_unicode=True)
    text = text.strip().removesuffix("...").strip()
    assert load_yaml(text) == value or value != value, text
    return text

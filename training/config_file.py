"""A `TrainConfig` from a YAML file and `--set key=value`: unknown keys and wrong types are errors with a name.

Values are those of YAML, also after `--set`. One repair of YAML's is made: `1e-3`, which YAML reads as text for want of
a dot, is a number where a number is asked for.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from ..sharding.common.strict_yaml import load_yaml
from ..sharding.errors import ConfigError
from .config import TrainConfig

__all__ = ["all_keys", "changed_keys", "describe_keys", "load_config", "parse_config", "to_tree"]

_EXPONENT_WITHOUT_DOT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def load_config(path: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a configuration.

    Args:
        path: the YAML file.
        overrides: `key.key=value` items, applied in order over the file.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    try:
        tree = load_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold keys and values, got a {type(tree).__name__}")
    return parse_config(apply_overrides(tree, overrides), path)


def apply_overrides(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The tree with `key.key=value` items put over it; values are parsed as YAML.

    Raises:
        ConfigError: an item is no such thing, its value no YAML, or a key leads through a value.

    >>> apply_overrides({"data": {"url": "x", "batch_size": 8}}, ["data.batch_size=16", "model.hidden=[4, 2]"])
    {'data': {'url': 'x', 'batch_size': 16}, 'model': {'hidden': [4, 2]}}
    """
    result = _copied(tree)
    for item in overrides:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set takes key=value, got {item!r}")
        try:
            value = load_yaml(text)
        except ValueError as error:
            raise ConfigError(f"--set {key}: {text!r} is not valid YAML") from error
        branch = result
        *parents, last = key.split(".")
        for parent in parents:
            if not isinstance(branch.setdefault(parent, {}), dict):
                raise ConfigError(f"--set {key}: {parent} is a value, not a group of keys")
            branch = branch[parent]
        branch[last] = value
    return result


def _copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def parse_config(tree: Mapping[str, Any], source: str) -> TrainConfig:
    """A configuration from nested mappings.

    Args:
        tree: keys and values.
        source: what to name in errors, such as the file.

    Raises:
        ConfigError: a key or value is wrong, or one that checkpoints and metrics could not hold.

    >>> parse_config({"data": {"url": "x"}, "optimiser": {}}, "a.yaml")
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: a.yaml: unknown key 'optimiser'; did you mean 'optimizer'?
    """
    try:
        config: TrainConfig = _build(TrainConfig, tree, "")
        json.dumps(to_tree(config))  # as checkpoints and metrics will hold it
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    except TypeError as error:
        raise ConfigError(
            f"{source}: model.options, or data.balance, holds what JSON cannot ({error}); quote it"
        ) from error
    return config


def _build(kind: Any, tree: Any, prefix: str) -> Any:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')} must be a group of keys, got {tree!r}")
    known = {f.name: f for f in fields(kind)}
    for key in tree:
        if key not in known:
            raise ConfigError(_unknown_key(prefix, str(key)))
    hints = typing.get_type_hints(kind)
    values = {}
    for name, spec in known.items():
        if name in tree:
            values[name] = _value(tree[name], hints[name], prefix + name)
        elif is_dataclass(hints[name]) and _is_required(spec):
            values[name] = _build(hints[name], {}, f"{prefix}{name}.")
        elif _is_required(spec):
            raise ConfigError(f"{prefix}{name} is missing")
    return kind(**values)


def _is_required(spec: Field[Any]) -> bool:
    return spec.default is MISSING and spec.default_factory is MISSING


def _unknown_key(prefix: str, key: str) -> str:
    every = [name for name, _ in all_keys()] + [f.name for f in fields(TrainConfig)]
    local = [name for name in every if name.rpartition(".")[0] == prefix.rstrip(".")]
    guess = next(
        (found for tried in (_same_name, _like_name) for names in (local, every) if (found := tried(key, names))), None
    )
    if guess:
        hint = f"did you mean {guess!r}?"
    elif prefix:
        hint = f"the keys there are: {', '.join(map(_leaf, local))}"
    else:
        hint = "the keys are listed by: ringfeed train --help"
    return f"unknown key {prefix + key!r}; {hint}"


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _same_name(key: str, names: list[str]) -> str | None:
    """The first of `names` that ends in a key, or in words that it has the initials of: `learning_rate` is `lr`."""
    spellings = ((name, _leaf(name)) for name in names)
    return next((n for n, leaf in spellings if key in (leaf, "".join(w[:1] for w in leaf.split("_")))), None)


def _like_name(key: str, names: list[str]) -> str | None:
    """The one of `names` whose end is most like a key; with the whole name, a group would make all alike."""
    leaves = {_leaf(name): name for name in names}
    close = difflib.get_close_matches(key, leaves, 1)
    return leaves[close[0]] if close else None


def _value(value: Any, hint: Any, key: str) -> Any:
    """`value` as the annotated type, or a ConfigError that says what was expected."""
    if is_dataclass(hint):
        return _build(hint, value, f"{key}.")
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        matched, converted = _match(value, option)
        if matched:
            return converted
    raise ConfigError(f"{key} must be {' or '.join(map(_described, options))}, got {value!r}")


def _match(value: Any, hint: Any) -> tuple[bool, Any]:
    origin = typing.get_origin(hint) or hint
    if origin is tuple:
        item = typing.get_args(hint)[0]
        if not isinstance(value, list):
            return False, None
        pairs = [_match(entry, item) for entry in value]
        return all(matched for matched, _ in pairs), tuple(converted for _, converted in pairs)
    if origin is float:
        if isinstance(value, str) and _EXPONENT_WITHOUT_DOT.fullmatch(value):
            return True, float(value)
        return isinstance(value, (int, float)) and not isinstance(value, bool), _real(value)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if origin is Mapping:
        weight = typing.get_args(hint)[1]
        if not isinstance(value, dict):
            return False, None
        items = {name: _match(entry, weight) for name, entry in value.items()}
        return all(matched for matched, _ in items.values()), {name: entry for name, (_, entry) in items.items()}
    return origin is Any or isinstance(value, origin), value


def _real(value: Any) -> Any:
    """A number as a float; an integer beyond all of them is infinite."""
    try:
        return float(value) if isinstance(value, int) else value
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _described(hint: Any) -> str:
    origin = typing.get_origin(hint) or hint
    if origin is tuple:
        return f"a list of {_described(typing.get_args(hint)[0]).removeprefix('an ').removeprefix('a ')}s"
    if origin is Mapping:
        return "a mapping"
    names = {str: "text", int: "an integer", float: "a number", bool: "true or false", type(None): "null"}
    return names[origin]


def all_keys() -> list[tuple[str, Field[Any]]]:
    """Every key by its dotted name, with its field, in order."""
    result: list[tuple[str, Field[Any]]] = []
    hints = typing.get_type_hints(TrainConfig)
    for spec in fields(TrainConfig):
        if is_dataclass(hints[spec.name]):
            result += [(f"{spec.name}.{inner.name}", inner) for inner in fields(hints[spec.name])]
        else:
            result.append((spec.name, spec))
    return result


def describe_keys() -> str:
    """All keys with their defaults and what they mean, as text for `--help`."""
    lines = []
    for name, spec in all_keys():
        default = "required" if _is_required(spec) else _shown(spec)
        lines.append(f"  {name:<28} {spec.metadata['help']} [{default}]")
    return "\n".join(lines)


def _shown(spec: Field[Any]) -> str:
    value = spec.default_factory() if spec.default is MISSING and spec.default_factory is not MISSING else spec.default
    value = list(value) if isinstance(value, tuple) else value
    text: str = yaml.safe_dump(value, default_flow_style=True, explicit_end=False).strip()
    return text.removesuffix("...").strip()


def to_tree(config: TrainConfig) -> dict[str, Any]:
    """The configuration as JSON can hold it; `parse_config` reads it back."""
    return typing.cast("dict[str, Any]", _plain(asdict(config)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (tuple, list)) else value


def changed_keys(now: TrainConfig, before: Mapping[str, Any]) -> list[str]:
    """The dotted keys that steer the weights and differ between a run and the tree of an earlier one.

    Where things lie (`data.url`, `data.cache`, `checkpoint`, `output`) and how often they are evaluated steers nothing.
    """
    neutral = {"data.url", "data.eval_split", "eval_every_epochs", "deterministic", "max_steps", "epochs"}
    neutral |= {"data.cache", "data.cache_bytes"}
    current = json.loads(json.dumps(to_tree(now)))  # as the other came through a file
    differing = []
    for name, spec in all_keys():
        group, _, leaf = name.rpartition(".")
        if group in ("checkpoint", "output") or name in neutral:
            continue
        mine, theirs = (tree.get(group, {}) if group else tree for tree in (current, before))
        if mine.get(leaf) != theirs.get(leaf, _plain(spec.default)):  # a run before there was the key had its default
            differing.append(name)
    return differing

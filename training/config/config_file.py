"""Reads a `TrainConfig` from a YAML file and `--set key=value`; an unknown key or a wrong type is an error.

The values of `--set` are YAML, too.
"""

from __future__ import annotations

import json
import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from ringfeed.sharding.common.strict_yaml import YAML_SCALARS, load_yaml
from ringfeed.sharding.common.validation import fit
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import closest, one_line
from ringfeed.sharding.storage.untrusted_files import read_untrusted
from ringfeed.sharding.url_secrets import public_url

from .backend import PARAMETER_SERVER
from .class_names import class_name, hold_names
from .keys import all_keys
from .method import key_default
from .paths import paths_from
from .registry import METHODS
from .schedule import STRETCHED
from .train_config import TrainConfig

_MOST_BYTES = 1 << 20


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a configuration.

    Args:
        path: path of the YAML file. Relative paths in it count from its folder.
        overrides: `key.key=value` items, which override the file in order. Relative paths in them count from the
            working directory.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong.

    >>> from pathlib import Path
    >>> _ = Path("flights.yaml").write_text("data: {url: flights, batch_size: 64}")
    >>> load_config("flights.yaml", ["epochs=3"]).epochs
    3
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"load_config takes the path of a YAML file, got {one_line(repr(path))[:80]}")
    if isinstance(overrides, (str, Mapping)) or not all(isinstance(item, str) for item in overrides):
        raise ConfigError(f"overrides must be a list such as ['epochs=3'], got {one_line(repr(overrides))[:80]}")
    name = os.fspath(path)
    return parse_config(load_tree(name, overrides), name)


def load_tree(path: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read the keys that a file and overrides give, with relative paths that count from the working directory.

    A ConfigError says that the file cannot be read, is not YAML, or that an override is wrong.
    """
    try:
        text = read_untrusted(path, _MOST_BYTES, "configuration").decode("utf-8")
    except OSError as error:
        raise ConfigError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    try:
        tree = load_yaml(text, hold_names)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold keys and values, got a {type(tree).__name__}")
    return apply_overrides(paths_from(tree, os.path.dirname(path)), overrides)


def apply_overrides(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the tree, overridden by `key.key=value` items, whose values are parsed as YAML.

    A ConfigError says that an item is not `key=value`, that its value is not YAML, or that a key treats a value as a
    group.

    >>> apply_overrides({"data": {"url": "x", "batch_size": 8}}, ["data.batch_size=16", "model.hidden=[4, 2]"])
    {'data': {'url': 'x', 'batch_size': 16}, 'model': {'hidden': [4, 2]}}
    """
    result = _copied(tree)
    for item in overrides:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set takes key=value, got {item!r}")
        try:
            value = load_yaml(text, partial(_hold_names, tuple(key.split("."))))
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


def _hold_names(parents: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return hold_names([*parents, *path])


def _copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def parse_config(tree: Mapping[str, Any], source: str) -> TrainConfig:
    """Make a configuration of nested mappings, which errors call `source`.

    A ConfigError says that a key or value is wrong, or has no form in JSON, as checkpoints and metrics need.

    >>> parse_config({"data": {"url": "x"}, "optimiser": {}}, "a.yaml")
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: a.yaml: unknown key 'optimiser'; did you mean 'optimizer'?
    """
    try:
        _check_keys(tree)
        groups = {name: methods for name, methods in METHODS.items() if isinstance(tree.get(name), Mapping)}
        tree = {**tree, **{name: methods.made(tree[name]) for name, methods in groups.items()}}
        config: TrainConfig = fit("", tree, TrainConfig, YAML_SCALARS)
        json.dumps(to_tree(config))  # checkpoints and metrics hold the configuration as JSON
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    except TypeError as error:
        raise ConfigError(
            f"{source}: model.options or data.balance has a value that JSON cannot hold ({error}); quote it"
        ) from error
    return config


def _check_keys(tree: Mapping[str, Any]) -> None:
    """Refuse an unknown key, with a hint at the most similar key of any group."""
    keys = {name for name, _ in all_keys()}
    groups = {name.rpartition(".")[0] for name in keys}
    for key, value in tree.items():
        if key not in keys | groups:
            raise ConfigError(_unknown_key("", str(key)))
        for inner in value if key in groups and isinstance(value, Mapping) else ():
            if f"{key}.{inner}" not in keys:
                raise ConfigError(_unknown_key(f"{key}.", str(inner)))


def _unknown_key(prefix: str, key: str) -> str:
    every = [name for name, _ in all_keys()] + [f.name for f in fields(TrainConfig)]
    local = [name for name in every if name.rpartition(".")[0] == prefix.rstrip(".")]
    guess = next(
        (found for tried in (_same_name, _like_name) for names in (local, every) if (found := tried(key, names))), None
    )
    if guess:
        hint = f"did you mean {guess!r}?"
    elif prefix:
        hint = f"this group has the keys: {', '.join(map(_leaf, local))}"
    else:
        hint = "the keys are listed by: ringfeed train --help"
    return f"unknown key {prefix + key!r}; {hint}"


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _same_name(key: str, names: list[str]) -> str | None:
    """Return the first of `names` that ends in a key, or whose end has it as initials: `learning_rate` is `lr`."""
    spellings = ((name, _leaf(name)) for name in names)
    return next((n for n, leaf in spellings if key in (leaf, "".join(w[:1] for w in leaf.split("_")))), None)


def _like_name(key: str, names: list[str]) -> str | None:
    """Return the name whose end is most similar to a key; whole names of a group would all be similar."""
    leaves = {_leaf(name): name for name in names}
    close = closest(key, leaves)
    return None if close is None else leaves[close]


def to_tree(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration in JSON's types, without the secrets of URLs; `parse_config` reads it back."""
    return typing.cast("dict[str, Any]", _plain(asdict(config)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, str):
        return public_url(value)
    return [_plain(entry) for entry in value] if isinstance(value, (tuple, list)) else value


def stretched_schedule(now: TrainConfig, before: Mapping[str, Any]) -> str | None:
    """Return what a change of a schedule's length since an earlier run, by its tree, does, and its remedy.

    None: it changes no learning rate.
    """

    def length(tree: Mapping[str, Any]) -> tuple[float, str]:
        schedule = tree.get("schedule", {})
        if steps := schedule.get("total_steps"):
            return steps, "steps"
        return schedule.get("total_epochs") or tree.get("epochs", 1), "epochs"

    (own, unit), (earlier, earlier_unit) = length(to_tree(now)), length(before)
    kind = now.schedule.name or now.schedule.decay
    if (now.schedule.name is None and kind not in STRETCHED) or (own, unit) == (earlier, earlier_unit):
        return None
    return (
        f"its {kind} schedule ends after {earlier:g} {earlier_unit}, this one after {own:g} {unit}, so the learning "
        f"rate would jump; to keep the schedule: schedule.total_{earlier_unit}={earlier:g}"
    )


def changed_keys(now: TrainConfig, before: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that affect the weights and differ between a run and the tree of an earlier one.

    Locations (`data.url`, a mixture's URLs, `data.cache`, `checkpoint`, `output`, `track`), what is fetched ahead,
    length and evaluation of a run do not count.
    """
    neutral = {"data.url", "data.eval_split", "data.test_split", "eval_every_epochs", "deterministic"}
    neutral |= {"max_steps", "max_time", "epochs"}
    neutral |= {"schedule.total_epochs", "schedule.total_steps"}  # `stretched_schedule` compares them
    neutral |= {"watchdog_seconds", "lost_seconds"}
    neutral |= {"data.cache", "data.cache_bytes", "data.fetch_threads", "data.prefetch_bytes"}
    neutral |= {"metrics"}
    neutral |= {"data.on_bad_shard"}  # so that a run which a damaged shard has ended can go on without it
    neutral |= {"model.remat"}  # the same bits
    neutral |= {"mirrored.devices"}  # the same results, to rounding, as of backends
    neutral |= {"sync.shares", "sync.share_bound"}  # global batches stay the same
    current = json.loads(json.dumps(to_tree(now)))  # like the earlier tree, which was read from a file
    differing = []
    for name, spec in all_keys():
        group, _, leaf = name.rpartition(".")
        if group in ("checkpoint", "early_stopping", "output", "track") or name in neutral:
            continue
        mine, theirs = (_placeless(tree.get(group, {})) if group else tree for tree in (current, before))
        if name == "backend" and PARAMETER_SERVER not in (mine.get(name), theirs.get(name)):
            continue  # the same results, to rounding
        default = _plain(key_default(spec))  # older runs lack the key
        own, other = mine.get(leaf, default), theirs.get(leaf, default)
        if name == "data.positive" and other is not None:
            other = class_name(other)  # older runs kept it as YAML read it
        if own != other:
            differing.append(name)
    return differing


def _placeless(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """A group without the locations of a mixture's datasets."""
    if not (mixture := group.get("mixture")):
        return group
    return {**group, "mixture": {name: {**dataset, "url": ""} for name, dataset in mixture.items()}}

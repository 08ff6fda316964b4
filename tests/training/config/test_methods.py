"""Keys of methods: each method takes its own and no other's, and is built by what its class names."""

from __future__ import annotations

import re
import typing
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.training import config as config_package
from ringfeed.training.config.config_file import parse_config, to_tree
from ringfeed.training.config.method import Methods, key_default
from ringfeed.training.config.registry import METHODS
from ringfeed.training.config.train_config import TrainConfig

EVERY = [(methods, kind) for methods in METHODS.values() for kind in methods.classes]


def _tag(methods: Methods, kind: type[Any]) -> str:
    return next(name for name, one in methods.by_name.items() if one is kind)


def _required(tag: str) -> dict[str, Any]:
    return {"start_step": 3} if tag == "post_local_sgd" else {}


@pytest.mark.parametrize(("methods", "kind"), EVERY, ids=lambda one: getattr(one, "__name__", ""))
def test_a_method_is_made_of_its_name_and_survives_a_round_trip(methods: Methods, kind: type[Any]) -> None:
    tag = _tag(methods, kind)
    assert type(methods.made({methods.tag: tag, **_required(tag)})) is kind
    optimizer = {"optimizer": {"name": "sgd"}} if methods.group == "compression" else {}  # dgc goes with no other
    tree = {"data": {"url": "x"}, **optimizer, methods.group: {methods.tag: tag, **_required(tag)}}
    config = parse_config(tree, "test")
    assert parse_config(to_tree(config), "again") == config
    assert set(to_tree(config)[methods.group]) == {spec.name for spec in fields(kind)}


@pytest.mark.parametrize(("methods", "kind"), EVERY, ids=lambda one: getattr(one, "__name__", ""))
def test_a_key_of_another_method_is_refused_by_the_names_of_its_own(methods: Methods, kind: type[Any]) -> None:
    tag, own = _tag(methods, kind), {spec.name for spec in fields(kind)}
    for name, spec in methods.keys.items():
        if name in own:
            continue
        methods.made(
            {methods.tag: tag, name: key_default(spec)} | ({"start_step": 3} if tag == "post_local_sgd" else {})
        )
        owners = [one for one, other in methods.by_name.items() if name in {field.name for field in fields(other)}]
        words = ", ".join(owners) or "module:function"
        with pytest.raises(ConfigError, match=rf"^{methods.group}\.{name} is a key of {words}, not of {tag}: leave"):
            methods.made({methods.tag: tag, name: "other"})


@pytest.mark.parametrize(("methods", "kind"), EVERY, ids=lambda one: getattr(one, "__name__", ""))
def test_a_method_names_what_builds_it(methods: Methods, kind: type[Any]) -> None:
    if methods.group == "sync" and _tag(methods, kind) == "every_step":
        return  # then the compression is built
    tag = _tag(methods, kind)
    made = methods.made({methods.tag: tag, **_required(tag)})
    assert callable(made.builder())


def test_the_help_of_a_key_names_its_methods_and_a_default_of_their_own() -> None:
    for methods, kind in EVERY:
        for spec in fields(kind):
            if spec.name != methods.tag and key_default(spec) != key_default(methods.keys[spec.name]):
                text = f"{_tag(methods, kind)}: {spec.metadata['help']} (default {key_default(spec)})"
                assert text in methods.keys[spec.name].metadata["help"]


def test_a_key_is_found_by_the_name_of_its_group() -> None:
    """The module of a group has its name, or stands in the list of `config`."""
    lines = re.findall(r"^- (.*): `(\w+)`$", config_package.__doc__ or "", re.MULTILINE)
    elsewhere = {group: module for groups, module in lines for group in groups.split(", ")}
    hints = typing.get_type_hints(TrainConfig)
    groups = {spec.name: hints[spec.name] for spec in fields(TrainConfig) if is_dataclass(hints[spec.name])}
    assert {name: kind.__module__.rpartition(".")[2] for name, kind in groups.items()} == {
        name: elsewhere.get(name, name) for name in groups
    }
    assert elsewhere.keys() <= groups.keys()

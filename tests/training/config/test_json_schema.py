"""The schema for editors agrees with what a run accepts."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding.common.strict_yaml import load_yaml
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools import cli
from ringfeed.training.config.config_file import load_config, parse_config
from ringfeed.training.config.json_schema import config_schema
from ringfeed.training.config.keys import all_keys
from ringfeed.training.config.printed import print_config
from ringfeed.training.config.registry import METHODS

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).resolve().parents[3]


def _faults(tree: Any) -> list[str]:
    found = jsonschema.Draft7Validator(config_schema()).iter_errors(tree)
    return [".".join(map(str, error.absolute_path)) for error in found]


def test_examples_and_printed_configurations_fit() -> None:
    jsonschema.Draft7Validator.check_schema(config_schema())
    for name in ("flights", "digits"):
        path = ROOT / "examples" / f"{name}.yaml"
        assert _faults(load_yaml(path.read_text())) == []
        assert _faults(load_yaml(print_config(load_config(str(path))))) == []


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({}, ""),
        ({"data": {}}, "data"),
        ({"data": {"url": "x", "batchsize": 1}}, "data"),
        ({"data": {"url": "x", "batch_size": "many"}}, "data.batch_size"),
        ({"data": {"url": "x"}, "precision": "fp16"}, "precision"),
        ({"data": {"url": "x"}, "optimizer": {"name": "rmsprop"}}, "optimizer.name"),
        ({"data": {"url": "x"}, "model": {"hidden": ["a"]}}, "model.hidden.0"),
    ],
)
def test_what_a_run_refuses_does_not_fit(tree: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError):
        parse_config(tree, "a.yaml")
    assert _faults(tree) == [place]


def _refusal(tree: dict[str, Any]) -> str:
    """The error that a tree is refused with; empty if it is not."""
    try:
        parse_config(tree, "a.yaml")
    except ConfigError as error:
        return str(error)
    return ""


def test_its_allowed_words_are_those_that_a_run_names() -> None:
    for name, spec in all_keys():
        group, _, leaf = name.rpartition(".")
        tree: dict[str, Any] = {"data": {"url": "x"}}
        if group in METHODS:
            kinds = METHODS[group].by_name.items()
            owner = next((one for one, kind in kinds if leaf in {field.name for field in fields(kind)}), "keras:Adam")
            tree[group] = {METHODS[group].tag: owner}
        (tree.setdefault(group, {}) if group else tree)[leaf] = "no-such-word"
        message, choices = _refusal(tree), spec.metadata.get("choices")
        if name == "optimizer.variant":  # each optimizer has its own
            continue
        assert (choices is not None) == ("must be one of" in message or "must be module:function" in message), name
        if choices is not None:
            assert f"{name} must be " in message
            assert ", ".join(choices).replace(", module:", ", or module:") in message


def test_is_printed_for_editors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "--print-schema"])
    assert ended.value.code == 0
    schema = json.loads(capsys.readouterr().out)
    epochs = schema["properties"]["epochs"]
    about = {"type": "integer", "description": "passes over the training split", "default": 1}
    assert epochs == {**about, "minimum": 1, "exclusiveMaximum": 2**31}

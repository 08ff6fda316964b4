"""The configuration: every wrong key, type and value is one line that names it."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import changed_keys, load_config, parse_config, to_tree
from ringfeed.training.config.keys import all_keys, describe_keys
from ringfeed.training.config.train_config import TrainConfig

MINIMAL: dict[str, Any] = {"data": {"url": "x"}}


def _file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return str(path)


def test_reads_a_file_with_overrides_on_top(tmp_path: Path) -> None:
    path = _file(tmp_path, "data: {url: s3://b/d, batch_size: 64}\noptimizer:\n  learning_rate: 1e-3\n")
    config = load_config(path, ["data.batch_size=128", "model.hidden=[8, 4]", "data.balance={late: 0.3, on time: 0.7}"])
    assert config.data.batch_size == 128
    assert config.model.hidden == (8, 4)
    assert config.optimizer.learning_rate == 1e-3
    assert config.data.balance == {"late": 0.3, "on time": 0.7}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"data": {"url": "x", "batchsize": 1}},
            "a.yaml: unknown key 'data.batchsize'; did you mean 'data.batch_size'?",
        ),
        (
            {**MINIMAL, "optimizer": {"lr": 1}},
            "a.yaml: unknown key 'optimizer.lr'; did you mean 'optimizer.learning_rate'?",
        ),
        (
            {**MINIMAL, "checkpoint": {"path": "x"}},
            "a.yaml: unknown key 'checkpoint.path'; this group has the keys: "
            "url, every_steps, commit_steps, background, keep, best, metric, resume, on_damage",
        ),
        ({**MINIMAL, "batch_size": 1}, "a.yaml: unknown key 'batch_size'; did you mean 'data.batch_size'?"),
        ({**MINIMAL, "optimzer": {}}, "a.yaml: unknown key 'optimzer'; did you mean 'optimizer'?"),
        ({**MINIMAL, "qqqq": 1}, "a.yaml: unknown key 'qqqq'; the keys are listed by: ringfeed train --help"),
        ({}, "a.yaml: data.url is missing"),
        (
            {"loss_scale": "x", **MINIMAL},
            "a.yaml: loss_scale must be a group of keys (initial, growth_interval), got 'x'",
        ),
        ({**MINIMAL, "epochs": "three"}, "a.yaml: epochs must be an integer, got 'three'"),
        ({**MINIMAL, "epochs": True}, "a.yaml: epochs must be an integer, got True"),
        ({**MINIMAL, "deterministic": 1}, "a.yaml: deterministic must be true or false, got 1"),
        ({**MINIMAL, "model": {"hidden": 3}}, "a.yaml: model.hidden must be a list of integers, got 3"),
        ({**MINIMAL, "model": {"hidden": [3, "x"]}}, "a.yaml: model.hidden[1] must be an integer, got 'x'"),
        ({"data": {"url": "x", "eval_split": 3}}, "a.yaml: data.eval_split must be text or null, got 3"),
        ({"data": {"url": "x", "batch_size": 0}}, "a.yaml: data.batch_size must be in [1, 2**31), got 0"),
        (
            {**MINIMAL, "data": {**MINIMAL["data"], "cache_bytes": 1}},
            "a.yaml: data.cache_bytes=1 does not go with data.cache=none: nothing is kept; use data.cache_bytes=null",
        ),
        (
            {**MINIMAL, "model": {"embedding_dim": 2**63}},
            f"a.yaml: model.embedding_dim must be in [1, 2**31), got {2**63}",
        ),
        (
            {**MINIMAL, "model": {"hidden": [8, 2**31]}},
            "a.yaml: model.hidden must be a list of integers in [1, 2**31), got (8, 2147483648)",
        ),
        (
            {**MINIMAL, "optimizer": {"base_batch_size": 10**30}},
            f"a.yaml: optimizer.base_batch_size must be in [1, 2**31), got {10**30}",
        ),
        ({**MINIMAL, "epochs": 2**31}, "a.yaml: epochs must be in [1, 2**31), got 2147483648"),
        (
            {**MINIMAL, "augment": {"hue": 0.1}},
            "a.yaml: augment does not go with model.name=tabular: images alone are augmented; use model.name=convnet, "
            "lenet, resnet18, resnet50 or keras.applications:NAME",
        ),
        (
            {**MINIMAL, "augment": {"crop_area": [0.5, 2]}},
            "a.yaml: augment: area must be two ascending numbers in (0, 1], got (0.5, 2.0)",
        ),
        ({**MINIMAL, "precision": "fp16"}, "a.yaml: precision must be one of float32, float16, bfloat16, got 'fp16'"),
        (
            {**MINIMAL, "schedule": {"warmup_epochs": 1}},
            "a.yaml: schedule.warmup_epochs must be below epochs (1), got 1.0",
        ),
        (
            {**MINIMAL, "schedule": {"decay": "step"}},
            "a.yaml: schedule.decay=step does not go with schedule.boundaries=[]: it falls at them; use "
            "schedule.boundaries=[30, 60]",
        ),
        (
            {**MINIMAL, "model": {"name": "mlp"}},
            "a.yaml: model.name must be one of tabular, wide_deep, convnet, lenet, resnet18, resnet50, text, or "
            "module:function, got 'mlp'",
        ),
        (
            {**MINIMAL, "model": {"name": ".networks:mlp"}},
            "a.yaml: model.name must be one of tabular, wide_deep, convnet, lenet, resnet18, resnet50, text, or "
            "module:function, got '.networks:mlp'",
        ),
        (
            {**MINIMAL, "optimizer": {"clip_norm": float("inf")}},
            "a.yaml: optimizer.clip_norm must be in [1e-37, 1e+37], got inf",
        ),
        (
            {**MINIMAL, "optimizer": {"clip_norm": 1e300}},
            "a.yaml: optimizer.clip_norm must be in [1e-37, 1e+37], got 1e+300",
        ),
        (
            {**MINIMAL, "optimizer": {"clip_norm": 1e-300}},
            "a.yaml: optimizer.clip_norm must be in [1e-37, 1e+37], got 1e-300",
        ),
        (
            {**MINIMAL, "optimizer": {"weight_decay": float("inf")}},
            "a.yaml: optimizer.weight_decay must be finite and at least 0, got inf",
        ),
        (
            {**MINIMAL, "schedule": {"end_factor": float("inf")}},
            "a.yaml: schedule.end_factor must be finite and at least 0, got inf",
        ),
        (
            {**MINIMAL, "schedule": {"decay": "step", "boundaries": [1.0, float("inf")]}},
            "a.yaml: schedule.boundaries must be rising epochs above 0, got [1.0, inf]",
        ),
        (
            {**MINIMAL, "optimizer": {"learning_rate": 10**400}},
            "a.yaml: optimizer.learning_rate must be finite and above 0, got inf",
        ),
        (
            {**MINIMAL, "optimizer": {"exclude": ["["]}},
            "a.yaml: optimizer.exclude must be regular expressions, got '['",
        ),
        (
            {**MINIMAL, "loss_scale": {"initial": float("inf")}},
            "a.yaml: loss_scale.initial must be in [1, 2**126], got inf",
        ),
        ({**MINIMAL, "checkpoint": {"url": ""}}, "a.yaml: checkpoint.url must be a path or URL, or null, got ''"),
        ({**MINIMAL, "output": {"metrics": ""}}, "a.yaml: output.metrics must be a path or URL, or null, got ''"),
        (
            {**MINIMAL, "output": {"metrics": "a.keras", "model": "a.keras"}},
            "a.yaml: output.metrics must be another file than output.model, got 'a.keras'",
        ),
        (
            {**MINIMAL, "model": {"options": {"since": date(2026, 1, 1)}}},
            "a.yaml: model.options or data.balance has a value that JSON cannot hold (Object of type date is not JSON "
            "serializable); quote it",
        ),
    ],
)
def test_says_what_is_wrong_in_one_line(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(tree, "a.yaml")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {url: x", "is not valid YAML: expected ',' or '}', but got '<stream end>' in line 1, column 14$"),
        ("- 1\n- 2\n", "must hold keys and values, got a list"),
        ("data:\n\turl: x", "cannot start any token in line 2, column 1: indent with spaces, not tabs$"),
        ("data: {url: x}\ndata: {url: y}", "is not valid YAML: the key 'data' appears twice in line 2, column 1$"),
        ("data: {url: 2026-13-01}", "is not valid YAML: month must be in 1..12"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_bad_overrides_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no configuration at .*none\.yaml"):
        load_config(str(tmp_path / "none.yaml"))
    path = _file(tmp_path, "data: {url: x}")
    for override, message in [
        ("epochs", "key=value"),
        ("epochs=[", "not valid YAML"),
        ("data.url.x=1", "url is a value"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_config(path, [override])


def test_survives_a_round_trip_through_json() -> None:
    config = parse_config({**MINIMAL, "model": {"hidden": [3]}, "epochs": 2}, "a")
    assert parse_config(json.loads(json.dumps(to_tree(config))), "b") == config


def test_changed_keys_are_those_that_affect_the_weights() -> None:
    before = json.loads(json.dumps(to_tree(parse_config({"data": {"url": "x", "balance": {1: 0.5, 0: 0.5}}}, "a"))))
    moved = parse_config(
        {
            "data": {
                "url": "y",
                "balance": {1: 0.5, 0: 0.5},
                "cache": "/mnt/cache",
                "cache_bytes": 1,
                "fetch_threads": 2,
                "prefetch_bytes": 0,
            },
            "checkpoint": {"keep": 9},
            "output": {"log_every": 1},
        },
        "a",
    )
    assert changed_keys(moved, before) == []
    del before["augment"]  # as in a checkpoint of a version that had none
    assert changed_keys(moved, before) == []
    flipped = parse_config({**MINIMAL, "model": {"name": "convnet"}, "augment": {"flip_up_down": True}}, "a")
    assert changed_keys(flipped, before) == ["data.balance", "model.name", "augment.flip_up_down"]
    odd = {"data": {"url": "x", "balance": {True: 0.5, False: 0.5}}, "model": {"options": {"blocks": [{1: 2}]}}}
    assert changed_keys(parse_config(odd, "a"), json.loads(json.dumps(to_tree(parse_config(odd, "a"))))) == []
    other = parse_config({"data": {"url": "x"}, "model": {"hidden": [1]}, "seed": 3}, "a")
    assert changed_keys(other, before) == ["data.balance", "model.hidden", "seed"]


def test_help_lists_every_key_with_a_text() -> None:
    text = describe_keys()
    for name, spec in all_keys():
        assert f"  {name} " in text
        assert spec.metadata["help"]
    assert isinstance(parse_config(MINIMAL, "a"), TrainConfig)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            {"warmup_steps": 3, "warmup_epochs": 0.5},
            "warmup_steps=3 does not go with schedule.warmup_epochs=0.5: both",
        ),
        (
            {"total_steps": 30, "total_epochs": 2.0},
            "total_steps=30 does not go with schedule.total_epochs=2.0: both",
        ),
        ({"decay": "one-cycle"}, "schedule.decay=one-cycle does not go with no warm-up: a cycle begins with it"),
        ({"warmup": "constant"}, "schedule.warmup=constant does not go with schedule.init_factor=0.0: nothing"),
        (
            {"decay": "step", "boundaries": [1], "boundary_steps": [4]},
            "schedule.boundary_steps=[4] does not go with schedule.boundaries=[1.0]: both are the boundaries",
        ),
        ({"total_epochs": 0.5, "warmup_epochs": 0.5}, "must be below schedule.total_epochs (0.5), got 0.5"),
    ],
)
def test_contradictions_of_a_schedule_are_refused(schedule: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_config({**MINIMAL, "epochs": 4, "schedule": schedule}, "a.yaml")

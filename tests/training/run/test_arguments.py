"""Mistakes in what a program gives a `Trainer`, `load_config` and `connect`: one line that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding.errors import ConfigError, RingfeedError
from ringfeed.training import EveryStep, SoloRing, Tracker, TrainConfig, Trainer, connect, load_config
from ringfeed.training.config.config_file import parse_config

CONFIG: Any = parse_config({"data": {"url": "nowhere"}}, "a test")


@pytest.mark.parametrize("config", [{"data": {"url": "d"}}, "run.yaml", Path("run.yaml"), None, TrainConfig])
def test_a_configuration_is_what_load_config_returns(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"^config must be a TrainConfig, as load_config\(FILE\) returns it, got "):
        Trainer(config, SoloRing())


@pytest.mark.parametrize("ring", [None, 2, "horovod", SoloRing, object()])
def test_a_ring_is_an_object_with_its_methods(ring: Any) -> None:
    with pytest.raises(ConfigError, match=r"^ring must be a Ring, as connect\(\) returns it, or SoloRing\(\), got "):
        Trainer(CONFIG, ring)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("check", value) for value in (True, None, "no")),
        *(("memory", value) for value in ("a folder", {})),
        *(("trackers", value) for value in (Tracker(), [object()], [Tracker], [print], "csv", None)),
        *(("synchronizer", value) for value in ("local_sgd", EveryStep(SoloRing()), 3)),
        *(("schedule", value) for value in (0.1, "cosine", [0.1, 0.01])),
    ],
)
def test_each_argument_of_another_kind_is_named(argument: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{argument} must be a .*, got ") as raised:
        Trainer(CONFIG, SoloRing(), **{argument: value})
    assert "\n" not in str(raised.value)


class Nothing(EveryStep):
    def reduce(self, sent: Any, step: Any) -> Any:
        return None


class Gradients(EveryStep):
    def reduce(self, sent: Any, step: Any) -> Any:
        return sent.gradients


def branching(step: Any) -> float:
    return 0.1 if step < 5 else 0.01


def _parts(step: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"synchronizer": lambda ring: None}, "synchronizer must be a function that returns a Synchronizer, got None"),
        ({"synchronizer": Nothing}, r"Nothing.reduce must return an Exchange, such as sent.received\(...\), got None"),
        ({"synchronizer": Gradients}, r"Gradients.reduce must return an Exchange, .* got "),
        ({"schedule": lambda: 0.1}, "schedule .*takes 0 positional arguments but 1 was given"),
        ({"schedule": lambda step: "a"}, "schedule .*could not convert string to float: 'a'"),
        ({"schedule": _parts}, "schedule _parts: .*not 'NoneType'"),
        (
            {"schedule": lambda step: -1.0},
            "schedule: the rates of .* must be finite and at least 0, got -1.0 at step 0",
        ),
        ({"schedule": branching}, r"schedule branching: .*test_arguments.py:\d+: OperatorNotAllowedInGraphError"),
    ],
)
def test_what_an_argument_returns_is_checked(
    arguments: dict[str, Any], message: str, write_config: Callable[..., Path]
) -> None:
    config = load_config(write_config(optimizer={"name": "sgd"}, data={"eval_split": None}), ["max_steps=1"])
    with pytest.raises(RingfeedError, match=message):
        Trainer(replace(config, deterministic=False), SoloRing(), **arguments).run()


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("parameter_server", "has none: use ringfeed launch --ps 1 --workers 2 train, or set backend=horovod"),
        ("mirrored", r"backend=mirrored needs the ring of connect\(backend='mirrored'\)"),
    ],
)
def test_a_backend_needs_its_own_ring(backend: str, message: str, write_config: Callable[..., Path]) -> None:
    config = load_config(write_config(), [f"backend={backend}", "deterministic=false", "max_steps=1"])
    with pytest.raises(ConfigError, match=message):
        Trainer(config, SoloRing()).run()


@pytest.mark.parametrize("backend", ["nccl", "parameter_server", None])
def test_connect_refuses_what_is_no_backend_of_a_ring(backend: Any) -> None:
    with pytest.raises(ConfigError, match="must be one of horovod, none, mirrored, multi_worker, got "):
        connect({}, backend)


def test_load_config_takes_a_path_and_a_list(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("data: {url: /d}")
    assert load_config(path, ["epochs=3"]).epochs == 3
    for overrides in ("epochs=3", {"epochs": 3}, [3], [None]):
        with pytest.raises(ConfigError, match=r"^overrides must be a list such as \['epochs=3'\], got "):
            load_config(path, overrides)  # type: ignore[arg-type]
    for no_path in ({"data": {"url": "d"}}, None, 3):
        with pytest.raises(ConfigError, match=r"^load_config takes the path of a YAML file, got "):
            load_config(no_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": "3"}, "epochs must be an integer, got '3'"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"deterministic": "yes"}, "deterministic must be True or False, got 'yes'"),
        ({"data": {"url": "d"}}, "data must be DataConfig, got {'url': 'd'}"),
        ({"metrics": "accuracy"}, "metrics must be a list of texts or None, got 'accuracy'"),
    ],
)
def test_a_configuration_made_in_python_has_the_types_of_its_keys(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        replace(CONFIG, **changes)


def test_a_group_made_in_python_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^data.batch_size must be an integer, got '64'"):
        replace(CONFIG.data, batch_size="64")

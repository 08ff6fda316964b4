"""Checks what a program gives a `Trainer`, so that a mistake is named where it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import one_line
from ringfeed.training.checkpoint.background import Memory
from ringfeed.training.config.backend import MIRRORED, PARAMETER_SERVER
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.reports.tracker import Tracker
from ringfeed.training.ring.replicas import replicas_of
from ringfeed.training.ring.ring import Ring

_SHOWN = 80  # characters of a value


def check_kind(holds: bool, name: str, rule: str, value: object) -> None:
    """Raise a ConfigError for a value of another kind than the rule says."""
    if not holds:
        raise ConfigError(f"{name} must be {rule}, got {one_line(repr(value))[:_SHOWN]}")


def check_arguments(config: Any, ring: Any, arguments: Mapping[str, Any]) -> None:
    """Raise a ConfigError for an argument of a trainer, by its name, that is of another kind than the trainer takes."""
    check_kind(isinstance(config, TrainConfig), "config", "a TrainConfig, as load_config(FILE) returns it", config)
    is_ring = not isinstance(ring, type) and all(hasattr(ring, name) for name in vars(Ring) if name[0] != "_")
    check_kind(is_ring, "ring", "a Ring, as connect() returns it, or SoloRing()", ring)
    memory, trackers = arguments["memory"], arguments["trackers"]
    check_kind(memory is None or isinstance(memory, Memory), "memory", "a Memory, or None", memory)
    is_list = isinstance(trackers, (list, tuple)) and all(isinstance(each, Tracker) for each in trackers)
    check_kind(is_list, "trackers", "a list of objects of Tracker's subclasses", trackers)
    for name, rule in (
        ("check", "a function without arguments"),
        ("synchronizer", "a function of the ring, such as a subclass of EveryStep, or None"),
        ("schedule", "a function of the step, or None"),
    ):
        value = arguments[name]
        check_kind(callable(value) or (value is None and name != "check"), name, rule, value)


def check_backend(config: TrainConfig, ring: Ring) -> None:
    """Raise a ConfigError if the backend needs another ring."""
    if config.backend == PARAMETER_SERVER:
        raise ConfigError(
            "a Trainer is a rank of a ring, and backend=parameter_server has none: use ringfeed launch --ps 1 "
            "--workers 2 train, or set backend=horovod"
        )
    if config.backend == MIRRORED and replicas_of(ring) is None:
        raise ConfigError("backend=mirrored needs the ring of connect(backend='mirrored')")

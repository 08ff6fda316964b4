"""A run as one function call: what `ringfeed train` does, from Python.

Tested in tests/test_face.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import load_config, parse_config
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.ring.connect import connect

from .trainer import Trainer


def train(
    config: str | os.PathLike[str] | Mapping[str, Any] | TrainConfig, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Train a model, alone or as one rank of `horovodrun`, and write the outputs that the configuration names.

    Args:
        config: a YAML file, its content as a mapping, or a configuration.
        overrides: ``key.key=value`` items that override a file, as `--set` does.

    Returns:
        The metrics of the run: what `output.metrics` holds, see docs/training.md.

    Raises:
        ConfigError: the configuration is wrong, or does not fit the dataset.
        RingfeedError: the run failed.
    """
    if isinstance(config, (str, os.PathLike)):
        config = load_config(os.fspath(config), overrides)
    elif overrides:
        raise ConfigError("overrides are for a configuration file; change the keys of a mapping instead")
    elif isinstance(config, Mapping):
        config = parse_config(config, "the configuration")
    ring = connect(backend=config.backend, hierarchical=config.sync.hierarchical, devices=config.mirrored.devices)
    return Trainer(config, ring).run()

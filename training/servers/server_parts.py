"""The parts of a run whose network is on parameter servers, as checkpoints and the model's file need them.

Tested in tests/training/servers/test_row_shards.py and tests/training/servers/test_parameter_server.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.checkpoint.snapshot import Parts
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.build import build_model
from ringfeed.training.optimizers.norms import is_adapted

from .placement import VariablePlacement
from .row_shards import WholeTable, split_tables, whole_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts(Parts):
    local: Any  # the same network with variables in this process, for evaluations and the model's file
    tables: Sequence[WholeTable] = ()  # those tables of `network` that are split

    @property
    def weights(self) -> list[Any]:
        return whole_weights(self.network, self.tables)

    @contextmanager
    def exported(self) -> Iterator[Any]:
        """Yield `local` with the servers' weights."""
        for own, served in zip(self.local.weights, self.weights, strict=True):
            own.assign(np.asarray(tf.convert_to_tensor(served)))
        yield self.local


def on_servers(
    manifest: Manifest, config: TrainConfig, local: Any, placement: VariablePlacement
) -> tuple[Any, list[WholeTable]]:
    """Build the network of a configuration once more, on servers; return it and its split tables.

    A ConfigError says that a table cannot be split.
    """
    least_bytes = config.parameter_server.shard_bytes
    if least_bytes is None:
        keras.utils.set_random_seed(config.seed)
        with placement.scope():
            return build_model(manifest, config).network, []
    network, tables = split_tables(local, placement, least_bytes)
    if not tables:
        log.warning("parameter_server.shard_bytes=%d: no embedding table of the network is as large", least_bytes)
    decayed = [table.path for table in tables if is_adapted(table.path, table.shape, config.optimizer.exclude)]
    if config.optimizer.weight_decay and decayed:
        raise ConfigError(
            f"optimizer.weight_decay={config.optimizer.weight_decay} would change all rows of the split tables "
            f"{', '.join(decayed)} in each update: add them to optimizer.exclude, or set "
            "parameter_server.shard_bytes=null"
        )
    return network, tables

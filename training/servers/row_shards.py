"""Networks on parameter servers. Embedding tables may be split by rows: a worker moves only the rows of its batch.

Checkpoints and the model's file have whole tables.
Tested in tests/training/servers/test_row_shards.py and tests/training/servers/test_parameter_server.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import brief
from ringfeed.training.checkpoint.snapshot import Parts
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.build import build_model
from ringfeed.training.optimizers.keras_doors import Tensor, Variable
from ringfeed.training.optimizers.norms import is_adapted

from .placement import VariablePlacement

log = logging.getLogger(__name__)


def shard_rows(rows: int, servers: int) -> list[int]:
    """Return the number of rows of each shard; a shard's rows follow each other, and the first shards have one more.

    >>> shard_rows(8, 3)
    [3, 3, 2]
    """
    return [(rows + servers - 1 - server) // servers for server in range(servers)]


class RowShards(keras.layers.Embedding):  # type: ignore[misc]  # Keras ships no types
    """An embedding whose table is split by rows, a shard on each server; the placement is set before it is built.

    A row that a batch has several times travels once, and so does its gradient, which is `tf.IndexedSlices` of a shard.
    """

    placement: VariablePlacement
    shards: list[Variable]

    def build(self, input_shape: Any = None) -> None:
        del input_shape
        shards = []
        for server, rows in enumerate(shard_rows(self.input_dim, self.placement.servers)):
            with self.placement.on(server):  # all have the table's name, by which an optimizer's patterns know it
                shards.append(self.add_weight(shape=(rows, self.output_dim), initializer="zeros", name="embeddings"))
        self.shards = shards
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        """Look up rows: from integers [...] to [..., width]."""
        ids, places = tf.unique(tf.reshape(tf.cast(inputs, tf.int64), [-1]))
        rows = tf.nn.embedding_lookup([shard.value for shard in self.shards], ids)
        found = tf.gather(rows, tf.reshape(places, tf.shape(inputs)))
        return tf.cast(tf.ensure_shape(found, [*inputs.shape, self.output_dim]), self.compute_dtype)


class WholeTable:
    """The shards of a table, [rows of the shard, width], as the one variable that checkpoints and files hold."""

    def __init__(self, shards: Sequence[Variable]) -> None:
        self.shards = list(shards)
        self.shape = (sum(shard.shape[0] for shard in shards), shards[0].shape[1])
        self.dtype, self.path, self.name = shards[0].dtype, shards[0].path, shards[0].name

    def assign(self, table: npt.NDArray[Any]) -> None:
        start = 0
        for shard in self.shards:
            stop = start + shard.shape[0]
            shard.assign(table[start:stop])
            start = stop

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        del copy
        table = np.concatenate([np.asarray(tf.convert_to_tensor(shard)) for shard in self.shards])
        return table if dtype is None else table.astype(dtype)


def split_tables(network: Any, placement: VariablePlacement, least_bytes: int) -> tuple[Any, list[WholeTable]]:
    """Copy a network to the servers, with its weights, and each table of embeddings of `least_bytes` in shards.

    Tables of layers with a regularizer or a constraint, which are of whole tables, are not split. Returned are the copy
    and its split tables. A ConfigError says that Keras cannot copy the network: it is neither functional nor
    sequential.
    """
    split: list[RowShards] = []

    def copied(layer: Any) -> Any:
        if not _is_split(layer, least_bytes):
            return layer.__class__.from_config(layer.get_config())
        shards = RowShards.from_config(layer.get_config())
        shards.placement = placement
        split.append(shards)
        return shards

    try:
        with placement.scope():
            copy = keras.models.clone_model(network, clone_function=copied, recursive=True)
    except (NotImplementedError, TypeError, ValueError) as error:  # Keras raises any of them for a subclass of Model
        raise ConfigError(
            f"parameter_server.shard_bytes: Keras cannot copy this network to split its tables ({brief(error)}); "
            "make it functional or sequential, give its layers get_config, or set parameter_server.shard_bytes=null"
        ) from error
    tables = [WholeTable(layer.shards) for layer in split]
    for served, own in zip(whole_weights(copy, tables), network.weights, strict=True):
        served.assign(np.asarray(tf.convert_to_tensor(own)))
    return copy, tables


def _is_split(layer: Any, least_bytes: int) -> bool:
    if type(layer) is not keras.layers.Embedding or layer.embeddings_regularizer or layer.embeddings_constraint:
        return False
    table = layer.embeddings
    is_large: bool = math.prod(table.shape) * tf.as_dtype(table.dtype).size >= least_bytes
    return is_large


def whole_weights(network: Any, tables: Sequence[WholeTable]) -> list[Any]:
    """Return a network's weights, with a table in place of its shards: in the order of the network before the split."""
    table_of = {id(shard): table for table in tables for shard in table.shards}
    found = {id(owner): owner for owner in (table_of.get(id(weight), weight) for weight in network.weights)}
    return list(found.values())


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

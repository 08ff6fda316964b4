"""Split embedding tables: the same network and updates as of whole ones."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding import open_dataset
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.checkpoint.snapshot import Position, capture, restore
from ringfeed.training.checkpoint.store import decode, encode
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.config.optimizers import OPTIMIZERS, AdamConfig, OptimizerConfig, SGDConfig
from ringfeed.training.models.build import build_model
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.servers.placement import ServerOptimizers, VariablePlacement
from ringfeed.training.servers.row_shards import ServerParts, on_servers, split_tables, whole_weights
from ringfeed.training.servers.worker_loop import _summed_rows

ROWS, WIDTH = 7, 3
EVERY_ROW = np.array([[0, 1], [2, 3], [4, 5], [6, 0], [6, 6]])


def _network() -> Any:
    """A network that looks up two tables, one of them twice."""
    ids = keras.Input((2,), dtype="int32")
    shared, small = keras.layers.Embedding(ROWS, WIDTH, name="shared"), keras.layers.Embedding(ROWS, 1, name="small")
    parts = [shared(ids[:, 0]), shared(ids[:, 1]), small(ids[:, 0])]
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))


def _split(network: Any) -> tuple[Any, Any]:
    copy, tables = split_tables(network, VariablePlacement(["/device:CPU:0"] * 3), 4 * ROWS * WIDTH)
    assert [[shard.shape[0] for shard in table.shards] for table in tables] == [[3, 2, 2]]
    return copy, tables


def _arrays(variables: Any) -> list[Any]:
    return [np.asarray(tf.convert_to_tensor(variable)) for variable in variables]


def _step(network: Any, optimizers: ServerOptimizers) -> Any:
    variables = [variable.value for variable in network.trainable_variables]

    @tf.function
    def step(number: Any, ids: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(network(ids) - tf.cast(ids[:, :1], tf.float32)))
        optimizers.apply(number, [_summed_rows(gradient) for gradient in tape.gradient(loss, variables)])

    return step


def _trained(config: OptimizerConfig, batches: list[Any]) -> tuple[list[list[Any]], list[list[Any]], Any]:
    """Train a whole and a split network; return the weights of either after each batch."""
    keras.utils.set_random_seed(3)
    whole = _network()
    copy, tables = _split(whole)
    shards = [shard for table in tables for shard in table.shards]
    rates = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)
    ordinary = _step(whole, ServerOptimizers(config, rates, whole.trainable_variables))
    optimizers = ServerOptimizers(config, rates, copy.trainable_variables, shards)
    split, expected, found = _step(copy, optimizers), [], []
    for number, ids in enumerate(batches):
        ordinary(tf.constant(number), tf.constant(ids))
        expected.append(_arrays(whole.weights))
        split(tf.constant(number), tf.constant(ids))
        found.append(_arrays(whole_weights(copy, tables)))
    parts = ServerParts(network=copy, optimizer=optimizers, scale=LossScale(None), local=whole, tables=tables)
    return expected, found, parts


@pytest.mark.parametrize(
    "options",
    [
        {"name": "sgd", "momentum": 0.0},
        {"name": "sgd"},
        {"name": "sgd", "nesterov": True},
        {"name": "adam"},
    ],
)
def test_updates_of_rows_equal_those_of_the_table_and_leave_other_rows_alone(options: dict[str, Any]) -> None:
    few = np.array([[1, 1], [5, 1]])
    expected, found, _ = _trained(OPTIMIZERS.made(options), [*[EVERY_ROW] * 4, few])
    for mine, ours in zip(found[3], expected[3], strict=True):
        np.testing.assert_allclose(mine, ours, rtol=1e-5, atol=1e-6)
    changed = (found[3][0] != found[4][0]).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [1, 5]


def test_sgd_without_momentum_equals_the_whole_table_whatever_rows_a_batch_has() -> None:
    batches = [np.array([[row, 6 - row], [3, row]]) for row in (0, 5, 2, 5)]
    expected, found, _ = _trained(SGDConfig(momentum=0.0), batches)
    for mine, ours in zip(found[-1], expected[-1], strict=True):
        np.testing.assert_allclose(mine, ours, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_holds_whole_tables_and_restores_them_and_their_moments() -> None:
    config = parse_config({"data": {"url": "x"}}, "a test")
    _, _, parts = _trained(AdamConfig(), [EVERY_ROW] * 2)
    checkpoint = decode(encode(capture(parts, Position(), config, "", {"steps": [], "evaluations": []})))
    shapes = [array.shape for name, array in checkpoint.arrays.items() if name.startswith("model/")]
    assert shapes == [tuple(weight.shape) for weight in parts.local.weights]
    kept = _arrays(parts.variables().values())
    for variable, array in zip(parts.variables().values(), kept, strict=True):
        variable.assign(np.zeros_like(array))
    restore(parts, checkpoint.arrays)
    for array, before in zip(_arrays(parts.variables().values()), kept, strict=True):
        np.testing.assert_array_equal(array, before)
    with parts.exported() as network:
        assert network.layers[1].embeddings.shape == (ROWS, WIDTH)
        copy, whole = parts.network(EVERY_ROW), network(EVERY_ROW)
    np.testing.assert_allclose(copy, whole, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "groups", "message"),
    [
        ({"mode": "sync"}, {}, "shard_bytes=1 does not go with parameter_server.mode=sync: its workers exchange whole"),
        ({"mode": "asp"}, {}, "parameter_server.mode=asp"),
        (
            {},
            {"optimizer": {"name": "lars"}},
            "optimizer.name=lars: it updates whole tables; use optimizer.name=sgd, adam or adamw",
        ),
        ({"shard_bytes": 0}, {}, "parameter_server.shard_bytes must be at least 1, got 0"),
    ],
)
def test_what_does_not_go_with_split_tables_is_refused(
    options: dict[str, Any], groups: dict[str, Any], message: str
) -> None:
    tree = {"data": {"url": "x"}, "backend": "parameter_server", "optimizer": {"name": "sgd"}, **groups}
    with pytest.raises(ConfigError, match=message):
        parse_config({**tree, "parameter_server": {"shard_bytes": 1, **options}}, "a test")


def test_a_network_that_keras_cannot_copy_is_refused_by_the_key() -> None:
    class Own(keras.Model):  # type: ignore[misc]  # Keras ships no types
        def __init__(self) -> None:
            super().__init__()
            self.table = keras.layers.Embedding(ROWS, WIDTH)

        def call(self, ids: Any) -> Any:
            return self.table(ids)

    class Odd(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, kind: Any = dict, **given: Any) -> None:
            super().__init__(**given)
            self.kind = kind()

        def call(self, x: Any) -> Any:
            return x

    class Copied(Odd):
        def get_config(self) -> dict[str, Any]:
            return {"name": self.name}

    def functional(*layers: Any) -> Any:
        ids = keras.Input((2,), dtype="int32")
        return keras.Model(ids, keras.Sequential(layers)(keras.layers.Embedding(ROWS, WIDTH)(ids)))

    own = Own()
    own(EVERY_ROW)
    where = VariablePlacement(["/device:CPU:0"])
    for network in (own, functional(Odd(kind=object))):
        with pytest.raises(ConfigError, match=r"shard_bytes: Keras cannot copy this .*functional or sequential, give"):
            split_tables(network, where, 1)
    for remedied in (functional(keras.layers.Activation("tanh")), functional(Copied(kind=object))):
        assert split_tables(remedied, where, 1)[1]


def test_tables_that_decay_are_refused_until_they_are_left_out_or_whole(flights: str) -> None:
    def tables(exclude: list[str], shard_bytes: int | None = 1) -> list[Any]:
        tree = {
            "data": {"url": flights, "categorical": ["hour"]},
            "optimizer": {"name": "adamw", "weight_decay": 0.1, "exclude": exclude},
            "backend": "parameter_server",
            "parameter_server": {"shard_bytes": shard_bytes},
        }
        config, manifest = parse_config(tree, "a test"), open_dataset(flights).manifest
        keras.utils.clear_session()  # the names of its tables are those of a run
        local = build_model(manifest, config).network
        return on_servers(manifest, config, local, VariablePlacement(["/device:CPU:0"]))[1]

    with pytest.raises(
        ConfigError, match=r"split tables (.*) in each update: add them to optimizer.exclude, or"
    ) as error:
        tables([])
    assert tables(str(error.value).partition("split tables ")[2].partition(" in each")[0].split(", "))
    assert tables([], shard_bytes=None) == []

"""Layers that are computed again in the backward pass: the same step, bit for bit, also with dropout; and XLA's."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.models.layer_patterns import rematerialise
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.step.train_step import StepOptions, make_train_step
from ringfeed.training.sync.synchronizer import EveryStep


class _Block(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
    """A layer of a user, whose inner layers learn from Keras whether they train, and its weight in which dtype."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense, self.dropout = keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.5)

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(8,), initializer="ones")
        self.dense.build(shape)

    def call(self, inputs: Any) -> Any:
        return self.dropout(self.dense(inputs)) * self.scale


class _AwareBlock(_Block):
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return super().call(inputs)


def _own_network(block: type[_Block], dtype: str) -> Any:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(2, name="logits")(block(name="block", dtype=dtype)(inputs)))


def _network() -> Any:
    keras.utils.set_random_seed(1)
    outside = inside = keras.Input((4,))
    for _ in range(2):
        inside = keras.layers.Dense(8, activation="relu")(inside)
        inside = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization(momentum=0.5)(inside))
    block = keras.Model(outside, inside, name="block")
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(2, name="logits")(block(inputs)))


def _trained(patterns: list[str], network: Any = None, **options: Any) -> tuple[list[Any], Any]:
    network = network or _network()
    rematerialise(network, patterns)
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(network.trainable_variables)
    step = make_train_step(network, optimizer, EveryStep(SoloRing()), LossScale(None), StepOptions(**options))
    inputs = tf.constant(np.random.default_rng(0).normal(size=(6, 4)), tf.float32)
    for _ in range(3):
        step(inputs, tf.constant([0, 1] * 3), tf.ones(6))
    return [variable.numpy() for variable in network.variables], step


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_gives_the_same_weights_statistics_and_masks(options: dict[str, Any]) -> None:
    plain, plain_step = _trained([], **options)
    again, step = _trained(["block", "dense"], **options)
    for mine, theirs in zip(again, plain, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    if not options:
        assert _products(step) > _products(plain_step)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("block", [_Block, _AwareBlock])
def test_a_layer_of_the_user_is_computed_again_as_it_was_at_first(block: type[_Block], dtype: str) -> None:
    plain, plain_step = _trained([], _own_network(block, dtype))
    again, step = _trained(["block"], _own_network(block, dtype))
    for mine, theirs in zip(again, plain, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert _products(step) > _products(plain_step)


def _products(step: Any) -> int:
    """The number of matrix products in a compiled step."""
    graph = inspect.getclosurevars(step).nonlocals["compiled"].graph
    functions = [graph, *(function.graph for function in graph._functions.values() if hasattr(function, "graph"))]
    return sum(operation.type == "MatMul" for inner in functions for operation in inner.get_operations())


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.remat: 'conv' matches no layer; the layers are: .*block"):
        rematerialise(_network(), ["conv"])


@pytest.mark.parametrize("accumulate", [1, 4])
def test_xla_gives_the_same_step_to_rounding(accumulate: int) -> None:
    def weights(jit_compile: bool) -> list[Any]:
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        hidden = keras.layers.BatchNormalization(momentum=0.5)(keras.layers.Dense(8, activation="relu")(inputs))
        network = keras.Model(inputs, keras.layers.Dense(2)(hidden))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(network.trainable_variables)
        step = make_train_step(
            network, optimizer, EveryStep(SoloRing()), LossScale(None),
            StepOptions(accumulate=accumulate, jit_compile=jit_compile),
        )  # fmt: skip
        for size in (6, 5):
            samples = np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)
            step(tf.constant(samples), tf.constant([0, 1, 0, 1, 0, 1][:size]), tf.ones(size))
        return [variable.numpy() for variable in network.weights]

    for mine, theirs in zip(weights(True), weights(False), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)

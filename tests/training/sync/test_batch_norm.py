"""Batch normalisation over ranks, here threads. On real ranks: tests/training/sync/compression/test_methods.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import load_config, parse_config
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.run.assembly import assemble
from ringfeed.training.sync.batch_norm import synchronise_batch_norm
from tests.helpers.thread_ring import on_ranks


def _network() -> Any:
    """A network of images with two layers that normalise, and a frozen one between them."""
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4, 4, 2))
    hidden = keras.layers.BatchNormalization(momentum=0.5)(keras.layers.Conv2D(3, 2, activation="relu")(inputs))
    frozen = keras.layers.BatchNormalization(momentum=0.5, trainable=False)
    hidden = keras.layers.Dense(5)(keras.layers.Flatten()(frozen(hidden)))
    hidden = keras.Sequential([keras.Input((5,)), keras.layers.BatchNormalization(momentum=0.5)])(hidden)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.ReLU()(hidden)))


def _gradients(network: Any, inputs: Any, targets: Any, samples: int) -> list[Any]:
    """The gradients of a part's share of the mean loss over `samples`."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(network(inputs, training=True) - targets)) / samples
    found: list[Any] = tape.gradient(loss, [v.value for v in network.trainable_variables])
    return found


@pytest.mark.parametrize("shares", [[8, 8], [3, 13], [5, 1, 10]])
def test_ranks_normalise_like_one_process_on_all_samples(shares: Sequence[int]) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(16, 4, 4, 2)).astype(np.float32)
    targets = rng.normal(size=(16, 3)).astype(np.float32)
    whole, networks = _network(), [_network() for _ in shares]
    expected = _gradients(whole, inputs, targets, 16)
    bounds = np.cumsum([0, *shares])

    def gradients(ring: Ring) -> list[Any]:
        synchronise_batch_norm(networks[ring.rank], ring)
        part = slice(bounds[ring.rank], bounds[ring.rank + 1])
        return _gradients(networks[ring.rank], inputs[part], targets[part], 16)

    found = on_ranks(len(shares), gradients)
    for want, *parts in zip(expected, *found, strict=True):
        np.testing.assert_allclose(np.sum(parts, axis=0), want, rtol=2e-5, atol=2e-6)
    for network in networks:
        for want, got in zip(whole.non_trainable_variables, network.non_trainable_variables, strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
        frozen = network.layers[3]
        assert frozen.moving_mean.numpy().tolist() == [0.0] * 3
        assert frozen.moving_variance.numpy().tolist() == [1.0] * 3


def test_masked_places_do_not_count_and_a_large_mean_hides_no_variance() -> None:
    rng = np.random.default_rng(1)
    inputs = rng.normal(1000, 0.1, size=(6, 4, 2)).astype(np.float32)  # a difference of squares would be noise
    mask = rng.random((6, 4)) < 0.6
    layers = [keras.layers.BatchNormalization(momentum=0.0) for _ in range(2)]

    def normalise(ring: Ring) -> None:
        layer = layers[ring.rank]
        layer.build((None, 4, 2))
        synchronise_batch_norm(keras.Sequential([layer]), ring)
        part = slice(0, 2) if ring.rank == 0 else slice(2, 6)
        layer(inputs[part], training=True, mask=tf.constant(mask[part]))

    on_ranks(2, normalise)
    kept = inputs[mask].astype(np.float64)
    for layer in layers:
        np.testing.assert_allclose(layer.moving_mean.numpy(), kept.mean(0), rtol=1e-6)
        np.testing.assert_allclose(layer.moving_variance.numpy(), kept.var(0), rtol=0.02)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, when it saves a model
def test_a_saved_network_needs_no_ring(tmp_path: Path) -> None:
    network = _network()
    synchronise_batch_norm(network, SoloRing())
    network.save(tmp_path / "model.keras")
    inputs = np.ones((2, 4, 4, 2), np.float32)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(inputs, training=True), network(inputs, training=True), rtol=1e-5)


def test_what_it_does_not_go_with_is_refused(write_config: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"sync.batch_norm=true does not go with sync.method=local_sgd"):
        parse_config({"data": {"url": "x"}, "sync": {"method": "local_sgd", "batch_norm": True}}, "test")
    path = write_config(model={"norm": "none", "hidden": [4]}, sync={"batch_norm": True})
    with pytest.raises(ConfigError, match=r"sync.batch_norm=true, but the model has no batch normalisation"):
        assemble(load_config(str(path), []), SoloRing())

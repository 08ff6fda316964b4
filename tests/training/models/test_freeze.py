"""Frozen layers keep their weights, and a frozen batch normalisation its statistics."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.models.layer_patterns import freeze
from ringfeed.training.optimizers.lars import LARS
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.step.train_step import make_train_step
from ringfeed.training.sync.synchronizer import EveryStep


def _network() -> keras.Model:
    inputs = keras.Input((3,))
    inner = keras.Sequential(
        [keras.layers.Dense(4, name="lower"), keras.layers.BatchNormalization(name="norm")], name="base"
    )
    return keras.Model(inputs, keras.layers.Dense(2, name="logits")(inner(inputs)))


def test_frozen_layers_do_not_move() -> None:
    network = _network()
    freeze(network, ["base"])
    optimizer = LARS(0.5, weight_decay=0.1)
    optimizer.build(network.trainable_variables)
    before = [w.numpy() for w in network.weights]
    step = make_train_step(network, optimizer, EveryStep(SoloRing()), LossScale(None))
    step(tf.constant(np.random.default_rng(0).normal(size=(8, 3)), tf.float32), tf.constant([0, 1] * 4), tf.ones(8))
    moved = {w.path: not np.array_equal(w.numpy(), old) for w, old in zip(network.weights, before, strict=True)}
    assert [path for path, has_moved in moved.items() if has_moved] == ["logits/kernel", "logits/bias"]


def test_patterns_that_fit_nothing_or_all_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.freeze: 'conv' matches no layer; the layers are: .*lower.*logits"):
        freeze(_network(), ["conv"])
    with pytest.raises(ConfigError, match=r"model.freeze: \['.'\] leave no weight to train"):
        freeze(_network(), ["."])

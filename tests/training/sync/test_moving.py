"""The moving average of weights: its formula, and that it is what is evaluated and saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training import CheckpointStore
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.optimizers.precision import LossScale, ScaleRule
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.step.train_step import make_train_step
from ringfeed.training.sync.moving import MovingAverage
from ringfeed.training.sync.synchronizer import EveryStep
from ringfeed.training.train import main


@pytest.mark.parametrize("warms_up", [False, True])
def test_follows_its_formula_and_leaves_out_steps_that_overflow(warms_up: bool) -> None:
    inputs = keras.Input((3,))
    hidden = keras.layers.BatchNormalization(momentum=0.5)(inputs)
    network = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(network.trainable_variables)
    average = MovingAverage(network, 0.75, warms_up=warms_up)
    scale = LossScale(ScaleRule(initial=4.0))
    step = make_train_step(network, optimizer, EveryStep(SoloRing()), scale, average=average)
    samples = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    expected = [w.numpy().astype(np.float64) for w in network.weights]
    updates = 0
    for number in range(12):
        has_overflowed = number == 3
        step(samples * (np.float32(np.inf) if has_overflowed else 1 + number), tf.constant([0, 1] * 4), tf.ones(8))
        if has_overflowed:
            continue
        updates += 1
        decay = min(0.75, (1 + updates) / (10 + updates)) if warms_up else 0.75
        expected = [decay * e + (1 - decay) * w.numpy() for e, w in zip(expected, network.weights, strict=True)]
    assert len(average.statistics) == 2
    assert updates == 11
    own = [w.numpy() for w in network.weights]
    with average.applied():
        for weight, value in zip(network.weights, expected, strict=True):
            np.testing.assert_allclose(weight.numpy(), value, rtol=1e-5, atol=1e-7)
    for weight, value in zip(network.weights, own, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


@pytest.mark.parametrize("warms_up", [False, True])
def test_an_update_for_several_steps_keeps_their_power_of_the_decay(warms_up: bool) -> None:
    network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, kernel_initializer="zeros")])
    average = MovingAverage(network, 0.75, warms_up=warms_up)
    network.weights[0].assign([[1.0, 2.0]])
    average.update(tf.constant(4), since=3)
    kept = (5 / 14 if warms_up else 0.75) ** 3
    np.testing.assert_allclose(average.variables[0], [[1 - kept, 2 * (1 - kept)]], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves
def test_a_run_trains_as_without_it_but_evaluates_and_saves_the_average(
    tmp_path: Path, write_config: Callable[..., Path], metrics: Callable[[], dict[str, Any]]
) -> None:
    model, checkpoints = tmp_path / "model.keras", tmp_path / "checkpoints"
    config = write_config(checkpoint={"url": str(checkpoints)}, epochs=1, output={"model": str(model)})
    settings = ["--config", str(config), "--set", "deterministic=false"]
    assert main([*settings, "--set", "ema.decay=0.98"]) == 0
    averaged = metrics()
    newest = CheckpointStore(str(checkpoints)).newest()
    assert newest is not None
    saved = [array for name, array in newest.arrays.items() if name.startswith("average/")]
    for weight, value in zip(keras.models.load_model(model).weights, saved, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    assert main([*settings, "--set", "checkpoint.url=null"]) == 0
    plain = metrics()
    assert plain["history"]["steps"][-1]["loss"] == pytest.approx(averaged["history"]["steps"][-1]["loss"], rel=1e-4)
    assert abs(plain["final"]["loss"] - averaged["final"]["loss"]) > 5e-4


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sync.batch_norm=true does not go with jit_compile=true"):
        parse_config({"data": {"url": "x"}, "jit_compile": True, "sync": {"batch_norm": True}}, "a.yaml")
    with pytest.raises(ConfigError, match=r"ema.decay must be in \(0, 1\), got 1.0"):
        parse_config({"data": {"url": "x"}, "ema": {"decay": 1.0}}, "a.yaml")

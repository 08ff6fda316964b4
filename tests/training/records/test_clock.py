"""The clock in a compiled step changes no bit of its result, and is read at the right moments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism  # there is no public name for it

from ringfeed.sharding import ConfigError
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.records import clock as module
from ringfeed.training.records.clock import Clock, clock, timed
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.step.train_step import StepOptions, make_train_step
from ringfeed.training.sync.synchronizer import EveryStep


def _three_steps(read_clock: Clock | None) -> tuple[list[Any], Any]:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(keras.layers.Dense(8)(inputs)))
    network = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer.build(network.trainable_variables)
    step = make_train_step(
        network, optimizer, EveryStep(SoloRing()), LossScale(None), StepOptions(clip_norm=1.0), read_clock=read_clock
    )
    batch = tf.constant(np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32))
    for _ in range(3):
        metrics = step(batch, tf.constant([0, 1, 1, 0, 1, 0]), tf.ones(6))
    return [weight.numpy().tobytes() for weight in network.weights], metrics


def test_a_timed_step_gives_the_same_bits() -> None:
    plain, metrics = _three_steps(None)
    assert metrics.stamps.shape == 0
    started = time.monotonic()
    weights, metrics = _three_steps(clock(deterministic=False))
    assert weights == plain
    ready, reduced = metrics.stamps.numpy()
    assert started < ready < reduced < time.monotonic()


def test_the_compiled_clock_runs_under_op_determinism() -> None:
    """TensorFlow's own clock refuses to, and it is read once the tensors are there, and once the collective is done."""
    read_clock = clock(deterministic=True)

    def slow(tensors: Sequence[Any]) -> list[Any]:
        waited = tf.numpy_function(lambda value: time.sleep(0.05) or value, [tensors[0]], tf.float32)
        return [waited, *tensors[1:]]

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def run() -> Any:
        return timed(slow, slow([tf.constant(1.0), tf.constant(2.0)]), read_clock)

    tf.config.experimental.enable_op_determinism()
    try:
        begun = time.monotonic()
        received, stamps = run()
    finally:
        disable_op_determinism()
    ready, reduced = stamps.numpy()
    assert [float(tensor) for tensor in received] == [1.0, 2.0]
    assert ready - begun >= 0.05
    assert reduced - ready >= 0.05


def test_without_a_compiler_only_a_deterministic_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MODULE", "._absent")
    clock.cache_clear()
    try:
        read_clock = tf.function(clock(deterministic=False), autograph=False)
        before, now, after = time.monotonic(), float(read_clock()), time.monotonic()
        assert before <= now <= after
        with pytest.raises(ConfigError, match="without a C compiler: install one"):
            clock(deterministic=True)
    finally:
        clock.cache_clear()

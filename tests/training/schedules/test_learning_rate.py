"""Schedules against optax, at every step of a run and beyond its end, in NumPy and in TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.training.schedules import learning_rate as schedules
from ringfeed.training.schedules.learning_rate import WarmUpDecay

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

STEPS = np.arange(0, 130)


def _pairs() -> dict[str, tuple[Any, Any]]:
    return {
        "constant": (schedules.constant(0.3), lambda t: np.full(np.shape(t), 0.3)),
        "polynomial": (schedules.polynomial(1.0, 0.01, 2.0, 100), optax.polynomial_schedule(1.0, 0.01, 2.0, 100)),
        "linear up": (schedules.polynomial(0.1, 2.0, 1.0, 30), optax.linear_schedule(0.1, 2.0, 30)),
        "cosine": (schedules.cosine(0.7, 90, 0.1), optax.cosine_decay_schedule(0.7, 90, 0.1)),
        "steps": (
            schedules.piecewise(1.0, {60: 0.1, 30: 0.5}),
            lambda t: np.array(
                [float(optax.piecewise_constant_schedule(1.0, {30: 0.5, 60: 0.1})(int(s))) for s in np.ravel(t)]
            ),
        ),
        "join": (
            schedules.join([schedules.polynomial(0, 1, 1, 10), schedules.cosine(1.0, 50)], [10]),
            optax.join_schedules([optax.linear_schedule(0, 1, 10), optax.cosine_decay_schedule(1.0, 50)], [10]),
        ),
        "warm-up, cosine": (
            WarmUpDecay(3.2, 20, 120, end_value=0.04, init_value=0.02),
            optax.warmup_cosine_decay_schedule(0.02, 3.2, 20, 120, end_value=0.04),
        ),
        "warm-up, polynomial": (
            WarmUpDecay(3.2, 20, 120, decay="polynomial", power=2.0, end_value=1e-3),
            optax.join_schedules(
                [optax.linear_schedule(0, 3.2, 20), optax.polynomial_schedule(3.2, 1e-3, 2.0, 100)], [20]
            ),
        ),
        "one-cycle": (
            WarmUpDecay(2.0, 30, 100, decay="one-cycle", init_value=2.0 / 25, end_value=2.0 / 25e4),
            jax.vmap(optax.cosine_onecycle_schedule(100, 2.0, pct_start=0.3, div_factor=25, final_div_factor=1e4)),
        ),
        "constant warm-up": (
            WarmUpDecay(3.2, 20, 120, init_value=0.3, warmup="constant"),
            optax.join_schedules([optax.constant_schedule(0.3), optax.cosine_decay_schedule(3.2, 100)], [20]),
        ),
        "no warm-up": (WarmUpDecay(1.5, 0, 100), optax.cosine_decay_schedule(1.5, 100)),
    }


@pytest.mark.parametrize("name", _pairs())
def test_equals_optax_at_every_step(name: str) -> None:
    ours, theirs = _pairs()[name]
    # optax computes in float32: near a zero the error is relative to the largest value
    expected = np.asarray(theirs(STEPS), np.float64)
    np.testing.assert_allclose(ours(STEPS), expected, rtol=1e-6, atol=1e-6 * expected.max())


@pytest.mark.parametrize("name", _pairs())
def test_a_tensor_gives_the_same_as_a_number(name: str) -> None:
    ours, _ = _pairs()[name]
    compiled = tf.function(ours)
    for step in (0, 1, 19, 20, 60, 119, 120, 500):
        value = compiled(tf.constant(step, tf.int64))
        assert value.dtype == tf.float32
        np.testing.assert_allclose(float(value), float(ours(step)), rtol=1e-6, atol=1e-6)


def test_step_decay_counts_from_the_start_of_the_run() -> None:
    rate = WarmUpDecay(1.0, 5, 40, decay="step", scales=[(10, 0.1), (20, 0.1)])
    np.testing.assert_allclose([rate(t) for t in (5, 9, 10, 19, 20)], [1, 1, 0.1, 0.1, 0.01])
    twice = WarmUpDecay(1.0, 0, 40, decay="step", scales=[(10, 0.1), (10, 0.1)])
    np.testing.assert_allclose([twice(t) for t in (9, 10)], [1, 0.01])


def test_linear_scaling_is_that_of_the_paper() -> None:
    assert schedules.scaled_learning_rate(0.1, 8192, 256) == 3.2
    with pytest.raises(ValueError, match="at least 1"):
        schedules.scaled_learning_rate(0.1, 8192, 0)


def test_square_root_scaling_keeps_the_variance_of_a_step() -> None:
    assert schedules.scaled_learning_rate(0.1, 4096, 256, "sqrt") == pytest.approx(0.4)
    with pytest.raises(ValueError, match="scaling must be one of linear, sqrt, got 'root'"):
        schedules.scaled_learning_rate(0.1, 2, 1, "root")


def test_survives_serialisation() -> None:
    rate = WarmUpDecay(1.0, 5, 40, decay="step", scales=[(10, 0.1)])
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(rate))
    np.testing.assert_array_equal(again(STEPS), rate(STEPS))


def test_refuses_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="warmup_steps must be"):
        WarmUpDecay(1.0, 40, 40)
    with pytest.raises(ValueError, match="decay must be one of"):
        WarmUpDecay(1.0, 0, 40, decay="cosin")

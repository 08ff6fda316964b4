"""The dynamic loss scale as a state machine, and the dtype policies."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.training.optimizers.precision import LossScale, ScaleRule, all_finite, compute_dtype


def _run(scale: LossScale, outcomes: list[bool]) -> list[float]:
    seen = []
    for outcome in outcomes:
        scale.update(tf.constant(outcome))
        seen.append(float(scale.scale))
    return seen


def test_doubles_after_the_interval_and_halves_at_an_overflow() -> None:
    scale = LossScale(ScaleRule(initial=8.0, growth_interval=2))
    assert _run(scale, [True, True, True, False, True, True]) == [8, 16, 16, 8, 8, 16]


def test_an_overflow_restarts_the_count() -> None:
    scale = LossScale(ScaleRule(initial=8.0, growth_interval=3))
    assert _run(scale, [True, True, False, True, True, True]) == [8, 8, 4, 4, 4, 8]


def test_never_goes_below_the_smallest_nor_to_infinity() -> None:
    assert _run(LossScale(ScaleRule(initial=2.0, smallest=1.0)), [False] * 3) == [1, 1, 1]
    assert np.isfinite(_run(LossScale(ScaleRule(initial=2.0**125, growth_interval=1)), [True] * 4)).all()


def test_scaling_and_unscaling_lose_no_bit() -> None:
    scale = LossScale(ScaleRule())
    gradient = tf.constant(np.random.default_rng(0).normal(size=100).astype(np.float32))
    np.testing.assert_array_equal(scale.unscaled([scale.scaled(gradient)])[0].numpy(), gradient.numpy())


def test_only_float16_is_scaled() -> None:
    assert LossScale.for_precision("float16", ScaleRule()).scale.numpy() == 2.0**15
    for precision in ("float32", "bfloat16"):
        scale = LossScale.for_precision(precision, ScaleRule())
        assert _run(scale, [False, True]) == [1.0, 1.0]
        assert float(scale.scaled(tf.constant(3.0))) == 3.0


def test_a_nan_anywhere_is_not_finite() -> None:
    assert not all_finite([tf.ones(3), tf.constant([[1.0, float("nan")]])])
    assert not all_finite([tf.constant(-float("inf"))])
    assert all_finite([tf.ones(3), tf.zeros((2, 2))])


def test_the_policy_is_restored_even_after_an_error() -> None:
    before = keras.config.dtype_policy().name

    def fail() -> None:
        with compute_dtype("float16"):
            assert keras.layers.Dense(1).compute_dtype == "float16"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert keras.config.dtype_policy().name == before


@pytest.mark.parametrize("bad", [{"initial": 0.5}, {"growth_interval": 0}, {"smallest": 0.0}])
def test_refuses_rules_out_of_range(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="loss scale"):
        ScaleRule(**bad)  # type: ignore[arg-type]

"""1-bit Adam: dense Adam until the second moment freezes, and then signs of its steps."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.training.optimizers.adam import Adam
from ringfeed.training.sync.compression.onebit import OneBitAdam
from ringfeed.training.sync.synchronizer import Exchange
from tests.helpers.sync_runs import sync_run

START, BETA_1, BETA_2, EPS, RATE = 3, 0.9, 0.99, 1e-7, 0.1


def test_steps_are_dense_until_the_second_moment_freezes_and_then_signs() -> None:
    variable, reference = (keras.Variable(np.full((4, 3), 2.0, np.float32)) for _ in range(2))
    optimizers = [Adam(RATE, 0.0, BETA_1, BETA_2, EPS, freeze_step=frozen) for frozen in (START, None)]
    for optimizer, target in zip(optimizers, (variable, reference), strict=True):
        optimizer.build([target])
    run = sync_run(optimizer={"name": "adam"}, compression={"method": "onebit", "start_step": START})
    method = OneBitAdam(run, beta_1=BETA_1, eps=EPS)
    method.build([variable], optimizers[0])
    kept = [slot for slot in optimizers[0].variables if "_moment" in slot.name]
    for step in range(START + 1):
        before, weights = np.stack(kept), variable.numpy()
        gradient = tf.random.stateless_normal([4, 3], [step, 1]) * [[1.0, 1e-3, 0.0]]  # one column is never used
        (sent,) = method.reduce(Exchange([gradient]), tf.constant(step, tf.int64)).gradients
        optimizers[0].apply([sent], [variable])
        optimizers[1].apply([gradient], [reference])
        if step < START:
            np.testing.assert_array_equal(variable, reference)
    after = np.stack(kept)
    np.testing.assert_array_equal(after[1], before[1])
    scale = np.sqrt(before[1]) + EPS
    moved = np.abs(after[0] / scale)[:, :2]
    np.testing.assert_allclose(moved, moved[0, 0], rtol=1e-4)  # one magnitude, however small the gradients of an entry
    own, part = (variable.numpy().reshape(-1)[:12].reshape(4, 3) for variable in method.rank_variables)
    exact = BETA_1 * before[0] + (1 - BETA_1) * gradient.numpy()
    np.testing.assert_allclose((after[0] + (own + part) * scale)[:, :2], exact[:, :2], rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(variable.numpy()[:, 2], 2.0)
    step_of = RATE * after[0] / (1 - BETA_1 ** (START + 1)) / (np.sqrt(before[1] / (1 - BETA_2**START)) + EPS)
    np.testing.assert_allclose(weights - step_of, variable, rtol=1e-4)


def test_a_second_moment_freezes_after_a_step_at_least() -> None:
    with pytest.raises(ValueError, match="freeze_step must be at least 1, got 0"):
        Adam(freeze_step=0)

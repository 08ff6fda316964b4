"""1-bit Adam: dense Adam until the second moment freezes, and then signs of its steps."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.training.optimizers.adam import Adam
from ringfeed.training.optimizers.lamb import LAMB
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.sync.compression.onebit import OneBitAdam
from ringfeed.training.sync.synchronizer import Exchange

START, BETA_1, BETA_2, EPS, RATE = 3, 0.9, 0.99, 1e-7, 0.1


@pytest.mark.parametrize("made", [Adam, LAMB])
def test_steps_are_dense_until_the_second_moment_freezes_and_then_signs(made: Any) -> None:
    variable, reference = (keras.Variable(np.full((4, 3), 2.0, np.float32)) for _ in range(2))
    optimizers = [made(RATE, 0.0, BETA_1, BETA_2, EPS, freeze_step=frozen) for frozen in (START, None)]
    for optimizer, target in zip(optimizers, (variable, reference), strict=True):
        optimizer.build([target])
    method = OneBitAdam(SoloRing(), beta_1=BETA_1, eps=EPS, start_step=START)
    method.build([variable], optimizers[0])
    kept = [slot for slot in optimizers[0].variables if "_moment" in slot.name]  # LAMB has both in one variable
    for step in range(START + 1):
        before, weights = np.reshape(np.stack(kept), (2, 4, 3)), variable.numpy()
        gradient = tf.random.stateless_normal([4, 3], [step, 1]) * [[1.0, 1e-3, 0.0]]  # one column is never used
        (sent,) = method.reduce(Exchange([gradient]), tf.constant(step, tf.int64)).gradients
        optimizers[0].apply([sent], [variable])
        optimizers[1].apply([gradient], [reference])
        if step < START:
            np.testing.assert_array_equal(variable, reference)
    after = np.reshape(np.stack(kept), (2, 4, 3))
    np.testing.assert_array_equal(after[1], before[1])
    scale = np.sqrt(before[1]) + EPS
    moved = np.abs(after[0] / scale)[:, :2]
    np.testing.assert_allclose(moved, moved[0, 0], rtol=1e-4)  # one magnitude, however small the gradients of an entry
    own, part = (variable.numpy().reshape(-1)[:12].reshape(4, 3) for variable in method.rank_variables)
    exact = BETA_1 * before[0] + (1 - BETA_1) * gradient.numpy()
    np.testing.assert_allclose((after[0] + (own + part) * scale)[:, :2], exact[:, :2], rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(variable.numpy()[:, 2], 2.0)
    if made is Adam:
        step_of = RATE * after[0] / (1 - BETA_1 ** (START + 1)) / (np.sqrt(before[1] / (1 - BETA_2**START)) + EPS)
        np.testing.assert_allclose(weights - step_of, variable, rtol=1e-4)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_trust_ratio_of_lamb_freezes_with_the_second_moment(decay: float) -> None:
    """Li et al., arXiv 2104.06069, Algorithm 1, in float64, with the corrections of the moments that LAMB has."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(4, 3))
    variable = keras.Variable(w)
    optimizer = LAMB(RATE, decay, BETA_1, BETA_2, EPS, freeze_step=START)
    optimizer.build([variable])
    m = v = unfrozen = np.zeros_like(w)
    average, factor, factors = 0.0, 1.0, []
    for t in range(1, 12):
        g = rng.normal(size=w.shape) * [1.0, 1e-3, 0.0] * (1 if t < 6 else 0.2)
        optimizer.apply([tf.constant(g)], [variable])
        m = BETA_1 * m + (1 - BETA_1) * g
        unfrozen = BETA_2 * unfrozen + (1 - BETA_2) * g**2
        v = unfrozen if t <= START else v
        root = np.sqrt(v / (1 - BETA_2 ** min(t, START))) + EPS
        direction = m / (1 - BETA_1**t) / root
        step = direction + decay * w
        ratio = np.linalg.norm(w) / np.linalg.norm(step)
        if t <= START:
            average = 0.9 * average + 0.1 * ratio
        else:
            greatest = (root / (np.sqrt(unfrozen / (1 - BETA_2**t)) + EPS))[v > 0].max()
            share = min(1.0, np.linalg.norm(direction) / np.linalg.norm(step))
            wanted = np.clip(greatest * share + 1 - share, 0.5, 4.0)
            factor = np.clip(wanted, 0.9 * factor, 1.1 * factor)
            factors.append(factor)
            ratio = average / (1 - 0.9**START) * factor
        w = w - RATE * ratio * step
        np.testing.assert_allclose(variable, w, rtol=1e-5)
    assert max(factors) > 1.2


def test_a_second_moment_freezes_after_a_step_at_least() -> None:
    with pytest.raises(ValueError, match="freeze_step must be at least 1, got 0"):
        Adam(freeze_step=0)

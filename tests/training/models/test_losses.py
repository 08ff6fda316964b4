"""Losses against their papers' formulas in NumPy, and against Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.loss import LossConfig
from ringfeed.training.models.losses import build_loss, cross_entropy
from ringfeed.training.models.target import Target

CLASSES = Target(task="multiclass", classes=("a", "b", "c"))
LOGITS = np.random.default_rng(4).normal(size=(40, 3)).astype(np.float32) * 3
CLASS_ID = np.random.default_rng(5).integers(0, 3, 40).astype(np.int32)


def _loss(**options: Any) -> Any:
    return build_loss(LossConfig(**options), CLASSES)(tf.constant(LOGITS), tf.constant(CLASS_ID)).numpy()


def test_label_smoothing_is_that_of_keras() -> None:
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1, reduction=None)
    np.testing.assert_allclose(_loss(label_smoothing=0.1), keras_loss(np.eye(3)[CLASS_ID], LOGITS), rtol=1e-5)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_focal_loss_is_that_of_the_paper(gamma: float) -> None:
    p = np.exp(LOGITS - LOGITS.max(1, keepdims=True))
    of_class = (p / p.sum(1, keepdims=True))[np.arange(40), CLASS_ID]
    expected = -((1 - of_class) ** gamma) * np.log(of_class)  # arXiv 1708.02002, equation 4
    np.testing.assert_allclose(_loss(focal_gamma=gamma), expected, rtol=2e-4, atol=1e-6)


def test_class_weights_multiply_and_no_option_is_plain_cross_entropy() -> None:
    plain = _loss()
    np.testing.assert_array_equal(plain, cross_entropy(tf.constant(LOGITS), tf.constant(CLASS_ID)))
    factors = np.array([1.0, 5.0, 0.0])[CLASS_ID]
    np.testing.assert_allclose(_loss(class_weights={"b": 5.0, "c": 0.0}), plain * factors, rtol=1e-6)
    with pytest.raises(ConfigError, match=r"loss.class_weights: there is no class 'd'; the classes are: a, b, c"):
        _loss(class_weights={"d": 1.0})


def test_a_sure_and_right_answer_has_a_finite_gradient() -> None:
    logits = tf.Variable([[200.0, 0.0, 0.0]])
    with tf.GradientTape() as tape:
        loss = build_loss(LossConfig(focal_gamma=0.5), CLASSES)(logits, tf.constant([0]))
    assert np.isfinite(tape.gradient(loss, logits).numpy()).all()

"""One training step: the order of its parts, and that an overflow on any rank skips the step on all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.training.models.losses import batch_loss
from ringfeed.training.optimizers.lars import LARS
from ringfeed.training.optimizers.precision import LossScale, ScaleRule, compute_dtype
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.step.gradients import clip_by_global_norm
from ringfeed.training.step.train_step import StepOptions, make_predict_step, make_train_step
from ringfeed.training.sync.synchronizer import EveryStep
from tests.helpers.thread_ring import ThreadRing, on_ranks

INPUTS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
CLASSES = np.array([0, 1, 1, 0, 1, 0], np.int32)
WEIGHT = np.ones(6, np.float32)


def _network(precision: str = "float32") -> Any:
    keras.utils.set_random_seed(1)
    with compute_dtype(precision):
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(4, activation="relu")(inputs)
        return keras.Model(inputs, keras.layers.Dense(2, dtype="float32")(hidden))


def _step(network: Any, ring: Any, scale: LossScale, clip_norm: float | None = None) -> tuple[Any, Any]:
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(network.trainable_variables)
    return make_train_step(network, optimizer, EveryStep(ring), scale, StepOptions(clip_norm=clip_norm)), optimizer


def test_equals_plain_gradient_descent() -> None:
    network, reference = _network(), _network()
    step, _ = _step(network, SoloRing(), LossScale(None))
    before = [v.numpy().copy() for v in reference.trainable_variables]
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(CLASSES, reference(INPUTS), from_logits=True)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, [v.value for v in reference.trainable_variables])
    metrics = step(INPUTS, CLASSES, WEIGHT)
    assert float(metrics.loss) == pytest.approx(float(loss), rel=1e-6)
    assert float(metrics.gradient_norm) == pytest.approx(float(tf.linalg.global_norm(gradients)), rel=1e-5)
    for variable, start, gradient in zip(network.trainable_variables, before, gradients, strict=True):
        np.testing.assert_allclose(variable.numpy(), start - 0.5 * gradient, rtol=1e-5, atol=1e-7)


def test_reduces_unscaled_gradients_before_clipping() -> None:
    """With clipping before the unscaling, the update would be 1024 times too small."""
    plain, scaled = _network(), _network()
    start = [v.numpy().copy() for v in plain.trainable_variables]

    def largest_sent(network: Any, scale: LossScale) -> float:
        def train(ring: ThreadRing) -> list[Any]:
            _step(network, ring, scale, clip_norm=0.01)[0](INPUTS, CLASSES, WEIGHT)
            return ring.sent

        ((_loss, _overflowed, _stopping, *gradients),) = on_ranks(1, train)
        return max(float(np.abs(gradient).max()) for gradient in gradients)

    largest_sent(plain, LossScale(None))
    assert 0.01 < largest_sent(scaled, LossScale(ScaleRule(initial=1024.0))) < 10  # neither scaled nor clipped
    moves = [a.numpy() - b for a, b in zip(plain.trainable_variables, start, strict=True)]
    assert float(tf.linalg.global_norm([m.astype(np.float32) for m in moves])) == pytest.approx(0.5 * 0.01, rel=1e-3)
    for a, b in zip(plain.trainable_variables, scaled.trainable_variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-8)


def test_an_overflow_of_another_rank_skips_the_step_here() -> None:
    def train(ring: ThreadRing) -> None:
        network, scale = _network(), LossScale(ScaleRule(initial=1024.0))
        step, optimizer = _step(network, ring, scale)
        before = [v.numpy().copy() for v in network.trainable_variables]
        metrics = step(INPUTS * (float("inf") if ring.rank else 1.0), CLASSES, WEIGHT)
        assert not bool(metrics.is_finite)
        assert float(scale.scale) == 512.0
        assert int(optimizer.iterations.numpy()) == 0
        for variable, value in zip(network.trainable_variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)

    on_ranks(2, train)


class _Averaging(SoloRing):
    """Many ranks with equal values, averaged as by Horovod: a sum, times a float32."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def allreduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        return [tensor * np.float32(self._ranks) * np.float32(1 / self._ranks) for tensor in tensors]


@pytest.mark.parametrize("ranks", [3, 41, 1023])
def test_any_number_of_ranks_agrees(ranks: int) -> None:
    """In float32, 41 times 1/41 is not 1."""
    step, _ = _step(_network(), _Averaging(ranks), LossScale(None))
    assert bool(step(INPUTS, CLASSES, WEIGHT).is_finite)
    assert not bool(step(INPUTS * float("inf"), CLASSES, WEIGHT).is_finite)


def test_a_skipped_step_changes_no_statistics() -> None:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    network = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.BatchNormalization(momentum=0.9)(inputs)))
    step, _ = _step(network, SoloRing(), LossScale(ScaleRule(initial=1024.0)))
    assert bool(step(INPUTS, CLASSES, WEIGHT).is_finite)
    before = [v.numpy().copy() for v in network.weights]
    assert not bool(step(INPUTS * 1e30, CLASSES, WEIGHT).is_finite)  # their variance is infinite
    for variable, value in zip(network.weights, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_gradients_whose_norm_overflows_are_not_clipped_to_nan() -> None:
    network = _network()
    step, _ = _step(network, SoloRing(), LossScale(None), clip_norm=1.0)
    before = [v.numpy().copy() for v in network.weights]
    assert not bool(step(INPUTS * 1e30, CLASSES, WEIGHT).is_finite)
    for variable, value in zip(network.weights, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_an_overflow_in_float16_lowers_the_scale() -> None:
    network = _network("float16")
    scale = LossScale(ScaleRule(initial=2.0**24))
    step, optimizer = _step(network, SoloRing(), scale)
    outcomes = [bool(step(INPUTS, CLASSES, WEIGHT).is_finite) for _ in range(20)]
    assert not outcomes[0]
    assert outcomes[-1]
    assert int(optimizer.iterations.numpy()) == sum(outcomes)
    assert all(np.isfinite(v.numpy()).all() for v in network.trainable_variables)


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_learns_in_every_precision(precision: str) -> None:
    network = _network(precision)
    step, _ = _step(network, SoloRing(), LossScale.for_precision(precision, ScaleRule()))
    losses = [float(step(INPUTS, CLASSES, WEIGHT).loss) for _ in range(40)]
    assert losses[-1] < 0.6 * losses[0]
    assert all(v.dtype == "float32" for v in network.trainable_variables)
    assert make_predict_step(network)(INPUTS).dtype == tf.float32


def test_weights_and_the_networks_own_losses_count() -> None:
    network = _network()
    half = tf.constant([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    expected = float(batch_loss(network, INPUTS[:3], tf.constant(CLASSES[:3]), tf.ones(3))) / 2
    assert float(batch_loss(network, INPUTS, tf.constant(CLASSES), half)) == pytest.approx(expected, rel=1e-6)
    inputs = keras.Input((3,))
    penalised = keras.Model(inputs, keras.layers.Dense(2, kernel_regularizer="l2")(inputs))
    bare = float(batch_loss(penalised, INPUTS, tf.constant(CLASSES), tf.zeros(6)))
    assert bare == pytest.approx(0.01 * float(np.sum(penalised.weights[0].numpy() ** 2)), rel=1e-5)


def test_clipping_scales_all_gradients_together() -> None:
    clipped, norm = clip_by_global_norm([tf.constant([3.0]), tf.constant([[4.0]])], 1.0)
    assert float(norm) == 5.0
    np.testing.assert_allclose([float(g[0] if g.shape == (1,) else g[0, 0]) for g in clipped], [0.6, 0.8], rtol=1e-6)
    same, _ = clip_by_global_norm([tf.constant([3.0])], None)
    assert same[0].numpy().tolist() == [3.0]


def test_layers_of_other_dtypes_are_clipped_with_all_others() -> None:
    gradients = [tf.constant([300.0], tf.float16), tf.constant([400.0]), tf.constant([0.0], tf.bfloat16)]
    clipped, norm = clip_by_global_norm(gradients, 5.0)
    assert float(norm) == 500.0  # whose square is beyond float16
    assert [g.dtype for g in clipped] == [g.dtype for g in gradients]
    np.testing.assert_allclose([float(g[0]) for g in clipped], [3.0, 4.0, 0.0], rtol=1e-3)
    assert float(clip_by_global_norm(gradients, None)[1]) == 500.0


def test_a_variable_that_the_loss_does_not_depend_on_does_not_move() -> None:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    logits = keras.layers.Dense(2)(inputs)
    network = keras.Model(inputs, [logits, keras.layers.Dense(2)(inputs)])
    first = keras.Model(inputs, logits)
    first_only = [v.path for v in first.trainable_variables]

    class First(keras.Model):  # type: ignore[misc]  # Keras ships no types
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.inner(inputs, training=training)[0]

    model = First()
    model(INPUTS)
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9, weight_decay=0.1)
    optimizer.build(model.trainable_variables)
    before = {v.path: v.numpy().copy() for v in model.trainable_variables}
    make_train_step(model, optimizer, EveryStep(SoloRing()), LossScale(None))(INPUTS, CLASSES, WEIGHT)
    moved = {v.path for v in model.trainable_variables if not np.array_equal(v.numpy(), before[v.path])}
    assert len(moved) == len(first_only) == 2


@pytest.mark.parametrize("parts", [2, 4, 6])  # 4 parts of 6 samples differ in size
def test_micro_batches_equal_one_batch_to_rounding(parts: int) -> None:
    moved = []
    for accumulate in (1, parts):
        network = _network()
        optimizer = LARS(0.5, weight_decay=0.1, trust_coefficient=0.1)
        optimizer.build(network.trainable_variables)
        step = make_train_step(
            network,
            optimizer,
            EveryStep(SoloRing()),
            LossScale(None),
            StepOptions(clip_norm=0.1, accumulate=accumulate),
        )
        losses = [float(step(INPUTS, CLASSES, tf.range(6.0)).loss) for _ in range(3)]
        assert int(optimizer.iterations) == 3
        moved.append([losses, *[v.numpy() for v in network.trainable_variables]])
    for whole, sums in zip(*moved, strict=True):
        np.testing.assert_allclose(sums, whole, rtol=1e-5, atol=1e-6)


def test_a_rank_that_rests_changes_nothing_but_the_number_of_the_step() -> None:
    """Its loss does not count; without samples of weight 0 the step is a plain one."""
    reference = _network()
    plain, _ = _step(reference, SoloRing(), LossScale(None))
    loss = float(plain(INPUTS, CLASSES, WEIGHT).loss)

    def train(ring: ThreadRing) -> None:
        network, optimizer = _network(), keras.optimizers.SGD(0.5, momentum=0.9)
        optimizer.build(network.trainable_variables)
        step = make_train_step(network, optimizer, EveryStep(ring), LossScale(None), StepOptions(by_samples=True))
        assert float(step(INPUTS, CLASSES, WEIGHT).loss) == loss
        for own, other in zip(network.weights, reference.weights, strict=True):
            np.testing.assert_array_equal(own, other)
        before = [v.numpy() for v in [*network.weights, *optimizer.variables[1:]]]
        assert bool(step(INPUTS, CLASSES, tf.fill([6], float(ring.rank))).is_finite)
        are_same = [
            np.array_equal(value, variable)
            for value, variable in zip(before, [*network.weights, *optimizer.variables[1:]], strict=True)
        ]
        assert all(are_same) == (ring.rank == 0)
        assert int(optimizer.iterations) == 2

    on_ranks(2, train)


def test_a_rank_at_rest_adds_no_regularization_to_the_loss_of_the_others() -> None:
    def train(ring: ThreadRing) -> None:
        network = _network()
        network.layers[-1].kernel.regularizer = keras.regularizers.L2(0.1)
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(network.trainable_variables)
        step = make_train_step(network, optimizer, EveryStep(ring), LossScale(None), StepOptions(by_samples=True))
        assert float(batch_loss(network, INPUTS, tf.constant(CLASSES), tf.zeros(6))) > 0
        expected = float(batch_loss(network, INPUTS, tf.constant(CLASSES), WEIGHT))
        assert float(step(INPUTS, CLASSES, tf.fill([6], float(ring.rank))).loss) == pytest.approx(expected, rel=1e-6)

    on_ranks(2, train)

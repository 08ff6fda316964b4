"""The compiled training step, as small functions over a plain `tf.GradientTape`.

The order is fixed: scale the loss -> backward -> unscale -> synchronise -> finite check -> clip -> apply. Clipping
before the reduction or the unscaling would clip different numbers on each rank (horovod#1692, #1347).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.models.losses import Loss, batch_loss, cross_entropy
from ringfeed.training.optimizers.keras_doors import Tensor, assign_all
from ringfeed.training.optimizers.precision import LossScale, all_finite
from ringfeed.training.records.clock import Clock, timed
from ringfeed.training.ring.replicas import Replicas
from ringfeed.training.sync.moving import MovingAverage
from ringfeed.training.sync.synchronizer import Exchange, Synchronizer

from .gradients import accumulated, check_connected, clip_by_global_norm, filled

TrainStep = Callable[..., "StepMetrics"]


class StepMetrics(NamedTuple):
    """Scalars of one step, the same on all ranks."""

    loss: Tensor  # float32, the mean over the global batch, before the update
    is_finite: Tensor  # bool; False if the step was skipped
    gradient_norm: Tensor  # float32, global norm before clipping
    # float64, the monotonic times at which this rank's gradients were ready, and were reduced; empty without a clock
    stamps: Tensor
    is_stopping: Tensor  # bool; whether any rank was asked to stop when it began the step
    # bool; whether the gradients of all ranks were finite before the exchange; without compression: after it
    is_sent_finite: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    clip_norm: float | None = None
    loss_of: Loss = cross_entropy
    # Parts of the local batch that pass through the network one after the other; reduction, clipping and update are of
    # their sum
    accumulate: int = 1
    # Whether the loss is the mean over ranks by their samples, and a rank whose samples all have weight 0 takes part in
    # the step and changes only its number
    by_samples: bool = False
    # Whether the step is compiled once for local batches of any size; else anew when the size first changes
    any_batch: bool = False
    jit_compile: bool = False  # whether XLA compiles the forward and backward pass, but not what ranks exchange


def make_train_step(
    network: Any,
    optimizer: Any,
    synchronizer: Synchronizer,
    scale: LossScale,
    options: StepOptions | None = None,
    *,
    read_clock: Clock | None = None,
    average: MovingAverage | None = None,
    replicas: Replicas | None = None,
) -> TrainStep:
    """Compile the training step of a network whose optimizer and synchronizer are built.

    All ranks agree on whether a step counts without a collective of its own: each rank's flag, 0 or 1 for an overflow,
    travels with the gradients, and their mean is exactly 0 only if all are 0. (A mean of ones need not be exactly 1:
    41 times the 1/41 of float32 is less.) The result is checked, too, by its norm, which has to be finite in float32:
    a sum of finite numbers may still overflow. Where the result is the plain mean, an overflow of any rank is in it,
    and gradients need no check before. A step that does not count changes nothing but the loss scale. In the same way
    they agree on whether to stop.

    It is a function of `(inputs, target, weight)` of the local batch, and of 1.0 if this rank was asked to stop; every
    rank must call it equally often. `average` takes in the new weights; `replicas` each take a part of the batch.
    """
    options = options or StepOptions()
    step = _Step(network, optimizer, synchronizer, scale, options, read_clock, average)
    whole = step if replicas is None else replicas.spread(step)
    compiled: Any = tf.function(whole, reduce_retracing=True, autograph=False)
    return _for_any_batch(compiled) if options.any_batch else _without_dispatch(compiled)


class _Step:
    """The step before it is compiled: see `make_train_step`."""

    def __init__(
        self,
        network: Any,
        optimizer: Any,
        synchronizer: Synchronizer,
        scale: LossScale,
        options: StepOptions,
        read_clock: Clock | None,
        average: MovingAverage | None,
    ) -> None:
        self.network, self.optimizer, self.synchronizer, self.scale = network, optimizer, synchronizer, scale
        self.options, self.read_clock, self.average = options, read_clock, average
        self._trained = list(network.trainable_variables)
        self._variables = [variable.value for variable in self._trained]
        # What a step that does not count restores: statistics, as of batch normalisation, and the synchronizer's state
        statistics = [v.value for v in network.non_trainable_variables if "float" in str(v.dtype)]
        self._state = [*statistics, *synchronizer.step_variables]
        self._gradients: Any = self._backward
        if options.jit_compile:
            self._gradients = tf.function(self._backward, jit_compile=True, reduce_retracing=True, autograph=False)

    def _backward(self, inputs: Any, target: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """The local loss, and the gradients of the scaled loss; None for variables that it does not depend on."""
        with tf.GradientTape() as tape:
            loss = batch_loss(self.network, inputs, target, weight, self.options.loss_of)
            scaled = self.scale.scaled(loss)
        return loss, tape.gradient(scaled, self._variables)

    def __call__(self, inputs: Any, target: Tensor, weight: Tensor, stopping: Tensor | float = 0.0) -> StepMetrics:
        before = [tf.identity(variable) for variable in self._state]
        if self.options.accumulate == 1:
            local_loss, scaled = self._gradients(inputs, target, weight)
        else:
            batch = inputs, target, weight
            local_loss, scaled = accumulated(self._gradients, self.options.accumulate, batch, self._variables)
        check_connected(scaled)
        gradients = self.scale.unscaled(filled(scaled, self._variables))
        checked = self._state if self.synchronizer.is_plain_mean else [*gradients, *self._state]
        overflowed = 1.0 - tf.cast(all_finite(checked), tf.float32)
        samples = self._samples(weight)
        loss = local_loss if samples is None else local_loss * samples
        stopping = tf.convert_to_tensor(stopping, tf.float32)
        sent = Exchange(gradients=gradients, overflowed=overflowed, loss=loss, stopping=stopping, samples=samples)
        means, stamps = self._exchanged(sent)
        gradients, norm = clip_by_global_norm(means.gradients, self.options.clip_norm)
        was_sent_finite = tf.equal(means.overflowed, 0.0)
        is_finite = tf.logical_and(was_sent_finite, tf.math.is_finite(norm))
        trains = is_finite if samples is None else tf.logical_and(is_finite, samples > 0)
        is_connected = [gradient is not None for gradient in scaled]
        tf.cond(trains, lambda: self._apply(gradients, is_connected), lambda: self._restore(before))
        if samples is not None:
            self.optimizer.iterations.assign_add(tf.cast(tf.logical_and(is_finite, samples == 0), tf.int64))
        self.scale.update(is_finite)
        loss = means.loss if means.samples is None else means.loss / means.samples
        return StepMetrics(loss, is_finite, norm, stamps, means.stopping > 0.0, was_sent_finite)

    def _samples(self, weight: Tensor) -> Tensor | None:
        """The samples of the local batch, by which ranks are weighted; None: all count alike."""
        if not self.options.by_samples:
            return None
        return tf.where(tf.reduce_any(weight > 0), tf.cast(tf.shape(weight)[0], tf.float32), 0.0)

    def _exchanged(self, sent: Exchange) -> tuple[Exchange, Tensor]:
        """What ranks agree on, and the time stamps; a clock holds back the first tensor, which the update needs."""

        def reduce(tensors: Sequence[Tensor]) -> list[Tensor]:
            reduced: Any = self.synchronizer.reduce(sent.received(tensors), self.optimizer.iterations.value)
            if not isinstance(reduced, Exchange):
                name = f"{type(self.synchronizer).__name__}.reduce"
                raise ConfigError(f"{name} must return an Exchange, such as sent.received(...), got {reduced!r:.80}")
            return reduced.tensors

        tensors, stamps = timed(reduce, sent.tensors, self.read_clock)
        return sent.received(tensors), stamps

    def _apply(self, gradients: Sequence[Tensor], is_connected: Sequence[bool]) -> Tensor:
        pairs = zip(gradients, self._trained, strict=True)
        self.optimizer.apply(*zip(*compress(pairs, is_connected), strict=True))
        if self.average is not None:
            self.average.update(self.optimizer.iterations.value)
        return tf.constant(True)

    def _restore(self, before: Sequence[Tensor]) -> Tensor:
        assign_all(self._state, before)
        return tf.constant(False)


def _without_dispatch(step: Any) -> TrainStep:
    """Call a `tf.function` past its dispatch, which takes up to a fifth of a small step, while batches are alike."""
    kind: Any = None
    compiled: Any = None

    def call(inputs: Any, target: Tensor, weight: Tensor, stopping: Any = 0.0) -> StepMetrics:
        nonlocal kind, compiled
        given = inputs, target, weight, tf.convert_to_tensor(stopping, tf.float32)
        tensors = [*(inputs.values() if type(inputs) is dict else [inputs]), target, weight]
        if all(isinstance(tensor, tf.Tensor) for tensor in tensors):
            now = [*(inputs if type(inputs) is dict else ()), *((tensor.shape, tensor.dtype) for tensor in tensors)]
            if now != kind:
                kind, compiled = now, step.get_concrete_function(*given)
            metrics: StepMetrics = compiled(*given)
        else:  # ragged ones, or nested
            metrics = step(*given)
        return metrics

    return call


def _for_any_batch(step: Any) -> TrainStep:
    def any_size(tensor: Any) -> Any:
        spec = tf.type_spec_from_value(tensor)
        shape = [None, *spec.shape[1:]]
        if isinstance(tensor, tf.RaggedTensor):
            return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
        return tf.TensorSpec(shape, spec.dtype)

    compiled: list[Any] = []

    def call(inputs: Any, target: Tensor, weight: Tensor, stopping: Any = 0.0) -> StepMetrics:
        batch = inputs, target, weight
        if not compiled:
            specs = tf.nest.map_structure(any_size, batch)
            compiled.append(step.get_concrete_function(*specs, tf.TensorSpec([], tf.float32)))
        metrics: StepMetrics = compiled[0](*batch, tf.convert_to_tensor(stopping, tf.float32))
        return metrics

    return call


def make_predict_step(network: Any) -> Callable[[Any], Tensor]:
    """Compile the inference step: from the inputs of a batch to logits, float32 [batch, classes].

    Predictions of a regression may be float64 [batch, 1].
    """

    @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def predict(inputs: Any) -> Tensor:
        outputs = network(inputs, training=False)
        return outputs if outputs.dtype == tf.float64 else tf.cast(outputs, tf.float32)

    step: Callable[[Any], Tensor] = predict
    return step

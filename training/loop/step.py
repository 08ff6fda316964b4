"""The compiled training step, as small functions over a plain `tf.GradientTape`.

The order is fixed: scale the loss -> backward -> unscale -> synchronise -> finite check -> clip -> apply. Clipping
before the reduction or the unscaling would clip different numbers on each rank (horovod#1692, #1347).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.averaging.moving import MovingAverage
from ringfeed.training.models.losses import Loss, batch_loss, cross_entropy, wide_outputs
from ringfeed.training.optimizers.precision import LossScale, all_finite
from ringfeed.training.records.clock import Clock, timed
from ringfeed.training.ring.replicas import Replicas
from ringfeed.training.ring.ring import dense
from ringfeed.training.ring.synchronizer import EveryStep, Synchronizer

__all__ = [
    "StepMetrics",
    "TrainStep",
    "check_connected",
    "clip_by_global_norm",
    "make_predict_step",
    "make_train_step",
]

Tensor = Any
TrainStep = Callable[..., "StepMetrics"]


class StepMetrics(NamedTuple):
    """Scalars of one step, the same on all ranks.

    Attributes:
        loss: float32, the mean over the global batch, before the update.
        is_finite: bool; False if the step was skipped.
        gradient_norm: float32, global norm before clipping.
        stamps: float64, the monotonic times at which the gradients of this rank were ready, and were reduced; empty
            without a clock.
        is_stopping: bool; whether any rank was asked to stop when it began the step.
        is_sent_finite: bool; whether the gradients were finite on all ranks before they were exchanged. Without
            compression they are looked at only afterwards.
    """

    loss: Tensor
    is_finite: Tensor
    gradient_norm: Tensor
    stamps: Tensor
    is_stopping: Tensor
    is_sent_finite: Tensor


def backward(
    network: Any,
    variables: Sequence[Any],
    scale: LossScale,
    inputs: Any,
    target: Tensor,
    weight: Tensor,
    loss_of: Loss = cross_entropy,
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the local loss, and the gradients of the scaled loss; None for variables that it does not depend on."""
    with tf.GradientTape() as tape:
        loss = batch_loss(network, inputs, target, weight, loss_of)
        scaled = scale.scaled(loss)
    return loss, tape.gradient(scaled, variables)


def check_connected(gradients: Sequence[Tensor | None]) -> None:
    """Refuse a network that cannot learn.

    Raises:
        TrainingError: the loss depends on no variable.
    """
    if all(gradient is None for gradient in gradients):
        raise TrainingError(
            "the loss has no gradient for any variable of the network: leave out what stops gradients between its "
            "variables and its outputs, such as tf.stop_gradient, rounding, argmax, or a cast to integers"
        )


def accumulated(
    one: Callable[..., tuple[Tensor, list[Tensor | None]]], count: int, batch: Any, variables: Sequence[Any]
) -> tuple[Tensor, list[Tensor | None]]:
    """Return loss and gradients of a batch, one of `count` micro-batches after the other, whose memory is free in turn.

    Micro-batch sizes differ by at most one; each is weighted by its size. Batch normalisation sees each alone.

    Args:
        one: `backward`, from the parts of a micro-batch.
        count: number of micro-batches; a batch of fewer samples has as many as samples.
        batch: `(inputs, target, weight)`.
        variables: those of the gradients.
    """
    size = tf.shape(batch[1])[0]
    count = tf.minimum(count, size)

    def part(index: Any) -> tuple[Tensor, list[Tensor | None]]:
        start, stop = index * size // count, (index + 1) * size // count
        loss, gradients = one(*tf.nest.map_structure(lambda tensor: tensor[start:stop], batch))
        share = tf.cast((stop - start) / size, tf.float32)
        return loss * share, [None if g is None else dense(g) * tf.cast(share, g.dtype) for g in gradients]

    def add(index: Tensor, loss: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
        more, gradients = part(index)
        return index + 1, loss + more, *(a + b for a, b in zip(sums, filled(gradients, variables), strict=True))

    loss, first = part(0)
    start = [tf.constant(1), loss, *filled(first, variables)]
    _, loss, *sums = tf.while_loop(lambda index, *_: index < count, add, start, parallel_iterations=1)
    return loss, [None if g is None else total for g, total in zip(first, sums, strict=True)]


def filled(gradients: Sequence[Tensor | None], variables: Sequence[Any]) -> list[Tensor]:
    """Return dense gradients, zeros in place of None: ranks exchange one for each variable."""
    return [
        tf.zeros(variable.shape, variable.dtype) if gradient is None else dense(gradient)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def clip_by_global_norm(gradients: Sequence[Tensor], clip_norm: float | None) -> tuple[list[Tensor], Tensor]:
    """Scale gradients down together to a global norm of at most `clip_norm`; also return their norm before, float32.

    Gradients may differ in dtype, as layers' variables may. Pascanu et al., arXiv 1211.5063, Algorithm 1.
    """
    wide = [tf.cast(gradient, tf.float32) for gradient in gradients]
    norm = tf.linalg.global_norm(wide)
    if clip_norm is None:
        return list(gradients), norm
    clipped, _ = tf.clip_by_global_norm(wide, clip_norm, use_norm=norm)
    return [tf.cast(new, old.dtype) for new, old in zip(clipped, gradients, strict=True)], norm


def make_train_step(
    network: Any,
    optimizer: Any,
    synchronizer: Synchronizer,
    scale: LossScale,
    clip_norm: float | None,
    read_clock: Clock | None = None,
    *,
    loss_of: Loss = cross_entropy,
    accumulate: int = 1,
    by_samples: bool = False,
    any_batch: bool = False,
    average: MovingAverage | None = None,
    jit_compile: bool = False,
    replicas: Replicas | None = None,
) -> TrainStep:
    """Compile the training step of a network whose optimizer and synchronizer are built.

    With `read_clock`, the metrics of a step have time stamps. With `accumulate`, the local batch passes through the
    network in as many parts; reduction, clipping and update are of their sum. With `any_batch` it is compiled once for
    local batches of any size; else anew when the size first changes. An `average` takes in the new weights.
    With `jit_compile` XLA compiles the forward and backward pass, but not what ranks exchange.

    All ranks agree on whether a step counts without a collective of its own: each rank's flag, 0 or 1 for an overflow,
    travels with the gradients, and their mean is exactly 0 only if all are 0. (A mean of ones need not be exactly 1:
    41 times the 1/41 of float32 is less.) The result is checked, too, by its norm, which has to be finite in float32:
    a sum of finite numbers may still overflow. Where the result is the plain mean, an overflow of any rank is in it,
    and gradients need no check before. A step that does not count changes nothing but the loss scale. In the same way
    they agree on whether to stop.
    With `by_samples`, the loss is the mean over ranks by their samples, and a rank whose samples all have weight 0
    takes part in the step and changes only its number. With `replicas`, each does the step of its part of the batch.

    Returns:
        A function of `(inputs, target, weight)` of the local batch, and of 1.0 if this rank was asked to stop; every
        rank must call it equally often.
    """
    trained = network.trainable_variables
    variables = [variable.value for variable in trained]
    state = [v.value for v in network.non_trainable_variables if "float" in str(v.dtype)]  # as of batch normalisation
    state += synchronizer.step_variables
    is_plain_mean = type(synchronizer) is EveryStep
    go_on = tf.constant(0.0)

    def one(inputs: Any, target: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        return backward(network, variables, scale, inputs, target, weight, loss_of)

    one = tf.function(one, jit_compile=True, reduce_retracing=True, autograph=False) if jit_compile else one

    def apply(gradients: Sequence[Tensor], is_connected: Sequence[bool]) -> Tensor:
        pairs = [pair for pair, used in zip(zip(gradients, trained, strict=True), is_connected, strict=True) if used]
        optimizer.apply(*zip(*pairs, strict=True))
        if average is not None:
            average.update(optimizer.iterations.value)
        return tf.constant(True)

    def restore(before: Sequence[Tensor]) -> Tensor:
        for variable, old in zip(state, before, strict=True):
            variable.assign(old)
        return tf.constant(False)

    def reduce(tensors: Sequence[Tensor]) -> list[Tensor]:
        overflowed, loss, stopping, samples, *gradients = tensors
        loss = loss * samples if by_samples else loss
        sent = [loss, overflowed, stopping, *([samples] if by_samples else [])]
        reduced, scalars = synchronizer.reduce(gradients, sent, optimizer.iterations.value)
        loss, overflowed, stopping = scalars[:3]
        loss = loss / scalars[3] if by_samples else loss
        return [overflowed, loss, stopping, samples, *reduced]

    def train_step(inputs: Any, target: Tensor, weight: Tensor, stopping: Tensor = go_on) -> StepMetrics:
        before = [tf.identity(variable) for variable in state]
        if accumulate == 1:
            local_loss, scaled = one(inputs, target, weight)
        else:
            local_loss, scaled = accumulated(one, accumulate, (inputs, target, weight), variables)
        check_connected(scaled)
        gradients = scale.unscaled(filled(scaled, variables))
        overflowed = 1.0 - tf.cast(all_finite(state if is_plain_mean else [*gradients, *state]), tf.float32)
        samples = tf.where(tf.reduce_any(weight > 0), tf.cast(tf.shape(weight)[0], tf.float32), 0.0)
        sent = [overflowed, local_loss, stopping, samples, *gradients]  # the update waits for the first
        (any_overflowed, loss, any_stopping, _, *gradients), stamps = timed(reduce, sent, read_clock)
        gradients, norm = clip_by_global_norm(gradients, clip_norm)
        is_finite = tf.logical_and(tf.equal(any_overflowed, 0.0), tf.math.is_finite(norm))
        is_connected = [gradient is not None for gradient in scaled]
        is_applied = tf.logical_and(is_finite, samples > 0) if by_samples else is_finite
        tf.cond(is_applied, lambda: apply(gradients, is_connected), lambda: restore(before))
        if by_samples:
            optimizer.iterations.assign_add(tf.cast(tf.logical_and(is_finite, samples == 0), tf.int64))
        scale.update(is_finite)
        return StepMetrics(loss, is_finite, norm, stamps, any_stopping > 0.0, tf.equal(any_overflowed, 0.0))

    whole = train_step if replicas is None else replicas.spread(train_step)
    compiled: Any = tf.function(whole, reduce_retracing=True, autograph=False)
    return _for_any_batch(compiled) if any_batch else _without_dispatch(compiled)


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
        return wide_outputs(network(inputs, training=False))

    step: Callable[[Any], Tensor] = predict
    return step

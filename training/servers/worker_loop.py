"""The loop that a worker runs, traced by the chief: read weights and a batch, and update the servers' variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.models.losses import Loss, batch_loss
from ringfeed.training.optimizers.keras_doors import Tensor
from ringfeed.training.optimizers.precision import all_finite
from ringfeed.training.step.gradients import check_connected, clip_by_global_norm

from .placement import finished
from .task import DONE_TOKEN, NEXT_TOKEN, batch_spec
from .updates import Updates


def make_worker_loop(
    network: Any,
    updates: Updates,
    batches: Any,
    address: str,
    version: Any,
    *,
    clip_norm: float | None,
    loss_of: Loss,
    weight_scale: float,
) -> Any:
    """Trace the loop, which makes updates of a network on servers as long as the board at the address gives it steps.

    Elements of `batches` are as the workers have them. The variable `version` counts the updates of all workers.
    """
    spec = batch_spec(batches)
    update = _update(network, updates, version, clip_norm=clip_norm, loss_of=loss_of, weight_scale=weight_scale)

    def updated(number: Tensor, flat: Sequence[Tensor]) -> Tensor:
        for tensor, one in zip(flat, spec, strict=True):
            tensor.set_shape(one.shape)
        return update(number, *tf.nest.pack_sequence_as(batches.element_spec, flat, expand_composites=True))

    def body(_: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        is_step, number, *flat = tf.raw_ops.PyFunc(
            input=[tf.constant(address)], token=NEXT_TOKEN, Tout=[tf.bool, tf.int64, *(one.dtype for one in spec)]
        )
        is_step.set_shape([])
        number.set_shape([])
        go_on = tf.cond(is_step, lambda: updated(number, flat), lambda: tf.constant(False))
        return go_on, tf.maximum(last, number)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def loop() -> Tensor:
        start = [tf.constant(True), tf.constant(0, tf.int64)]
        (go_on, last), after = finished(lambda: tf.while_loop(lambda go, _: go, body, start, parallel_iterations=1))
        with after:
            updates.end(tf.identity(last))
        return go_on

    return loop.get_concrete_function()


def _update(
    network: Any, updates: Updates, version: Any, *, clip_norm: float | None, loss_of: Loss, weight_scale: float
) -> Callable[..., Tensor]:
    """The function of an update's number and a batch that makes the update, and tells the board of it."""
    variables = [variable.value for variable in network.trainable_variables]

    def update(number: Tensor, inputs: Any, target: Tensor, weight: Tensor) -> Tensor:
        seen = version.read_value()
        with tf.control_dependencies([seen]):
            with tf.GradientTape() as tape:
                loss = batch_loss(network, inputs, target, weight * weight_scale, loss_of)
            gradients, norm = _clipped(tape.gradient(loss, variables), clip_norm)
            is_finite = all_finite([loss, norm])

        def apply() -> Tensor:
            staleness = version.read_value() - seen
            with tf.control_dependencies([staleness]):  # before this update counts, too
                sent_share, after = finished(lambda: updates.send(number, gradients))
            with after:
                return _reported(loss, norm, staleness, tf.identity(sent_share))

        def refuse() -> Tensor:
            return _reported(loss, norm, tf.constant(0, tf.int64), tf.constant(0.0))

        return tf.cond(is_finite, apply, refuse)

    return update


def _clipped(found: Sequence[Any], clip_norm: float | None) -> tuple[list[Any], Tensor]:
    """Return gradients, clipped together, and their norm; None stays where the loss depends on no variable."""
    check_connected(found)
    gradients = [_summed_rows(gradient) for gradient in found]
    used = [place for place, gradient in enumerate(gradients) if gradient is not None]
    clipped, norm = clip_by_global_norm([gradients[place] for place in used], clip_norm)
    if clip_norm is not None:
        for place, gradient in zip(used, clipped, strict=True):
            gradients[place] = gradient
    return gradients, norm


def _summed_rows(gradient: Any) -> Any:
    """Let a gradient of rows have each row once, as its norm and updates of rows need it; others stay as they are."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _reported(loss: Tensor, norm: Tensor, staleness: Tensor, sent_share: Tensor) -> Tensor:
    (is_known,) = tf.raw_ops.PyFunc(input=[loss, norm, staleness, sent_share], token=DONE_TOKEN, Tout=[tf.bool])
    is_known.set_shape([])
    return is_known

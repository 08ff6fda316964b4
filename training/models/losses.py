"""Losses of a batch, in float32 whatever dtype the layers compute in; errors of a regression first in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.config.class_names import class_number
from ringfeed.training.config.loss import LossConfig
from ringfeed.training.config.own_code import import_own, made_by_class, own_code
from ringfeed.training.optimizers.keras_doors import Tensor

from .target import Target

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs [batch, outputs] and targets [batch, ...], as of `Target.of`, to a loss per sample, float32 [batch]."""


def cross_entropy(logits: Tensor, class_id: Tensor) -> Tensor:
    """Return the cross entropy per sample, float32 [batch], of logits [batch, classes] and class ids, int32 [batch].

    Instead of class ids there may be labels that are mixed, float32 [batch, classes].

    >>> round(float(cross_entropy(tf.constant([[0.0, 0.0]]), tf.constant([1]))[0]), 6)  # log 2
    0.693147
    """
    logits = tf.cast(logits, tf.float32)
    if class_id.shape.rank == 2:
        return tf.nn.softmax_cross_entropy_with_logits(class_id, logits)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(class_id, logits)


def build_loss(config: LossConfig, target: Target) -> Loss:
    """Return the loss of a configuration.

    For class probabilities p and the smoothed label q (Szegedy et al., arXiv 1512.00567, section 7), it is
    ``w * sum(-q * (1 - p) ** gamma * log(p))``; with gamma the focal loss of Lin et al., arXiv 1708.02002, equation 4.
    Of a binary task p are the probabilities of both classes, by the sigmoid of the only logit; of many labels it is the
    mean over labels of such losses, each with its label's w.

    Of a regression it is the square of the error z in standard deviations of the target; with a delta, Huber's
    ``z ** 2 / 2`` up to it, and ``delta * (|z| - delta / 2)`` beyond (Annals of Mathematical Statistics 35, 1964).

    Raises:
        ConfigError: a class with a weight, or a function, does not exist.

    >>> loss = build_loss(
    ...     LossConfig(label_smoothing=0.2, class_weights={"b": 3.0}), Target(task="multiclass", classes=("a", "b"))
    ... )
    >>> [round(float(x), 4) for x in loss(tf.constant([[2.0, 0.0], [2.0, 0.0]]), tf.constant([0, 1]))]
    [0.3269, 5.7808]
    >>> loss = build_loss(LossConfig(), Target(task="regression", std=5.0))
    >>> float(loss(tf.constant([[20.0]]), tf.constant([30.0]))[0])
    4.0
    """
    if config.name is not None:
        return user_loss(config, target)
    if target.task == "regression":
        return _regression_loss(config.huber_delta, target.std)
    classes = target.classes
    given = [1.0] * len(classes)
    for name, weight in (config.class_weights or {}).items():
        given[class_number("loss.class_weights", name, classes)] = weight
    weights = tf.constant(given, tf.float32)
    if target.task == "multiclass":
        return cross_entropy if config == LossConfig() else _softmax_loss(config, weights)
    if target.task == "multilabel":
        of_labels = _sigmoid_loss(config)
        return lambda logits, truth: tf.reduce_mean(weights * of_labels(logits, truth), -1)
    of_logit = _sigmoid_loss(config)
    negative, positive = weights[0], weights[1]
    return lambda logits, truth: of_logit(logits[:, 0], truth) * (truth * positive + (1 - truth) * negative)


def _softmax_loss(config: LossConfig, weights: Tensor) -> Loss:
    smoothing, gamma, count = config.label_smoothing, config.focal_gamma, len(weights)

    def loss(logits: Tensor, class_id: Tensor) -> Tensor:
        if class_id.shape.rank == 2:  # the mean of the classes' losses by their shares in the mix
            log_p = tf.nn.log_softmax(tf.cast(logits, tf.float32))
            shares = class_id * weights
            label = shares * (1 - smoothing) + tf.reduce_sum(shares, -1, keepdims=True) * smoothing / count
            return -tf.reduce_sum(label * _focus(log_p, gamma) * log_p, -1)
        if smoothing or gamma:
            log_p = tf.nn.log_softmax(tf.cast(logits, tf.float32))
            label = tf.one_hot(class_id, count, 1 - smoothing + smoothing / count, smoothing / count)
            losses = -tf.reduce_sum(label * _focus(log_p, gamma) * log_p, -1)
        else:
            losses = cross_entropy(logits, class_id)
        return losses * tf.gather(weights, class_id)

    return loss


def _sigmoid_loss(config: LossConfig) -> Loss:
    """Return the loss of each logit, of the shape of the logits, given targets in [0, 1]."""
    smoothing, gamma = config.label_smoothing, config.focal_gamma

    def loss(logits: Tensor, truth: Tensor) -> Tensor:
        logits = tf.cast(logits, tf.float32)
        label = truth * (1 - smoothing) + smoothing / 2
        if not gamma:
            return tf.nn.sigmoid_cross_entropy_with_logits(label, logits)
        yes, no = tf.math.log_sigmoid(logits), tf.math.log_sigmoid(-logits)
        return -label * _focus(yes, gamma) * yes - (1 - label) * _focus(no, gamma) * no

    return loss


def _focus(log_p: Tensor, gamma: float) -> Tensor:
    """Return ``(1 - p) ** gamma``; the gradient of a root is infinite at 0, where a certain answer ends in float32."""
    return tf.pow(tf.maximum(1 - tf.exp(log_p), 1e-7), gamma) if gamma else 1.0


def _regression_loss(delta: float | None, std: float) -> Loss:
    def loss(prediction: Tensor, truth: Tensor) -> Tensor:
        error = tf.cast((tf.cast(prediction[:, 0], tf.float64) - tf.cast(truth, tf.float64)) / std, tf.float32)
        if delta is None:
            return tf.square(error)
        size = tf.abs(error)
        inner = tf.minimum(size, delta)
        return inner * (size - inner / 2)

    return loss


def batch_loss(network: Any, inputs: Any, target: Tensor, weight: Tensor, loss_of: Loss = cross_entropy) -> Tensor:
    """Return the training loss of a local batch: weighted sum over samples / their number + the network's own losses.

    Its mean over ranks is the loss of the global batch if weights make up for shares that differ: see
    `RankShares.sample_factor`.
    """
    losses = loss_of(network(inputs, training=True), target)
    loss = tf.reduce_mean(losses * weight)
    own = [tf.cast(tf.reduce_sum(extra), tf.float32) for extra in network.losses]
    return tf.add_n([loss, *own])


def user_loss(config: LossConfig, target: Target) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss that `loss.name` names, as `Loss` has it.

    A class of losses, such as `keras.losses:Huber`, is called with `loss.options`; its losses, and any other function,
    with `(target, outputs)` of a batch. A target and the output of one number have the shape [batch, 1] for a class;
    for a function they are [batch] and [batch, 1]. Both are standardised for a regression. A TrainingError says that
    the function fails, or returns no loss for each sample.
    """
    name: Any = config.name
    function = import_own("loss.name", name)
    made = made_by_class(function, keras.losses.Loss, "loss.name", name, config.options, reduction="none")
    is_class = made is not None
    function, options = (made, {}) if is_class else (function, config.options)

    def loss(outputs: Tensor, truth: Tensor) -> Tensor:
        if target.task == "regression":
            outputs, truth = (_standardised(values, target) for values in (outputs, truth))
        outputs = tf.cast(outputs, tf.float32)
        if is_class and truth.shape.rank == 1 and outputs.shape[-1] == 1:
            truth = truth[:, None]
        with own_code("loss.name", name):
            losses = tf.cast(tf.convert_to_tensor(function(truth, outputs, **options)), tf.float32)
        if losses.shape.rank != 1:
            raise TrainingError(
                f"loss.name {name}: it must return a loss for each sample, of shape [batch], got {losses.shape}"
            )
        return losses

    return loss


def _standardised(values: Tensor, target: Target) -> Tensor:
    return tf.cast((tf.cast(values, tf.float64) - target.mean) / target.std, tf.float32)

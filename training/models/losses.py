"""Losses of a batch, in float32 whatever dtype the layers compute in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...sharding.errors import ConfigError
from ...sharding.messages import listed
from ..config.loss import LossConfig

__all__ = ["Loss", "batch_loss", "build_loss", "cross_entropy"]

Tensor = Any
Loss = Callable[[Tensor, Tensor], Tensor]
"""From logits [batch, classes] and class ids [batch] to a loss per sample, float32 [batch]."""


def cross_entropy(logits: Tensor, class_id: Tensor) -> Tensor:
    """Return the cross entropy per sample, float32 [batch], of logits [batch, classes] and class ids, int32 [batch].

    >>> round(float(cross_entropy(tf.constant([[0.0, 0.0]]), tf.constant([1]))[0]), 6)  # log 2
    0.693147
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(class_id, tf.cast(logits, tf.float32))


def build_loss(config: LossConfig, classes: Sequence[str]) -> Loss:
    """Return the loss of a configuration.

    For class probabilities p and the smoothed label q (Szegedy et al., arXiv 1512.00567, section 7), it is
    ``w * sum(-q * (1 - p) ** gamma * log(p))``; with gamma the focal loss of Lin et al., arXiv 1708.02002, equation 4.

    Raises:
        ConfigError: a class with a weight does not exist.

    >>> loss = build_loss(LossConfig(label_smoothing=0.2, class_weights={"b": 3.0}), ["a", "b"])
    >>> [round(float(x), 4) for x in loss(tf.constant([[2.0, 0.0], [2.0, 0.0]]), tf.constant([0, 1]))]
    [0.3269, 5.7808]
    """
    given = {str(name): weight for name, weight in (config.class_weights or {}).items()}
    if unknown := [name for name in given if name not in classes]:
        raise ConfigError(f"loss.class_weights: there is no class {unknown[0]!r}; the classes are: {listed(classes)}")
    if config == LossConfig():
        return cross_entropy
    weights = tf.constant([given.get(name, 1.0) for name in classes], tf.float32)
    smoothing, gamma, count = config.label_smoothing, config.focal_gamma, len(classes)

    def loss(logits: Tensor, class_id: Tensor) -> Tensor:
        if smoothing or gamma:
            log_p = tf.nn.log_softmax(tf.cast(logits, tf.float32))
            label = tf.one_hot(class_id, count, 1 - smoothing + smoothing / count, smoothing / count)
            # the gradient of a root is infinite at 0, where a certain answer ends in float32
            focus = tf.pow(tf.maximum(1 - tf.exp(log_p), 1e-7), gamma) if gamma else 1.0
            losses = -tf.reduce_sum(label * focus * log_p, -1)
        else:
            losses = cross_entropy(logits, class_id)
        return losses * tf.gather(weights, class_id)

    return loss


def batch_loss(network: Any, inputs: Any, class_id: Tensor, weight: Tensor, loss_of: Loss = cross_entropy) -> Tensor:
    """Return the training loss of a local batch: weighted sum over samples / their number + the network's own losses.

    Its mean over ranks is the loss of the global batch if weights make up for shares that differ: see `Shares.factor`.
    """
    losses = loss_of(network(inputs, training=True), class_id)
    loss = tf.reduce_mean(losses * weight)
    own = [tf.cast(tf.reduce_sum(extra), tf.float32) for extra in network.losses]
    return tf.add_n([loss, *own])

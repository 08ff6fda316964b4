"""Losses of a batch, in float32 whatever dtype the layers compute in."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["batch_loss", "cross_entropy"]

Tensor = Any


def cross_entropy(logits: Tensor, class_id: Tensor) -> Tensor:
    """Return the cross entropy per sample, float32 [batch], of logits [batch, classes] and class ids, int32 [batch].

    >>> round(float(cross_entropy(tf.constant([[0.0, 0.0]]), tf.constant([1]))[0]), 6)  # log 2
    0.693147
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(class_id, tf.cast(logits, tf.float32))


def batch_loss(network: Any, inputs: Any, class_id: Tensor, weight: Tensor) -> Tensor:
    """Return the training loss of a local batch: weighted sum over samples / their number + the network's own losses.

    All local batches have the same size, so its mean over ranks is the loss of the global batch.
    """
    losses = cross_entropy(network(inputs, training=True), class_id)
    loss = tf.reduce_mean(losses * weight)
    own = [tf.cast(tf.reduce_sum(extra), tf.float32) for extra in network.losses]
    return tf.add_n([loss, *own])

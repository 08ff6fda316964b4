"""Gradients of a batch: of micro-batches one after the other, in place of missing ones, and clipped by their norm.

Tested in tests/training/step/test_train_step.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.optimizers.keras_doors import Tensor
from ringfeed.training.ring.ring import dense


def check_connected(gradients: Sequence[Tensor | None]) -> None:
    """Raise a TrainingError for a network that cannot learn: the loss depends on no variable."""
    if all(gradient is None for gradient in gradients):
        raise TrainingError(
            "the loss has no gradient for any variable of the network: leave out what stops gradients between its "
            "variables and its outputs, such as tf.stop_gradient, rounding, argmax, or a cast to integers"
        )


def accumulated(
    one: Callable[..., tuple[Tensor, list[Tensor | None]]], count: int, batch: Any, variables: Sequence[Any]
) -> tuple[Tensor, list[Tensor | None]]:
    """Return loss and gradients of a batch, one of `count` micro-batches after the other, whose memory is free in turn.

    Micro-batch sizes differ by at most one; each is weighted by its size. Batch normalisation sees each alone. A batch
    of fewer samples has as many micro-batches as samples.
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

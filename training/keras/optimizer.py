"""Any optimizer of Keras on the ranks of a ring: it averages the gradients over the ranks, then applies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import keras

from ringfeed.pipeline.base_loader import BaseLoader
from ringfeed.sharding.errors import TrainingError
from ringfeed.training.optimizers.keras_doors import subclassed
from ringfeed.training.ring.ring import Ring, dense

_RING = "_ringfeed_ring"

Optimizer = TypeVar("Optimizer", bound="keras.optimizers.Optimizer")


def distribute(optimizer: Optimizer, ring: Ring, loader: BaseLoader | None = None) -> Optimizer:
    """Make an optimizer average gradients over the ranks before it clips and applies them.

    The object itself changes, not what it saves: a model that is stored with it loads where there is no ring.

    Args:
        optimizer: any optimizer of Keras. For `mixed_float16`, wrap it in `keras.optimizers.LossScaleOptimizer` first:
            an overflow on one rank must make all ranks skip the step.
        ring: the ranks, from `ringfeed.training.connect`.
        loader: what this rank trains on. Where the ranks do not divide its global batch, fillers of weight 0 have no
            part in the mean. None: the plain mean.

    Returns:
        The same object.

    Raises:
        TrainingError: it is no optimizer, it is distributed already, or the loader is not this rank's.

    >>> from ringfeed.training import SoloRing
    >>> distribute(keras.optimizers.SGD(0.1), SoloRing()).__class__.__name__
    'SGD'
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TrainingError(f"distribute takes an optimizer such as keras.optimizers.SGD(0.1), got {optimizer!r}")
    if ring_of(optimizer) is not None:
        raise TrainingError("this optimizer is distributed already; make a new one for each model")
    weight = 1.0
    if loader is not None:
        rank, size, batch_size = (loader.arguments[name] for name in ("rank", "world_size", "batch_size"))
        if (rank, size) != (ring.rank, ring.size):
            raise TrainingError(
                f"the loader reads the part of rank {rank} of {size} on rank {ring.rank} of {ring.size}: "
                "Loader(..., rank=ring.rank, world_size=ring.size)"
            )
        weight = loader.local_batch_size * size / batch_size
    plain = type(optimizer)

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        present = [index for index, gradient in enumerate(grads) if gradient is not None]
        weighted = [grads[index] if weight == 1.0 else dense(grads[index]) * weight for index in present]
        means = ring.allreduce_mean(weighted)
        averaged: list[Any] = [None] * len(grads)
        for index, gradient in zip(present, means, strict=True):
            averaged[index] = gradient
        return plain.apply(self, averaged, trainable_variables)

    subclassed(optimizer, **{"apply": apply, _RING: ring})
    return optimizer


def ring_of(optimizer: Any) -> Ring | None:
    """Return the ring whose gradients an optimizer averages, None if it averages none."""
    return getattr(type(optimizer), _RING, None)

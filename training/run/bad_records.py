"""Finds the records of a batch whose values are not finite, after a step whose gradients were not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.pipeline import Loader, Mixture
from ringfeed.pipeline.transforms.failing_record import as_tensor

__all__ = ["bad_records", "finite_samples"]


def bad_records(loader: Loader | Mixture, preprocess: Callable[[Any], Any], epoch: int, step: int) -> list[str]:
    """Return what a model must not see: a line for each sample of a step whose inputs, target or weight are not finite.

    The batch is read again, sample by sample.

    Args:
        loader: this rank's loader.
        preprocess: function from a loader's element to `(inputs, target, weight)`.
        epoch, step: the step.
    """
    batch, origins = loader.batch_with_origins(epoch, step)
    inputs, target, weight = preprocess({name: as_tensor(values) for name, values in batch.items()})
    finite = [
        finite_samples(tensor) for tensor in [*tf.nest.flatten(inputs), target, weight] if tensor.dtype.is_floating
    ]
    lines = []
    for number, origin in enumerate(origins):
        if all(samples[number] for samples in finite):
            continue
        names = [
            name
            for name, values in batch.items()
            if isinstance(values, np.ndarray) and values.dtype.kind == "f" and not np.isfinite(values[number]).all()
        ]
        where = f" ({', '.join(names)})" if names else ""
        dataset = f" in {origin.dataset}" if isinstance(loader, Mixture) else ""
        lines.append(f"record {origin.record} of {origin.shard}{dataset}{where}")
    return lines


def finite_samples(tensor: Any) -> Any:
    """Return whether each sample of a tensor, also of a ragged one, is finite: bool [batch]."""
    flags = tf.ragged.map_flat_values(tf.math.is_finite, tensor)
    for _ in range(1, flags.shape.rank):
        flags = tf.reduce_all(flags, axis=-1)
    return flags.numpy()

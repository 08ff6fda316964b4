"""Finds the records of a batch whose values are not finite, after a step whose gradients were not.

Tested in tests/training/loop/test_bad_records.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ...pipeline import Loader

__all__ = ["bad_records"]


def bad_records(loader: Loader, preprocess: Callable[[Any], Any], step: int) -> list[str]:
    """Return what a model must not see: a line for each sample of a step whose inputs or weight are not finite.

    The batch is read again, sample by sample.

    Args:
        loader: this rank's loader.
        preprocess: function from a loader's element to `(inputs, class_id, weight)`.
        step: number of the step since the run began.
    """
    batch, origins = loader.batch_with_origins(*divmod(step, loader.steps_per_epoch))
    inputs, _, weight = preprocess({name: tf.convert_to_tensor(values) for name, values in batch.items()})
    tensors = [*tf.nest.flatten(inputs), weight]
    floats = [tensor.numpy() for tensor in tensors if isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating]
    lines = []
    for number, origin in enumerate(origins):
        if all(np.isfinite(values[number]).all() for values in floats):
            continue
        names = [
            name
            for name, values in batch.items()
            if isinstance(values, np.ndarray) and values.dtype.kind == "f" and not np.isfinite(values[number]).all()
        ]
        where = f" ({', '.join(names)})" if names else ""
        lines.append(f"record {origin.record} of {origin.shard}{where}")
    return lines

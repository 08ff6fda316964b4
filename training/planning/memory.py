"""Bytes that a rank needs for its model and a batch, from shapes and dtypes.

Tested in tests/training/planning/test_plan.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ringfeed.training.checkpoint.snapshot import Parts

__all__ = ["memory_bytes", "variable_bytes"]


def memory_bytes(parts: Parts, local_batch: int, micro_batches: int = 1) -> dict[str, int]:
    """Return the bytes of what a rank holds in a step, by kind.

    Activations are the outputs of all layers, which the backward pass needs; libraries of kernels take workspace beside
    them. A dimension that is not known, as of lists of tokens, counts as 1. The `local_batch` samples of a rank pass
    through the network in `micro_batches` parts.
    """
    network, synchronizer = parts.network, parts.synchronizer
    micro_batch = math.ceil(local_batch / micro_batches)
    found = {
        "weights": variable_bytes(network.weights),
        "gradients": variable_bytes(network.trainable_variables),
        "optimizer": variable_bytes(parts.optimizer.variables),
        "synchronisation": variable_bytes(
            [*synchronizer.rank_variables, *synchronizer.shared_variables, *synchronizer.base_variables]
        ),
        "average": variable_bytes(parts.average.variables) if parts.average else 0,
        "batch": sum(_tensor_bytes(tensor, local_batch) for tensor in tf.nest.flatten(network.inputs)),
        "activations": sum(_tensor_bytes(tensor, micro_batch) for tensor in _outputs(network)),
    }
    return {kind: size for kind, size in found.items() if size}


def variable_bytes(variables: Iterable[Any]) -> int:
    """Return the bytes of variables of Keras or TensorFlow."""
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)


def _outputs(network: Any) -> Iterator[Any]:
    for layer in network.layers:
        if isinstance(layer, keras.layers.InputLayer):
            continue
        if isinstance(layer, keras.Model) and layer.built and getattr(layer, "inputs", None):
            yield from _outputs(layer)
        else:
            yield from tf.nest.flatten(layer.output)


def _tensor_bytes(tensor: Any, batch: int) -> int:
    entries = math.prod(size or 1 for size in tensor.shape[1:])
    return int(batch * entries * max(tf.as_dtype(tensor.dtype).size, 1))

"""Bytes that a rank needs for its model and a batch, and that it receives for synchronisation in a step.

The first follow from shapes and dtypes; the second are counted in one synchronisation of zeros, not estimated.
Tested in tests/training/planning/test_plan.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.checkpoint.snapshot import Parts
from ringfeed.training.config.compression import COMPRESSIONS
from ringfeed.training.config.sync import RoundsConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.keras_doors import Tensor
from ringfeed.training.ring.metered import MeteredRing
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.sync.build import build_synchronizer
from ringfeed.training.sync.epoch_plan import EpochPlan
from ringfeed.training.sync.synchronizer import Exchange, SyncRun


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


class PlannedRing(SoloRing):
    """Rank 0 of `size` ranks on one host; the others are taken to send what it sends."""

    def __init__(self, size: int) -> None:
        self.size = self.local_size = size
        self._has_alltoall = False

    def gather(self, tensor: Tensor) -> Tensor:
        """One row that stands for all, which are only added up; after an all-to-all all of them, to be joined."""
        return tf.repeat(tensor[None], self.size if self._has_alltoall else 1, axis=0)

    def alltoall(self, tensor: Tensor) -> Tensor:
        self._has_alltoall = True
        return tensor

    def allgather_object(self, value: Any) -> list[Any]:
        return [value] * self.size

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tf.convert_to_tensor(t) * self.size for t in tensors]


def bytes_by_method(config: TrainConfig, ranks: int, parts: Parts, epoch_plan: EpochPlan) -> dict[str, float | None]:
    """Return the bytes of each method of compression that the configuration allows; None for the others.

    A run with rounds of local steps has `sync.method` alone.
    """
    if config.sync.method != "every_step":
        return {config.sync.method: wire_bytes(config, ranks, parts, epoch_plan)}
    found: dict[str, float | None] = {}
    for method in COMPRESSIONS.by_name:
        chosen = _with_method(config, method)
        found[method] = None if chosen is None else wire_bytes(chosen, ranks, parts, epoch_plan)
    return found


def _with_method(config: TrainConfig, method: str) -> TrainConfig | None:
    """The configuration with a method of compression, and its own options of that if it has the method."""
    if method == config.compression.method:
        return config
    try:
        return replace(config, compression=COMPRESSIONS.made({"method": method}))
    except ConfigError:
        return None


def wire_bytes(config: TrainConfig, ranks: int, parts: Parts, epoch_plan: EpochPlan) -> float:
    """Return the bytes that a rank receives in a step after warm-up, or of a round divided by its steps."""
    wire = MeteredRing(PlannedRing(ranks))
    steps = config.total_steps(epoch_plan.steps)
    run = SyncRun(config=config, ring=wire, steps_per_epoch=epoch_plan.steps, samples_before=epoch_plan.samples_before)
    synchronizer = build_synchronizer(run)
    variables = parts.network.trainable_variables
    synchronizer.build(variables, parts.optimizer)
    synchronizer.begin()
    zeros: list[Any] = [tf.zeros(v.shape, v.dtype) for v in variables]
    zero = tf.zeros([])
    samples = zero if config.sync.method == "fedavg" else None
    sent = Exchange(gradients=zeros, overflowed=zero, loss=zero, stopping=zero, samples=samples)
    synchronizer.reduce(sent, tf.constant(steps, tf.int64))
    each = float(wire.wire_bytes)
    if not isinstance(config.sync, RoundsConfig):
        return each
    every = config.sync.every
    synchronizer.after_step((config.sync.start_step // every + 1) * every)
    return each + (float(wire.wire_bytes) - each) / every

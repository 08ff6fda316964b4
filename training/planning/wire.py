"""Bytes that a rank receives for synchronisation in a step: counted in one synchronisation of zeros, not estimated.

Tested in tests/training/planning/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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

__all__ = ["PlannedRing", "bytes_by_method", "wire_bytes"]


class PlannedRing(SoloRing):
    """Rank 0 of `size` ranks on one host; the others are taken to send what it sends."""

    def __init__(self, size: int) -> None:
        self.size = self.local_size = size
        self._has_exchanged = False

    def gather(self, tensor: Tensor) -> Tensor:
        """One row that stands for all, which are only added up; after an exchange all rows, which are put together."""
        return tf.repeat(tensor[None], self.size if self._has_exchanged else 1, axis=0)

    def exchange(self, tensor: Tensor) -> Tensor:
        self._has_exchanged = True
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

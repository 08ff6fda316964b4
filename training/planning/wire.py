"""Bytes that a rank receives for synchronisation in a step: counted in one synchronisation of zeros, not estimated.

Tested in tests/training/planning/test_plan.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.checkpoint.snapshot import Parts
from ringfeed.training.config.compression import COMPRESSIONS
from ringfeed.training.config.sync import RoundsConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.ring.metered import MeteredRing
from ringfeed.training.sync.build import build_synchronizer
from ringfeed.training.sync.pace import Pace
from ringfeed.training.sync.synchronizer import Exchange, SyncRun

from .planned_ring import PlannedRing

__all__ = ["bytes_by_method", "wire_bytes"]


def bytes_by_method(config: TrainConfig, ranks: int, parts: Parts, pace: Pace) -> dict[str, float | None]:
    """Return the bytes of each method of compression that the configuration allows; None for the others.

    With rounds of local steps (`sync.method`), those of that method alone.

    Args:
        config: configuration of the run.
        ranks: number of ranks.
        parts: network and optimizer.
        pace: steps of an epoch.
    """
    if config.sync.method != "every_step":
        return {config.sync.method: wire_bytes(config, ranks, parts, pace)}
    found: dict[str, float | None] = {}
    for method in COMPRESSIONS.by_name:
        chosen = _with_method(config, method)
        found[method] = None if chosen is None else wire_bytes(chosen, ranks, parts, pace)
    return found


def _with_method(config: TrainConfig, method: str) -> TrainConfig | None:
    """The configuration with a method of compression, and its own options of that if it has the method."""
    if method == config.compression.method:
        return config
    try:
        return replace(config, compression=COMPRESSIONS.made({"method": method}))
    except ConfigError:
        return None


def wire_bytes(config: TrainConfig, ranks: int, parts: Parts, pace: Pace) -> float:
    """Return the bytes that a rank receives in a step after warm-up, or of a round divided by its steps."""
    wire = MeteredRing(PlannedRing(ranks))
    steps = config.total_steps(pace.steps)
    run = SyncRun(config=config, ring=wire, steps_per_epoch=pace.steps, samples_before=pace.samples_before)
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

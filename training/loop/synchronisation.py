"""The synchronizer of a configuration.

Tested in tests/training/compression/test_methods.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.averaging.diloco import DiLoCo
from ringfeed.training.averaging.fedavg import FedAvg
from ringfeed.training.averaging.gossip import Gossip
from ringfeed.training.averaging.pace import Pace
from ringfeed.training.averaging.periodic import Periodic
from ringfeed.training.averaging.robust import median, trimmed_count, trimmed_mean
from ringfeed.training.compression.dgc import DGC, DGCRule
from ringfeed.training.compression.gathered import Gathered
from ringfeed.training.compression.half import Half
from ringfeed.training.compression.onebit_adam import OneBitAdam
from ringfeed.training.compression.powersgd import PowerSGD
from ringfeed.training.compression.qsgd import QSGD
from ringfeed.training.compression.sign_momentum import SignMomentum
from ringfeed.training.compression.terngrad import TernGrad
from ringfeed.training.compression.top_k import TopK
from ringfeed.training.compression.two_stage import TwoStage
from ringfeed.training.config.synchronisation import MOMENTUM_FIRST, SyncConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.build import build_optimizer, eps_of
from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.synchronizer import EveryStep, Synchronizer

__all__ = ["build_run_optimizer", "build_synchronizer", "momentum_remarks"]

_BETTER_WITH_NESTEROV = ("top_k", "powersgd", "onebit")  # see docs/synchronisation.md


def build_run_optimizer(config: TrainConfig, schedule: Any, variables: Sequence[Any], steps_per_epoch: int) -> Any:
    """Build the optimizer beside a run's synchronizer: without the momentum that this one applies.

    Under `onebit`, Adam's second moment changes no more from the first compressed step on.
    """
    compression, options, freeze_step = config.compression, config.optimizer, None
    if compression.method in MOMENTUM_FIRST and options.name == "sgd":
        options = replace(options, momentum=0.0, nesterov=False)
    elif compression.method == "onebit":
        freeze_step = compression.dense_steps(config.schedule_steps(steps_per_epoch))
    return build_optimizer(options, schedule, variables, freeze_step)


def momentum_remarks(config: TrainConfig) -> list[str]:
    """Return a remark on SGD whose momentum is not Nesterov's, beside a method with error feedback, which delays."""
    method, optimizer = config.compression.method, config.optimizer
    has_plain = optimizer.name == "sgd" and optimizer.momentum > 0 and not optimizer.nesterov
    if method not in _BETTER_WITH_NESTEROV or not has_plain:
        return []
    return [f"compression.method={method} loses less accuracy with optimizer.nesterov=true than with plain momentum"]


def build_synchronizer(config: TrainConfig, ring: Ring, *, total_steps: int, pace: Pace) -> Synchronizer:
    """Return the object that keeps the ranks of a run in step.

    Args:
        config: configuration of the run.
        ring: the ranks.
        total_steps: length of the run.
        pace: steps of an epoch, and this rank's samples in them.

    Raises:
        ConfigError: the run would end before its compression or its rounds start, or a trimmed mean would trim nothing.
    """
    if config.sync.start_step >= total_steps:
        raise ConfigError(
            f"sync.start_step={config.sync.start_step} is beyond the {total_steps} steps of this run, all of which "
            "would be synchronous; lower it"
        )
    if config.sync.method != "every_step":
        return _periodic(config, ring, pace)
    start = config.compression.start_step or 0
    if config.compression.method != "none" and start >= total_steps:
        raise ConfigError(
            f"compression.start_step={start} is beyond the {total_steps} steps of this run, none of which "
            f"{config.compression.method} would compress; set it to about a tenth of them"
        )
    return _compressed(config, ring, pace.steps)


def _periodic(config: TrainConfig, ring: Ring, pace: Pace) -> Synchronizer:
    options, average_slots = config.sync, config.sync.optimizer_state == "average"
    match options.method:
        case "diloco":
            rate, momentum = options.outer_learning_rate, options.outer_momentum
            return DiLoCo(ring, options.every, rate=rate, momentum=momentum, average_slots=average_slots)
        case "fedavg":
            robust = _robust(options, ring.size)
            samples = pace.samples_before
            return FedAvg(ring, options.every, samples_before=samples, robust=robust, average_slots=average_slots)
        case "gossip":
            return Gossip(ring, options.every, topology=options.topology, seed=config.seed, average_slots=average_slots)
    return Periodic(ring, options.every, start_step=options.start_step, average_slots=average_slots)


def _robust(options: SyncConfig, ranks: int) -> Callable[[Any], Any] | None:
    if options.aggregate != "trimmed":
        return median if options.aggregate == "median" else None
    count = trimmed_count(options.trim, ranks)
    if not count:
        raise ConfigError(
            f"sync.trim={options.trim} leaves out none of {ranks} ranks; raise it (below 0.5), start more ranks, or "
            "use sync.aggregate=mean"
        )
    return functools.partial(trimmed_mean, count=count)


def _compressed(config: TrainConfig, ring: Ring, steps_per_epoch: int) -> Synchronizer:
    options, steps = config.compression, config.schedule_steps(steps_per_epoch)
    start = options.dense_steps(steps)
    match options.method:
        case "fp16" | "bf16":
            dtype = tf.float16 if options.method == "fp16" else tf.bfloat16
            return TwoStage(ring, Half(dtype=dtype), least_dimensions=1, start_step=start)
        case "onebit":
            optimizer = config.optimizer
            if optimizer.name != "sgd":
                return OneBitAdam(ring, beta_1=optimizer.beta_1, eps=eps_of(optimizer), start_step=start)
            return SignMomentum(ring, momentum=optimizer.momentum, nesterov=optimizer.nesterov, start_step=start)
        case "top_k":
            codec = TopK(ratio=options.sent_share)
            return Gathered(ring, codec, error_feedback=True, together=True, start_step=start)
        case "qsgd":
            return Gathered(ring, QSGD(levels=options.levels), seed=config.seed, start_step=start)
        case "terngrad":
            return Gathered(ring, TernGrad(clip_factor=options.clip_factor), seed=config.seed, start_step=start)
        case "powersgd":
            return PowerSGD(ring, rank=options.rank, min_rate=options.min_rate, seed=config.seed, start_step=start)
        case "dgc":
            rule = DGCRule(
                ratio=options.sent_share,
                warmup_steps=options.warmup_steps(steps, steps_per_epoch),
                momentum=config.optimizer.momentum,
                nesterov=config.optimizer.nesterov,
                clip_norm=options.local_clip_norm,
            )
            return DGC(ring, rule)
    return EveryStep(ring)

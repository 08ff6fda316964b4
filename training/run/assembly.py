"""Assembles a run on one rank: loaders, network, optimizer, synchronizer and the compiled steps.

Tested in tests/training/run/test_shares.py and tests/training/sync/test_batch_norm.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.checkpoint.snapshot import Parts
from ringfeed.training.config.backend import MIRRORED, MULTI_WORKER
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.build import build_model
from ringfeed.training.models.column_remarks import column_remarks
from ringfeed.training.models.losses import build_loss
from ringfeed.training.models.preprocess import BuiltModel
from ringfeed.training.models.target import Target
from ringfeed.training.models.user_model import network_errors
from ringfeed.training.optimizers.build import build_schedule, schedule_warnings
from ringfeed.training.optimizers.keras_doors import update_own_replica
from ringfeed.training.optimizers.precision import LossScale, ScaleRule
from ringfeed.training.records.clock import clock
from ringfeed.training.ring.metered import MeteredRing
from ringfeed.training.ring.replicas import Replicas, replicas_of
from ringfeed.training.ring.ring import Ring
from ringfeed.training.schedules.user_schedule import checked_schedule
from ringfeed.training.step.train_step import StepOptions, TrainStep, make_train_step
from ringfeed.training.sync.agreement import Agreement
from ringfeed.training.sync.batch_norm import synchronise_batch_norm
from ringfeed.training.sync.build import build_run_optimizer, build_synchronizer, momentum_remarks
from ringfeed.training.sync.epoch_plan import EpochPlan
from ringfeed.training.sync.moving import MovingAverage
from ringfeed.training.sync.synchronizer import Synchronizer, SyncRun

from .arguments import check_kind
from .clients import rank_epoch
from .evaluator import Evaluator, make_evaluator
from .inputs import open_evaluations, open_loader, open_manifests, traced, with_splits
from .shares import RankShares

log = logging.getLogger(__name__)

Schedule = Callable[[Any], Any]
MakeSynchronizer = Callable[[Ring], Synchronizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """What a run consists of, before its first step."""

    config: TrainConfig  # with the splits that the datasets have
    shares: RankShares  # this rank's share of the training batches, and its loader
    evaluator: Evaluator
    tester: Evaluator  # at the end of the run
    augment: Any  # the evaluator's preprocessing, with random augmentation for training
    epoch_plan: EpochPlan  # steps of an epoch, and whether this rank trains in each
    schedule: Schedule
    wire: MeteredRing  # the ring, which counts the bytes that synchronisation receives
    parts: Parts  # what training changes
    train_step: TrainStep


def assemble(
    config: TrainConfig,
    ring: Ring,
    schedule: Schedule | None = None,
    synchronizer: MakeSynchronizer | None = None,
) -> Assembly:
    """Build the parts of a run, if given with this schedule and synchronizer in place of the configured ones.

    A RingfeedError says that the dataset or the model does not fit the configuration.
    """
    _prepare_process(config)
    replicas = replicas_of(ring)
    with replicas.scope() if replicas else nullcontext():
        return _assembled(config, ring, schedule, synchronizer, replicas)


def _assembled(
    config: TrainConfig,
    ring: Ring,
    schedule: Schedule | None,
    make_synchronizer: MakeSynchronizer | None,
    replicas: Replicas | None,
) -> Assembly:
    manifests = open_manifests(config.data)
    config = with_splits(config, manifests)
    shares = _shares(config, ring, manifests)
    loader = shares.loader
    evaluated = open_evaluations(config, ring, manifests)
    epoch_plan = rank_epoch(config, ring, loader)
    model = build_model(loader.manifest, config)
    evaluator = make_evaluator(config, loader.manifest, model, evaluated)
    if schedule is None:
        schedule = build_schedule(config, epoch_plan.steps)
    elif not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        schedule = checked_schedule("schedule", getattr(schedule, "__qualname__", type(schedule).__name__), schedule)
    if ring.rank == 0:
        for remark in [*schedule_warnings(config), *momentum_remarks(config), *column_remarks(loader.manifest, config)]:
            log.warning(remark)
    wire = MeteredRing(replicas.ring if replicas else ring)
    if config.sync.batch_norm:
        synchronise_batch_norm(model.network, wire)
    run = SyncRun(config=config, ring=wire, steps_per_epoch=epoch_plan.steps, samples_before=epoch_plan.samples_before)
    synchronizer = build_synchronizer(run) if make_synchronizer is None else make_synchronizer(wire)
    check_kind(hasattr(synchronizer, "reduce"), "synchronizer", "a function that returns a Synchronizer", synchronizer)
    parts = _parts(config, ring, synchronizer, epoch_plan, model, schedule)
    return Assembly(
        config=config,
        shares=shares,
        evaluator=evaluator,
        tester=evaluator.on(open_evaluations(config, ring, manifests, for_test=True)),
        augment=evaluator.preprocess if model.augmented is None else traced(model.augmented),
        epoch_plan=epoch_plan,
        schedule=schedule,
        wire=wire,
        parts=parts,
        train_step=_train_step(config, loader.manifest, evaluator.target, parts, replicas),
    )


def _shares(config: TrainConfig, ring: Ring, manifests: Mapping[str, Manifest]) -> RankShares:
    """Open the training split for this rank; a ConfigError if a rank's batch could have too few samples."""
    loader = open_loader(config, ring, manifests=manifests)
    follows_speed, batch_size = config.sync.shares == "speed", config.data.batch_size
    if (follows_speed or config.sync.batch_norm) and batch_size < ring.size:
        key = "sync.shares=speed" if follows_speed else "sync.batch_norm=true"
        raise ConfigError(f"{key} needs a sample for each of {ring.size} ranks: raise data.batch_size")
    shares = RankShares(
        loader,
        ring,
        batch_size,
        config.sync.share_bound if follows_speed else None,
        has_part=config.sync.clients is not None,
    )
    replicas = replicas_of(ring)
    if replicas and batch_size < replicas.size * config.optimizer.accumulate:
        raise ConfigError(
            f"data.batch_size={batch_size} has too few samples for {replicas.size} devices; each takes "
            f"optimizer.accumulate={config.optimizer.accumulate} at least"
        )
    if shares.least < config.optimizer.accumulate:
        remedy = ", or lower sync.share_bound" if follows_speed else ""
        raise ConfigError(
            f"optimizer.accumulate={config.optimizer.accumulate} is more than the {shares.least} samples of a rank's "
            f"batch; lower it, or raise data.batch_size{remedy}"
        )
    return shares


def _prepare_process(config: TrainConfig) -> None:
    """Seed Keras and make TensorFlow deterministic, before anything is built.

    The global generators only draw initial weights and the keys of dropout, not the order of samples.
    """
    keras.utils.set_random_seed(config.seed)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()


def _parts(
    config: TrainConfig,
    ring: Ring,
    synchronizer: Synchronizer,
    epoch_plan: EpochPlan,
    model: BuiltModel,
    schedule: Schedule,
) -> Parts:
    variables = model.network.trainable_variables
    optimizer = build_run_optimizer(config, schedule, variables, epoch_plan.steps)
    if config.backend == MIRRORED:
        update_own_replica(optimizer)
    synchronizer.build(variables, optimizer)
    average = None
    if config.ema.decay is not None:
        average = MovingAverage(model.network, config.ema.decay, warms_up=config.ema.warmup)
    rule = ScaleRule(initial=config.loss_scale.initial, growth_interval=config.loss_scale.growth_interval)
    return Parts(
        network=model.network,
        optimizer=optimizer,
        scale=LossScale.for_precision(config.precision, rule),
        synchronizer=synchronizer,
        average=average,
        agreement=Agreement(ring, model.network, synchronizer, average),
    )


def _train_step(
    config: TrainConfig, manifest: Manifest, target: Target, parts: Parts, replicas: Replicas | None
) -> TrainStep:
    is_recorded = config.output.records is not None or config.output.prometheus_port is not None
    follows_speed, has_clients = config.sync.shares == "speed", config.sync.clients is not None
    options = StepOptions(
        clip_norm=config.optimizer.clip_norm,
        loss_of=build_loss(config.loss, target),
        accumulate=config.optimizer.accumulate,
        by_samples=config.sync.method == "fedavg",
        any_batch=follows_speed or has_clients or config.backend == MULTI_WORKER,  # see `WorkerRing`
        jit_compile=config.jit_compile,
    )
    step = make_train_step(
        parts.network,
        parts.optimizer,
        parts.synchronizer,
        parts.scale,
        options,
        read_clock=clock(deterministic=config.deterministic) if is_recorded or follows_speed else None,
        average=None if parts.synchronizer.apart_variables else parts.average,  # else rounds update it
        replicas=replicas,
    )
    train_step: TrainStep = network_errors(manifest, config)(step)
    return train_step

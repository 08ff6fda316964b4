"""The optimizer of a configuration, also one of Keras or the user's by `module:function`, and its learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.optimizers import OptimizerConfig, OwnOptimizerConfig
from ringfeed.training.config.own_code import made_by_class, own_code, own_object
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.schedules.learning_rate import WarmUpDecay, scaled_learning_rate
from ringfeed.training.schedules.user_schedule import UserSchedule, user_schedule

from .norms import is_adapted
from .rule import RuleOptimizer


def build_schedule(config: TrainConfig, steps_per_epoch: int) -> WarmUpDecay | UserSchedule:
    """Build the learning rate over all epochs of a run; `max_steps` ends the run, but does not shorten the schedule.

    A ConfigError says that no step is left after the warm-up, a TrainingError that the user's schedule fails.
    """
    optimizer, schedule = config.optimizer, config.schedule
    base = optimizer.base_batch_size or config.data.batch_size
    peak = scaled_learning_rate(optimizer.learning_rate, config.data.batch_size, base, optimizer.scaling)
    total = config.schedule_steps(steps_per_epoch)
    if schedule.name is not None:
        return user_schedule(schedule, peak, total)
    warmup = round(schedule.warmup_epochs * steps_per_epoch) if schedule.warmup_steps is None else schedule.warmup_steps
    boundaries = schedule.boundary_steps or [round(epoch * steps_per_epoch) for epoch in schedule.boundaries]
    if warmup >= total:
        raise ConfigError(
            f"schedule: {warmup} steps of warm-up leave none of the {total} steps of the schedule "
            f"({steps_per_epoch} steps per epoch); lower schedule.warmup_steps or warmup_epochs, or raise epochs or "
            "schedule.total_epochs"
        )
    return WarmUpDecay(
        peak_value=peak,
        warmup_steps=warmup,
        total_steps=total,
        decay=schedule.decay,
        init_value=peak * schedule.init_factor,
        end_value=peak * schedule.end_factor,
        power=schedule.power,
        scales=[(step, schedule.factor) for step in boundaries],
        warmup=schedule.warmup,
    )


def schedule_warnings(config: TrainConfig) -> list[str]:
    """Return warnings about valid but useless boundaries: those within the warm-up, or after the end."""
    schedule = config.schedule
    if schedule.decay != "step":
        return []
    remarks = []
    if early := [boundary for boundary in schedule.boundaries if boundary < schedule.warmup_epochs]:
        remarks.append(
            f"schedule.boundaries: {early} lie within the warm-up of {schedule.warmup_epochs} epochs; they "
            "take effect when it ends"
        )
    if late := [boundary for boundary in schedule.boundaries if boundary >= config.epochs]:
        remarks.append(f"schedule.boundaries: {late} are not reached in a run of {config.epochs} epochs")
    return remarks


def build_optimizer(
    config: OptimizerConfig, schedule: Any, variables: Sequence[Any], freeze_step: int | None = None
) -> Any:
    """Build a Keras optimizer for variables; with `freeze_step` Adam's second moment then changes no more.

    Variables that match `optimizer.exclude` (by default: biases and normalisation parameters) get no weight decay, and
    no trust ratio under LARS and LAMB. A TrainingError says that the user's optimizer fails.
    """
    optimizer = config.builder()(config, schedule, freeze_step)
    with own_code("optimizer.name", config.name):
        if not isinstance(optimizer, RuleOptimizer):
            optimizer.exclude_from_weight_decay(
                var_list=[v for v in variables if not is_adapted(v.path, v.shape, config.exclude)]
            )
        optimizer.build(variables)
    return optimizer


def user_optimizer(config: OwnOptimizerConfig, schedule: Any, freeze_step: int | None = None) -> Any:
    """Build the optimizer that `optimizer.name` names.

    A class of optimizers, such as `keras.optimizers:Lion`, gets `learning_rate`, `weight_decay` if it is not 0, and
    `optimizer.options`. Any other function is called with `(schedule, config)`, the latter with the keys of
    `optimizer`. A ConfigError refuses an optimizer that does what the training loop does.
    """
    key, name, kind = "optimizer.name", config.name, keras.optimizers.Optimizer
    fixed = {"learning_rate": schedule} | ({"weight_decay": config.weight_decay} if config.weight_decay else {})

    def make(function: Any) -> Any:
        made = made_by_class(function, kind, key, name, config.options, **fixed)
        return function(schedule, config) if made is None else made

    optimizer = own_object(key, name, make, kind, "keras.optimizers.Optimizer")
    if optimizer.use_ema:
        raise ConfigError(
            f"{key}: {name} has use_ema, which Keras pairs with other variables where some have no "
            "gradient: set ema.decay instead"
        )
    if optimizer.gradient_accumulation_steps:
        raise ConfigError(
            f"{key}: {name} has gradient_accumulation_steps, which would skip updates: set optimizer.accumulate instead"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigError(
            f"{key}: {name} is a LossScaleOptimizer, which would divide gradients by a scale that the "
            "loss does not have: return the optimizer within it; precision=float16 has a loss scale of its own"
        )
    optimizer.apply = own_code(key, name)(optimizer.apply)
    return optimizer

"""The synchronizer of a configuration, and the optimizer beside it.

Tested in tests/training/sync/compression/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.optimizers import SGDConfig
from ringfeed.training.config.own_code import own_object
from ringfeed.training.config.sync import OwnSyncConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.build import build_optimizer

from .synchronizer import Synchronizer, SyncRun


def build_run_optimizer(config: TrainConfig, schedule: Any, variables: Sequence[Any], steps_per_epoch: int) -> Any:
    """Build the optimizer beside a run's synchronizer: without the momentum that this one applies.

    Under `onebit`, Adam's second moment changes no more from the first compressed step on.
    """
    compression, options, freeze_step = config.compression, config.optimizer, None
    if compression.applies_momentum and isinstance(options, SGDConfig):
        options = replace(options, momentum=0.0, nesterov=False)
    elif compression.applies_momentum:
        freeze_step = compression.dense_steps(config.schedule_steps(steps_per_epoch))
    return build_optimizer(options, schedule, variables, freeze_step)


def momentum_remarks(config: TrainConfig) -> list[str]:
    """Return a remark on SGD whose momentum is not Nesterov's, beside a method with error feedback, which delays."""
    compression, optimizer = config.compression, config.optimizer
    has_plain = isinstance(optimizer, SGDConfig) and optimizer.momentum > 0 and not optimizer.nesterov
    if not compression.has_error_feedback or not has_plain:
        return []
    method = f"compression.method={compression.method}"
    return [f"{method} loses less accuracy with optimizer.nesterov=true than with plain momentum"]


def build_synchronizer(run: SyncRun) -> Synchronizer:
    """Return the object that keeps the ranks of a run in step.

    A ConfigError says that the run would end before its compression or its rounds start.
    """
    config = run.config
    total_steps = config.total_steps(run.steps_per_epoch)
    if config.sync.start_step >= total_steps:
        raise ConfigError(
            f"sync.start_step={config.sync.start_step} is beyond the {total_steps} steps of this run, all of which "
            "would be synchronous; lower it"
        )
    start = config.compression.start_step or 0
    if start >= total_steps:
        raise ConfigError(
            f"compression.start_step={start} is beyond the {total_steps} steps of this run, none of which "
            f"{config.compression.method} would compress; set it to about a tenth of them"
        )
    options = config.compression if config.sync.method == "every_step" else config.sync
    synchronizer: Synchronizer = options.builder()(run, options)
    return synchronizer


def user_synchronizer(run: SyncRun, options: OwnSyncConfig) -> Synchronizer:
    """Return what the user's class or function makes of the ring and `sync.options`."""
    synchronizer: Synchronizer = own_object(
        "sync.method",
        options.method,
        lambda function: function(run.ring, **options.options),
        Synchronizer,
        "ringfeed.training.Synchronizer, such as a class of EveryStep",
    )
    return synchronizer

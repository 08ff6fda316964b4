"""An optimizer of Keras, or of the user, by `module:function`.

Tested in tests/training/optimizers/test_build.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.sources.user_code import import_function
from ringfeed.training.config.optimizers import OwnOptimizerConfig
from ringfeed.training.config.own_code import own_code

__all__ = ["user_optimizer"]


def user_optimizer(config: OwnOptimizerConfig, schedule: Any, freeze_step: int | None = None) -> Any:
    """Build the optimizer that `optimizer.name` names.

    A class of optimizers, such as `keras.optimizers:Lion`, gets `learning_rate`, `weight_decay` if it is not 0, and
    `optimizer.options`. Any other function is called with `(schedule, config)`, the latter with the keys of
    `optimizer`.

    Raises:
        ConfigError: there is no such function, it refuses its arguments, or it returns no Keras optimizer, or one that
            does what the training loop does.
        TrainingError: the function fails.
    """
    optimizer = _called(config, schedule)
    if optimizer.use_ema:
        raise ConfigError(
            f"optimizer.name: {config.name} has use_ema, which Keras pairs with other variables where some have no "
            "gradient: set ema.decay instead"
        )
    if optimizer.gradient_accumulation_steps:
        raise ConfigError(
            f"optimizer.name: {config.name} has gradient_accumulation_steps, which would skip updates: "
            "set optimizer.accumulate instead"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigError(
            f"optimizer.name: {config.name} is a LossScaleOptimizer, which would divide gradients by a scale that the "
            "loss does not have: return the optimizer within it; precision=float16 has a loss scale of its own"
        )
    optimizer.apply = own_code("optimizer.name", config.name)(optimizer.apply)
    return optimizer


def _called(config: OwnOptimizerConfig, schedule: Any) -> Any:
    function = import_function("optimizer.name", config.name, str(Path.cwd()), example="keras.optimizers:Lion")
    if isinstance(function, type) and issubclass(function, keras.optimizers.Optimizer):
        decay = {"weight_decay": config.weight_decay} if config.weight_decay else {}
        try:
            return function(learning_rate=schedule, **decay, **config.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"optimizer.options: {config.name} refuses {dict(config.options)}: {' '.join(str(error).split())}"
            ) from error
    with own_code("optimizer.name", config.name):
        optimizer = function(schedule, config)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(
            f"optimizer.name: {config.name} must return a keras.optimizers.Optimizer, got {type(optimizer).__name__}"
        )
    return optimizer

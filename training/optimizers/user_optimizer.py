"""An optimizer of Keras, or of the user, by `module:function`.

Tested in tests/training/optimizers/test_build.py.
"""

from __future__ import annotations

from typing import Any

import keras

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.optimizers import OwnOptimizerConfig
from ringfeed.training.config.own_code import made_by_class, own_code, own_object


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

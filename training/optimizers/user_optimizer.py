"""An optimizer of Keras, or of the user, by `module:function`.

Tested in tests/training/optimizers/test_build.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from ...sharding.errors import ConfigError
from ...sharding.sources.user_code import import_function
from ..config.optimizer import OptimizerConfig

__all__ = ["user_optimizer"]


def user_optimizer(config: OptimizerConfig, schedule: Any) -> Any:
    """Build the optimizer that `optimizer.name` names.

    A class of optimizers, such as `keras.optimizers:Lion`, gets `learning_rate`, `weight_decay` if it is not 0, and
    `optimizer.options`. Any other function is called with `(schedule, config)`, the latter with the keys of
    `optimizer`.

    Raises:
        ConfigError: there is no such function, it refuses its arguments, or it returns no Keras optimizer.
    """
    optimizer = _called(config, schedule)
    if optimizer.use_ema:
        raise ConfigError(
            f"optimizer.name: {config.name} has use_ema, which Keras pairs with other variables where some have no "
            "gradient: set ema.decay instead"
        )
    return optimizer


def _called(config: OptimizerConfig, schedule: Any) -> Any:
    function = import_function("optimizer.name", config.name, str(Path.cwd()), example="keras.optimizers:Lion")
    if isinstance(function, type) and issubclass(function, keras.optimizers.Optimizer):
        decay = {"weight_decay": config.weight_decay} if config.weight_decay else {}
        try:
            return function(learning_rate=schedule, **decay, **config.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"optimizer.options: {config.name} refuses {dict(config.options)}: {' '.join(str(error).split())}"
            ) from error
    optimizer = function(schedule, config)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(
            f"optimizer.name: {config.name} must return a keras.optimizers.Optimizer, got {type(optimizer).__name__}"
        )
    return optimizer

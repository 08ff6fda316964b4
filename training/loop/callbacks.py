"""Callbacks of Keras in a run, by `module:function`.

Tested in tests/training/loop/test_own_code.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.sources.user_code import import_function
from ringfeed.training.config.own_code import own_code
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.ring.ring import Ring

__all__ = ["Callbacks"]


class Callbacks:
    """The callbacks of one run on one rank; each rank has its own.

    A class of callbacks is called without arguments, another function with `(network, config)`. Its `params` also hold
    `rank` and `ranks`.

    Args:
        config: configuration of the run.
        network: the network, which becomes the callbacks' `model`.
        ring: the ranks.
        steps: steps of an epoch.

    Raises:
        ConfigError: there is no such function, or it returns no callback.
        TrainingError: from any method, a callback fails.
    """

    def __init__(self, config: TrainConfig, network: Any, ring: Ring, steps: int) -> None:
        self._network, self._ring = network, ring
        self._all = {name: _callback(name, network, config) for name in config.callbacks or ()}
        params = {"epochs": config.epochs, "steps": steps, "verbose": 0, "rank": ring.rank, "ranks": ring.size}
        if self._all:
            network.stop_training = False
        for name, callback in self._all.items():
            with own_code("callbacks", name):
                callback.set_params(params)
                callback.set_model(network)
        plain = keras.callbacks.Callback
        methods = [type(callback).on_train_batch_end for callback in self._all.values()]
        self.follows_steps = any(method is not plain.on_train_batch_end for method in methods)

    def call(self, event: str, *args: Any) -> None:
        """Call a method of all callbacks, such as ``on_epoch_end`` with the number of the epoch and its logs."""
        for name, callback in self._all.items():
            with own_code("callbacks", name):
                getattr(callback, event)(*args)

    def end_epoch(self, epoch: int, loss: float | None, evaluation: Mapping[str, Any] | None) -> None:
        """Call ``on_epoch_end`` with the numbers that Keras' `fit` reports: `loss`, and those of the evaluation.

        Args:
            epoch: number of the epoch.
            loss: mean training loss of the last report.
            evaluation: the evaluation at its end, whose metrics get the prefix ``val_``.
        """
        logs = {} if loss is None else {"loss": loss}
        kept = {name: value for name, value in (evaluation or {}).items() if isinstance(value, float)}
        self.call("on_epoch_end", epoch, logs | {f"val_{name}": value for name, value in kept.items()})

    def stop_training(self) -> bool:
        """Return whether a callback of any rank has set `model.stop_training` (a collective if there are any)."""
        if not self._all:
            return False
        own = float(bool(self._network.stop_training))
        (asked,) = self._ring.allreduce_sum([tf.constant(own)])
        return bool(asked > 0.0)


def _callback(name: str, network: Any, config: TrainConfig) -> Any:
    function = import_function("callbacks", name, str(Path.cwd()), example="my_callbacks:Log")
    is_class = isinstance(function, type) and issubclass(function, keras.callbacks.Callback)
    with own_code("callbacks", name):
        callback = function() if is_class else function(network, config)
    if not isinstance(callback, keras.callbacks.Callback):
        raise ConfigError(f"callbacks: {name} must return a keras.callbacks.Callback, got {type(callback).__name__}")
    return callback

"""Callbacks of Keras in a run, by `module:function`.

Tested in tests/training/run/test_own_code.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from ringfeed.training.config.own_code import own_code, own_object
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.reports import events
from ringfeed.training.reports.tracker import Tracker
from ringfeed.training.ring.ring import Ring


class Callbacks(Tracker):
    """The callbacks of one run on one rank; each rank has its own.

    A class of callbacks is called without arguments, another function with `(network, config)`. Its `params` also hold
    `rank` and `ranks`, and its `model` is the network. A TrainingError, from any method, says that a callback fails.
    """

    is_essential = True

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
        self._follows_steps = any(method is not plain.on_train_batch_end for method in methods)

    def _call(self, method: str, *args: Any) -> None:
        for name, callback in self._all.items():
            with own_code("callbacks", name):
                getattr(callback, method)(*args)

    def begin(self, event: events.RunBegan) -> None:
        self._call("on_train_begin", {})

    def begin_epoch(self, event: events.EpochBegan) -> None:
        self._call("on_epoch_begin", event.epoch, {})

    def step(self, event: events.StepDone) -> None:
        """Call ``on_train_batch_end`` with the step's loss, for which it waits."""
        if self._follows_steps:
            self._call("on_train_batch_end", event.epoch_step, {"loss": float(event.loss.numpy())})

    def begin_evaluation(self, event: events.EvaluationBegan) -> None:
        self._call("on_test_begin", {})

    def evaluation(self, event: events.EvaluationDone) -> None:
        self._call("on_test_end", _numbers(event.entry))

    def end_epoch(self, event: events.EpochEnded) -> None:
        """Call ``on_epoch_end`` with what Keras' `fit` reports: `loss`, and the evaluation with the prefix ``val_``."""
        logs = {} if event.loss is None else {"loss": event.loss}
        values = {f"val_{name}": value for name, value in _numbers(event.evaluation or {}).items()}
        self._call("on_epoch_end", event.epoch, logs | values)

    def close(self, event: events.RunEnded) -> None:
        if event.is_finished:
            self._call("on_train_end", {})

    def stop_training(self) -> bool:
        """Return whether a callback of any rank has set `model.stop_training` (a collective if there are any)."""
        if not self._all:
            return False
        own = float(bool(self._network.stop_training))
        (stop_votes,) = self._ring.allreduce_sum([tf.constant(own)])
        return bool(stop_votes > 0.0)


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in entry.items() if isinstance(value, float)}


def _callback(name: str, network: Any, config: TrainConfig) -> Any:
    kind = keras.callbacks.Callback

    def make(function: Any) -> Any:
        return function() if isinstance(function, type) and issubclass(function, kind) else function(network, config)

    return own_object("callbacks", name, make, kind, "keras.callbacks.Callback")

"""A loss of the user, or of Keras, by `module:function`.

Tested in tests/training/run/test_own_code.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.config.loss import LossConfig
from ringfeed.training.config.own_code import import_own, made_by_class, own_code
from ringfeed.training.optimizers.keras_doors import Tensor

from .target import Target

__all__ = ["user_loss"]


def user_loss(config: LossConfig, target: Target) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss that `loss.name` names, as `Loss` has it.

    A class of losses, such as `keras.losses:Huber`, is called with `loss.options`; its losses, and any other function,
    with `(target, outputs)` of a batch. A target and the output of one number have the shape [batch, 1] for a class;
    for a function they are [batch] and [batch, 1]. Both are standardised for a regression. A TrainingError says that
    the function fails, or returns no loss for each sample.
    """
    name: Any = config.name
    function = import_own("loss.name", name)
    made = made_by_class(function, keras.losses.Loss, "loss.name", name, config.options, reduction="none")
    is_class = made is not None
    function, options = (made, {}) if is_class else (function, config.options)

    def loss(outputs: Tensor, truth: Tensor) -> Tensor:
        if target.task == "regression":
            outputs, truth = (_standardised(values, target) for values in (outputs, truth))
        outputs = tf.cast(outputs, tf.float32)
        if is_class and truth.shape.rank == 1 and outputs.shape[-1] == 1:
            truth = truth[:, None]
        with own_code("loss.name", name):
            losses = tf.cast(tf.convert_to_tensor(function(truth, outputs, **options)), tf.float32)
        if losses.shape.rank != 1:
            raise TrainingError(
                f"loss.name {name}: it must return a loss for each sample, of shape [batch], got {losses.shape}"
            )
        return losses

    return loss


def _standardised(values: Tensor, target: Target) -> Tensor:
    return tf.cast((tf.cast(values, tf.float64) - target.mean) / target.std, tf.float32)

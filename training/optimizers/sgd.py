"""SGD, by TensorFlow's fused kernels.

Tested in tests/training/optimizers/test_build.py.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .keras_doors import Tensor, Variable, variable_index
from .rule import tensorflow_variable


@keras.saving.register_keras_serializable(package="ringfeed", name="SGD")
class SGD(keras.optimizers.SGD):  # type: ignore[misc]  # Keras ships no types
    """Keras' SGD, with its state and its rule, but an update is one pass over memory instead of six.

    >>> w = keras.Variable([3.0])
    >>> SGD(0.5, momentum=0.5).apply([tf.constant([2.0])], [w])
    >>> w.numpy().tolist()
    [2.0]
    """

    @classmethod
    def from_options(cls, options: Any, schedule: Any, freeze_step: int | None = None) -> SGD:
        """Return the optimizer of a configuration's options."""
        return cls(schedule, options.momentum, options.nesterov, weight_decay=options.weight_decay or None)

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Tensor) -> None:
        """Apply one step to one variable (called by Keras)."""
        if tf.distribute.has_strategy():
            super().update_step(gradient, variable, learning_rate)
            return
        weights = tensorflow_variable(variable)
        dtype = weights.dtype
        gradient, rate = tf.cast(tf.convert_to_tensor(gradient), dtype), tf.cast(learning_rate, dtype)
        if self.momentum:
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=weights.handle,
                accum=self.momentums[variable_index(self, variable)].value.handle,
                lr=rate,
                grad=gradient,
                momentum=tf.constant(self.momentum, dtype),
                use_nesterov=self.nesterov,
                use_locking=True,
            )
        else:
            tf.raw_ops.ResourceApplyGradientDescent(var=weights.handle, alpha=rate, delta=gradient, use_locking=True)

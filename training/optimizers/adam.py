"""Adam and AdamW, by TensorFlow's fused kernel.

Tested in tests/training/optimizers/test_references.py and tests/training/optimizers/test_stacked.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from .moments import MomentsOptimizer
from .stacked import tensorflow_variable

__all__ = ["Adam"]

Tensor = Any


@keras.saving.register_keras_serializable(package="ringfeed", name="Adam")
class Adam(MomentsOptimizer):
    """Adaptive moments with decoupled weight decay, the same step as Keras' Adam and AdamW.

    For each variable `w` with gradient `g`, at step `t`, counted from 1::

        w = w - learning_rate(t) * weight_decay * w                                          # left out: no decay
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g ** 2
        w = w - learning_rate(t) * sqrt(1 - beta_2 ** t) / (1 - beta_1 ** t) * m / (sqrt(v) + eps)

    Kingma and Ba, "Adam", arXiv 1412.6980, section 2, with `eps` beside the root of the biased moment; the decay is
    that of Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, Algorithm 2.

    Args:
        learning_rate: a float, a `LearningRateSchedule`, or a callable without arguments.
        weight_decay: share of `w` that a step at rate 1 takes away; 0: Adam.
        beta_1, beta_2: decay of the moments, in [0, 1).
        eps: added to the root of the second moment.
        freeze_step: steps after which `v`, and its correction, change no more (1-bit Adam); None: they always do.
        exclude: regular expressions of the paths without decay; `None` leaves out variables of fewer than two
            dimensions.
        name: the optimizer's name.

    Raises:
        ValueError: an argument out of its range.

    >>> w = keras.Variable([[3.0, 4.0]])
    >>> Adam(learning_rate=0.5, weight_decay=0.5).apply([tf.constant([[2.0, -2.0]])], [w])
    >>> [round(float(x), 4) for x in w.numpy()[0]]  # 3 - 0.75 - 0.5, 4 - 1 + 0.5
    [1.75, 3.5]
    """

    slots = (("first_moment", ()), ("second_moment", ()))

    def __init__(
        self,
        learning_rate: float | Callable[..., Any] = 0.001,
        weight_decay: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        eps: float = 1e-7,
        exclude: Sequence[str] | None = None,
        name: str = "adam",
        freeze_step: int | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay, beta_1, beta_2, eps, exclude, name, freeze_step=freeze_step)

    def _backend_update_step(self, grads: Sequence[Tensor], trainable_variables: Any, learning_rate: Tensor) -> None:
        """Apply one step to all variables, one by one: one kernel each, with few passes over memory."""
        if tf.distribute.has_strategy():
            super()._backend_update_step(grads, trainable_variables, learning_rate)
            return
        rates: dict[Any, tuple[Tensor, Tensor]] = {}  # by dtype: those of the decay and of the step
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            index, dtype = self._get_variable_index(variable), tf.as_dtype(variable.dtype)
            if dtype != tf.as_dtype(self._slots[0][index].dtype):
                self.update_step(gradient, variable, learning_rate)
                continue
            if dtype not in rates:
                rate = tf.cast(learning_rate, dtype)
                rates[dtype] = rate * self.decay_rate, rate * self._correction(dtype)
            decay, rate = rates[dtype]
            weights = tensorflow_variable(variable)
            if self._decays[index] and self.decay_rate:
                weights.assign_sub(decay * weights)
            self._apply_fused(index, weights, tf.cast(tf.convert_to_tensor(gradient), dtype), rate)

    def _apply_fused(self, index: int, weights: Any, gradient: Tensor, rate: Tensor) -> None:
        dtype = gradient.dtype
        beta_2 = tf.constant(self.beta_2, dtype)
        if self.freeze_step is not None:
            beta_2 = tf.where(self.iterations.value < self.freeze_step, beta_2, tf.ones([], dtype))
        first, second = (slot[index].value for slot in self._slots)
        none = tf.zeros([], dtype)  # the powers of the betas, so that the kernel corrects nothing: `rate` has it
        tf.raw_ops.ResourceApplyAdam(
            var=weights.handle,
            m=first.handle,
            v=second.handle,
            beta1_power=none,
            beta2_power=none,
            lr=rate,
            beta1=tf.constant(self.beta_1, dtype),
            beta2=beta_2,
            epsilon=tf.constant(self.eps, dtype),
            grad=gradient,
            use_locking=True,
        )

    def _correction(self, dtype: Any) -> Tensor:
        """The correction of both moments' bias, of betas as `dtype` holds them: those of the kernel."""
        beta_1, beta_2 = (float(dtype.as_numpy_dtype(beta)) for beta in (self.beta_1, self.beta_2))
        return tf.cast(tf.sqrt(self.share(beta_2, self.freeze_step)) / self.share(beta_1), dtype)

    def updated(
        self, weights: Tensor, gradient: Tensor, slots: Sequence[Tensor], rate: Tensor, *, decays: bool, adapts: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """One step of a stack of variables."""
        first, second = self.moments(gradient, *slots)
        if decays and self.decay_rate:
            weights -= rate * self.decay_rate * weights
        step = rate * self._correction(weights.dtype) * first / (tf.sqrt(second) + self.eps)
        return weights - step, [first, second]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, for Keras to save and restore."""
        config = super().get_config()
        del config["exclude_ratio"]
        return config

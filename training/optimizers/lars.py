"""LARS: momentum SGD whose step is scaled layer by layer, for very large batches.

Published variants differ. This one is that of `optax.lars`: Algorithm 1 of the paper, with the norm of the *decayed*
gradient in the denominator and the learning rate inside the momentum. It is not LAMB, and it reduces no gradients
across ranks (`distributed` does).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

__all__ = ["LARS", "is_adapted"]

Tensor = Any
Variable = Any


def trust_ratio(weights: Tensor, update: Tensor, trust_coefficient: float, eps: float) -> Tensor:
    """`trust_coefficient * |w| / (|u| + eps)`, or 1 where either norm is zero.

    Args:
        weights: the layer's weights, any shape.
        update: gradient plus weight decay, same shape and dtype.

    Returns:
        A scalar of the same dtype.

    >>> round(float(trust_ratio(tf.constant([3.0, 4.0]), tf.constant([0.0, 2.0]), 0.01, 0.0)), 6)  # 0.01 * 5 / 2
    0.025
    >>> float(trust_ratio(tf.zeros(2), tf.ones(2), 0.01, 0.0))
    1.0
    """
    weight_norm = tf.norm(weights)
    update_norm = tf.norm(update)
    is_zero = tf.logical_or(tf.equal(weight_norm, 0), tf.equal(update_norm, 0))
    ratio = (
        tf.constant(trust_coefficient, weights.dtype) * weight_norm / (update_norm + tf.constant(eps, weights.dtype))
    )
    return tf.where(is_zero, tf.ones_like(ratio), ratio)


def is_adapted(path: str, shape: Sequence[int], exclude: Sequence[str] | None) -> bool:
    """Whether a variable gets the trust ratio and weight decay.

    Args:
        path: the variable's path in the model, such as `dense/kernel`.
        shape: its shape.
        exclude: regular expressions searched in `path`; `None` is the default rule, which leaves out what has
            fewer than two dimensions: biases, and the scale and offset of normalisation layers.

    >>> is_adapted("dense/kernel", (3, 4), None), is_adapted("dense/bias", (4,), None)
    (True, False)
    >>> is_adapted("embedding/embeddings", (9, 4), ["embedding"]), is_adapted("dense/bias", (4,), [])
    (False, True)
    """
    if exclude is None:
        return len(shape) >= 2
    return not any(re.search(pattern, path) for pattern in exclude)


def _check(name: str, value: float, rule: str, holds: bool) -> None:
    if not holds:
        raise ValueError(f"LARS: {name} must be {rule}, got {value!r}")


@keras.saving.register_keras_serializable(package="ringfeed", name="LARS")
class LARS(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras ships no types
    """Layer-wise adaptive rate scaling, equal to `optax.lars` step by step.

    For each variable `w` with gradient `g`, at step `t`::

        u = g + weight_decay * w                               # left out: u = g
        r = trust_coefficient * |w| / (|u| + eps)              # left out, or a norm is zero: r = 1
        v = momentum * v + learning_rate(t) * r * u
        w = w - v                                              # nesterov: w - (momentum * v + learning_rate * r * u)

    You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", arXiv 1708.03888, Algorithm 1, in the
    variant of `optax.lars`: the paper divides by `|g| + weight_decay * |w|` and has no eps. Biases and
    normalisation parameters get neither decay nor trust ratio (see `is_adapted`), as in MLPerf; `optax.lars` does
    the same when its two masks say so.

    All arithmetic and the momentum are float32 (float64 for float64 variables), whatever the gradient's dtype.

    Args:
        learning_rate: a float, a `LearningRateSchedule`, or a callable without arguments.
        weight_decay: factor of `w` added to the gradient, before the norm.
        trust_coefficient: the paper's eta.
        eps: added to the denominator of the trust ratio.
        momentum: decay of the velocity, in [0, 1).
        nesterov: look ahead along the velocity.
        exclude: regular expressions of the paths left out; `None` leaves out variables of fewer than two dimensions.
        name: the optimizer's name.

    Raises:
        ValueError: an argument out of its range.

    >>> w = keras.Variable([[3.0, 4.0]])
    >>> LARS(learning_rate=1.0, trust_coefficient=0.1, momentum=0.0).apply([tf.constant([[0.0, 2.0]])], [w])
    >>> [round(float(x), 6) for x in w.numpy()[0]]  # 4 - 1.0 * (0.1 * 5 / 2) * 2
    [3.0, 3.5]
    """

    def __init__(
        self,
        learning_rate: float | Callable[..., Any] = 0.001,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 0.0,
        momentum: float = 0.9,
        nesterov: bool = False,
        exclude: Sequence[str] | None = None,
        name: str = "lars",
    ) -> None:
        _check("weight_decay", weight_decay, "at least 0", weight_decay >= 0)
        _check("trust_coefficient", trust_coefficient, "above 0", trust_coefficient > 0)
        _check("eps", eps, "at least 0", eps >= 0)
        _check("momentum", momentum, "in [0, 1)", 0 <= momentum < 1)
        # Keras' own weight_decay is decoupled (it bypasses the trust ratio and the momentum), so the base gets none.
        super().__init__(learning_rate=learning_rate, name=name)
        self.decay_rate = float(weight_decay)
        self.trust_coefficient = float(trust_coefficient)
        self.eps = float(eps)
        self.momentum = float(momentum)
        self.nesterov = bool(nesterov)
        self.exclude = None if exclude is None else list(exclude)

    def build(self, variables: Sequence[Variable]) -> None:
        """Create a velocity for each variable, and note which variables are adapted."""
        if self.built:
            return
        super().build(variables)
        self._velocities = [
            self.add_variable(shape=v.shape, dtype=_compute_dtype(v.dtype), name=f"{v.path.replace('/', '_')}_velocity")
            for v in variables
        ]
        self._is_adapted = [is_adapted(v.path, v.shape, self.exclude) for v in variables]

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Tensor) -> None:
        """Apply one step to one variable (called by Keras)."""
        index = self._get_variable_index(variable)
        velocity = self._velocities[index]
        weights = tf.cast(variable, velocity.dtype)
        step = self._scaled(tf.cast(gradient, velocity.dtype), weights, self._is_adapted[index])
        step *= tf.cast(learning_rate, velocity.dtype)
        decay = tf.constant(self.momentum, velocity.dtype)
        moved = decay * velocity.value + step
        self.assign(velocity, moved)
        self.assign(variable, weights - (decay * moved + step if self.nesterov else moved))

    def _scaled(self, gradient: Tensor, weights: Tensor, adapted: bool) -> Tensor:
        if not adapted:
            return gradient
        update = gradient + tf.constant(self.decay_rate, weights.dtype) * weights
        return update * trust_ratio(weights, update, self.trust_coefficient, self.eps)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, for Keras to save and restore."""
        base = super().get_config()
        return {
            "name": base["name"],
            "learning_rate": base["learning_rate"],
            "weight_decay": self.decay_rate,
            "trust_coefficient": self.trust_coefficient,
            "eps": self.eps,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "exclude": None if self.exclude is None else list(self.exclude),
        }


def _compute_dtype(dtype: Any) -> str:
    name = keras.backend.standardize_dtype(dtype)
    return "float64" if name == "float64" else "float32"

"""LARS: momentum SGD whose step is scaled layer by layer, for very large batches.

Published variants differ: see `VARIANTS`. It is not LAMB, and it reduces no gradients across ranks (`ring` does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from .norms import layer_norms, trust_ratio
from .stacked import StackedOptimizer, check_argument

__all__ = ["LARS"]

Tensor = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """What a variant of LARS does.

    Attributes:
        norms_apart: whether the trust ratio divides by `|g| + weight_decay |w|`, or by the norm of their sum.
        rate_inside: whether the learning rate multiplies what enters the velocity, or the velocity.
        ratio_last: whether the trust ratio is of the velocity, not of the gradient.
        clips: whether the ratio is at most 1 / learning rate, and layers with a zero norm are not decayed.
    """

    norms_apart: bool = False
    rate_inside: bool = True
    ratio_last: bool = False
    clips: bool = False


VARIANTS = {
    "optax": _Variant(),
    "paper": _Variant(norms_apart=True),
    "mlperf": _Variant(norms_apart=True),
    "mlperf-unscaled": _Variant(norms_apart=True, rate_inside=False),
    "tf-models": _Variant(),
    "tf-models-popular": _Variant(rate_inside=False, ratio_last=True),
    "larc": _Variant(norms_apart=True, rate_inside=False, clips=True),
}


@keras.saving.register_keras_serializable(package="ringfeed", name="LARS")
class LARS(StackedOptimizer):
    """Layer-wise adaptive rate scaling, by default equal to `optax.lars` step by step.

    For each variable `w` with gradient `g`, at step `t`::

        u = g + weight_decay * w                               # left out: u = g
        r = trust_coefficient * |w| / (|u| + eps)              # left out, or a norm is zero: r = 1
        v = momentum * v + learning_rate(t) * r * u
        w = w - v                                              # nesterov: w - (momentum * v + learning_rate * r * u)

    You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", arXiv 1708.03888, Algorithm 1. Biases
    and normalisation parameters get neither decay nor trust ratio (see `is_adapted`), as in MLPerf; `optax.lars` does
    the same when its two masks say so. The variants:

    - `optax`: as above, of `optax.lars`; `tf-models` is the same, of `official/modeling/optimization/lars.py`.
    - `paper`, `mlperf`: ``r = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps)``, the paper without eps.
    - `mlperf-unscaled`: that `r`, with the learning rate outside the velocity, ``v = momentum * v + r * u`` and
      ``w = w - learning_rate * v`` (Kumar et al., arXiv 1909.09756, "unscaled momentum").
    - `tf-models-popular`: ``v = momentum * v + u`` and ``w = w - learning_rate * r * v``, with `r` of `v` in place of
      `u` (`classic_momentum=False`).
    - `larc`: as `mlperf-unscaled`, with ``min(r / learning_rate, 1)`` for `r`, and no decay where a norm is zero
      (`apex.parallel.LARC`, clip mode).

    Args:
        learning_rate: a float, a `LearningRateSchedule`, or a callable without arguments.
        weight_decay: factor of `w` added to the gradient, before the norm.
        trust_coefficient: the paper's eta.
        eps: added to the denominator of the trust ratio.
        momentum: decay of the velocity, in [0, 1).
        nesterov: look ahead along the velocity.
        exclude: regular expressions of the paths left out; `None` leaves out variables of fewer than two dimensions.
        name: the optimizer's name.
        variant: one of `VARIANTS`.
        exclude_ratio: regular expressions of the paths without trust ratio; `None`: those of `exclude`.

    Raises:
        ValueError: an argument out of its range.

    >>> w = keras.Variable([[3.0, 4.0]])
    >>> LARS(learning_rate=1.0, trust_coefficient=0.1, momentum=0.0).apply([tf.constant([[0.0, 2.0]])], [w])
    >>> [round(float(x), 6) for x in w.numpy()[0]]  # 4 - 1.0 * (0.1 * 5 / 2) * 2
    [3.0, 3.5]
    """

    slots = (("velocity", ()),)

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
        variant: str = "optax",
        exclude_ratio: Sequence[str] | None = None,
    ) -> None:
        check_argument("LARS", "weight_decay", weight_decay, "at least 0", weight_decay >= 0)
        check_argument("LARS", "trust_coefficient", trust_coefficient, "above 0", trust_coefficient > 0)
        check_argument("LARS", "eps", eps, "at least 0", eps >= 0)
        check_argument("LARS", "momentum", momentum, "in [0, 1)", 0 <= momentum < 1)
        if variant not in VARIANTS:
            raise ValueError(f"LARS: variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
        super().__init__(learning_rate, name, exclude, exclude_ratio)
        self.decay_rate = float(weight_decay)
        self.trust_coefficient = float(trust_coefficient)
        self.eps = float(eps)
        self.momentum = float(momentum)
        self.nesterov = bool(nesterov)
        self.variant = variant

    def updated(
        self, weights: Tensor, gradient: Tensor, slots: Sequence[Tensor], rate: Tensor, *, decays: bool, adapts: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """One step of a stack of variables."""
        (velocity,), rule = slots, VARIANTS[self.variant]
        step = gradient + self.decay_rate * weights if decays else gradient
        if adapts and not rule.ratio_last:
            step = self._scaled(weights, gradient, step, rate, self.decay_rate if decays else 0.0)
        if rule.rate_inside:
            step *= rate
        velocity = self.momentum * velocity + step
        moved = self.momentum * velocity + step if self.nesterov else velocity
        if adapts and rule.ratio_last:
            moved *= rate * self._ratio(layer_norms(weights), layer_norms(moved))
        elif not rule.rate_inside:
            moved *= rate
        return weights - moved, [velocity]

    def _scaled(self, weights: Tensor, gradient: Tensor, update: Tensor, rate: Tensor, decay: float) -> Tensor:
        """Return the trust ratio times the decayed gradient `update`."""
        rule, weight_norm = VARIANTS[self.variant], layer_norms(weights)
        if not rule.norms_apart:
            return update * self._ratio(weight_norm, layer_norms(update))
        gradient_norm = layer_norms(gradient)
        ratio = self._ratio(weight_norm, gradient_norm, decay)
        if not rule.clips:
            return update * ratio
        is_zero = tf.logical_or(tf.equal(weight_norm, 0), tf.equal(gradient_norm, 0))
        return tf.where(is_zero, gradient, update * tf.minimum(ratio / rate, 1.0))

    def _ratio(self, weight_norm: Tensor, norm: Tensor, decay: float = 0.0) -> Tensor:
        denominator = (norm + decay * weight_norm if decay else norm) + self.eps
        is_zero = tf.equal(norm, 0)
        return trust_ratio(self.trust_coefficient * weight_norm, tf.where(is_zero, tf.zeros_like(norm), denominator))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, for Keras to save and restore."""
        return {
            **super().get_config(),
            "weight_decay": self.decay_rate,
            "trust_coefficient": self.trust_coefficient,
            "eps": self.eps,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "variant": self.variant,
        }

"""LARS: momentum SGD whose step is scaled layer by layer, for very large batches.

Published variants differ: see `VARIANTS`. It is not LAMB, and it reduces no gradients across ranks (`ring` does).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import keras
import tensorflow as tf

from ringfeed.training.config.optimizers import LARSConfig

from .keras_doors import Tensor
from .norms import layer_norms, trust_ratio
from .rule import Rule, RuleOptimizer, RuleStep, Slots, make_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    # Whether the trust ratio divides by `|g| + weight_decay |w|`, or by the norm of their sum
    norms_apart: bool = False
    rate_inside: bool = True  # whether the learning rate multiplies what enters the velocity, or the velocity
    ratio_last: bool = False  # whether the trust ratio is taken of the velocity, or of the gradient
    clips: bool = False  # whether the ratio is at most 1 / learning rate, and layers with a zero norm are not decayed


VARIANTS = {
    "optax": _Variant(),
    "mlperf": _Variant(norms_apart=True),
    "mlperf-unscaled": _Variant(norms_apart=True, rate_inside=False),
    "tf-models-popular": _Variant(rate_inside=False, ratio_last=True),
    "larc": _Variant(norms_apart=True, rate_inside=False, clips=True),
}


@dataclass(frozen=True)
class LARSRule(Rule):
    """Momentum SGD with a rate for each layer: see `LARS`."""

    keras_name: ClassVar[str] = "lars"
    slots: ClassVar[Mapping[str, tuple[int, ...]]] = {"velocity": ()}

    @property
    def _variant(self) -> _Variant:
        return VARIANTS[self.options.variant or "optax"]

    def updated(self, weights: Tensor, gradient: Tensor, slots: Slots, step: RuleStep) -> tuple[Tensor, Slots]:
        (velocity,), rule, momentum = slots, self._variant, self.options.momentum
        decay = self.options.weight_decay if step.decays else 0.0
        entering = gradient + decay * weights if step.decays else gradient
        if step.adapts and not rule.ratio_last:
            entering = self._scaled(weights, gradient, entering, step.rate, decay)
        if rule.rate_inside:
            entering *= step.rate
        velocity = momentum * velocity + entering
        moved = momentum * velocity + entering if self.options.nesterov else velocity
        if step.adapts and rule.ratio_last:
            moved *= step.rate * self._ratio(layer_norms(weights), layer_norms(moved))
        elif not rule.rate_inside:
            moved *= step.rate
        return weights - moved, [velocity]

    def _scaled(self, weights: Tensor, gradient: Tensor, update: Tensor, rate: Tensor, decay: float) -> Tensor:
        """Return the trust ratio times the decayed gradient `update`."""
        rule, weight_norm = self._variant, layer_norms(weights)
        if not rule.norms_apart:
            return update * self._ratio(weight_norm, layer_norms(update))
        gradient_norm = layer_norms(gradient)
        ratio = self._ratio(weight_norm, gradient_norm, decay)
        if not rule.clips:
            return update * ratio
        is_zero = tf.logical_or(tf.equal(weight_norm, 0), tf.equal(gradient_norm, 0))
        return tf.where(is_zero, gradient, update * tf.minimum(ratio / rate, 1.0))

    def _ratio(self, weight_norm: Tensor, norm: Tensor, decay: float = 0.0) -> Tensor:
        denominator = (norm + decay * weight_norm if decay else norm) + self.options.epsilon
        is_zero = tf.equal(norm, 0)
        return trust_ratio(
            self.options.trust_coefficient * weight_norm, tf.where(is_zero, tf.zeros_like(norm), denominator)
        )


class LARSOptions(TypedDict, total=False):
    """The options of `LARS` beside the learning rate, and their types; see there."""

    trust_coefficient: float
    eps: float
    momentum: float
    nesterov: bool
    exclude: Sequence[str] | None
    variant: str
    exclude_ratio: Sequence[str] | None


@keras.saving.register_keras_serializable(package="ringfeed", name="LARS")
class LARS(RuleOptimizer):
    """Layer-wise adaptive rate scaling, by default equal to `optax.lars` step by step.

    For each variable `w` with gradient `g`, at step `t`::

        u = g + weight_decay * w                               # left out: u = g
        r = trust_coefficient * |w| / (|u| + eps)              # left out, or a norm is zero: r = 1
        v = momentum * v + learning_rate(t) * r * u
        w = w - v                                              # nesterov: w - (momentum * v + learning_rate * r * u)

    You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", arXiv 1708.03888, Algorithm 1. Biases
    and normalisation parameters get neither decay nor trust ratio (see `is_adapted`), as in MLPerf; `optax.lars` does
    the same when its two masks say so. The variants:

    - `optax`: as above, in `optax.lars` and `official/modeling/optimization/lars.py`.
    - `mlperf`: ``r = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps)``; the paper's eps is 0.
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
        exclude_ratio: regular expressions of the paths without trust ratio; `None`: `exclude`.

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
        *,
        name: str = "lars",
        **options: Unpack[LARSOptions],
    ) -> None:
        given = {"eps": 0.0, "variant": "optax", "weight_decay": weight_decay, **options}
        super().__init__(learning_rate, LARSRule(make_options(LARSConfig, "LARS", given)), name)

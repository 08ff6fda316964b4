"""Adam and AdamW, by TensorFlow's fused kernel.

Tested in tests/training/optimizers/test_references.py and tests/training/optimizers/test_rule.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import tensorflow as tf

from ringfeed.training.config.optimizers import AdamWConfig

from .keras_doors import Tensor, Variable
from .rule import Rule, RuleOptimizer, RuleStep, Slots, correction, make_options, next_moments


@dataclass(frozen=True)
class AdamRule(Rule):
    """Adaptive moments with decoupled weight decay: see `Adam`."""

    keras_name: ClassVar[str] = "adam"
    slots: ClassVar[Mapping[str, tuple[int, ...]]] = {"first_moment": (), "second_moment": ()}

    freeze_step: int | None = None  # steps after which the second moment changes no more (1-bit Adam); None: it does

    def __post_init__(self) -> None:
        if self.freeze_step is not None and self.freeze_step < 1:
            raise ValueError(f"{self.keras_name}: freeze_step must be at least 1, got {self.freeze_step!r}")

    @classmethod
    def from_options(cls, options: Any, schedule: Any, freeze_step: int | None = None) -> RuleOptimizer:
        return RuleOptimizer(schedule, cls(options, freeze_step))

    def updated(self, weights: Tensor, gradient: Tensor, slots: Slots, step: RuleStep) -> tuple[Tensor, Slots]:
        first, second = next_moments(self.options, gradient, (slots[0], slots[1]))
        if self.freeze_step is not None:
            second = tf.where(step.number < self.freeze_step, second, slots[1])
        if step.decays and self.options.weight_decay:
            weights -= step.rate * self.options.weight_decay * weights
        change = self._rate(step) * first / (tf.sqrt(second) + self.options.epsilon)
        return weights - change, [first, second]

    def update_in_place(self, weights: Variable, gradient: Tensor, slots: Sequence[Variable], step: RuleStep) -> bool:
        """Apply one step to one variable: one kernel, with few passes over memory."""
        dtype = weights.dtype
        if step.decays and self.options.weight_decay:
            decay = step.once("decay", lambda: step.rate * self.options.weight_decay)
            weights.assign_sub(decay * weights)
        beta_2 = tf.constant(self.options.beta_2, dtype)
        if self.freeze_step is not None:
            beta_2 = tf.where(step.number < self.freeze_step, beta_2, tf.ones([], dtype))
        none = tf.zeros([], dtype)  # the powers of the betas, so that the kernel corrects nothing: `lr` has it
        tf.raw_ops.ResourceApplyAdam(
            var=weights.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=none,
            beta2_power=none,
            lr=self._rate(step),
            beta1=tf.constant(self.options.beta_1, dtype),
            beta2=beta_2,
            epsilon=tf.constant(self.options.epsilon, dtype),
            grad=tf.cast(tf.convert_to_tensor(gradient), dtype),
            use_locking=True,
        )
        return True

    def _rate(self, step: RuleStep) -> Tensor:
        """The rate with the correction of both moments' bias, for betas as the kernel's dtype holds them."""

        def corrected() -> Tensor:
            as_held = step.rate.dtype.as_numpy_dtype
            beta_1, beta_2 = (float(as_held(beta)) for beta in (self.options.beta_1, self.options.beta_2))
            root = tf.sqrt(correction(beta_2, step.number, self.freeze_step))
            return step.rate * tf.cast(root / correction(beta_1, step.number), step.rate.dtype)

        return step.once("corrected", corrected)


@keras.saving.register_keras_serializable(package="ringfeed", name="Adam")
class Adam(RuleOptimizer):
    """Adaptive moments with decoupled weight decay, the same step as Keras' Adam and AdamW.

    For each variable `w` with gradient `g`, at step `t`, counted from 1::

        w = w - learning_rate(t) * weight_decay * w                                          # left out: no decay
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g ** 2
        w = w - learning_rate(t) * sqrt(1 - beta_2 ** t) / (1 - beta_1 ** t) * m / (sqrt(v) + eps)

    Kingma and Ba, "Adam", arXiv 1412.6980, section 2, with `eps` beside the root of the biased moment; decay as in
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, Algorithm 2.

    Args:
        learning_rate: a float, a `LearningRateSchedule`, or a callable without arguments.
        weight_decay: share of `w` that a step at rate 1 takes away; 0: Adam.
        beta_1, beta_2: decay of the moments, in [0, 1).
        eps: added to the root of the second moment.
        exclude: regular expressions of the paths without decay; `None` leaves out variables of fewer than two
            dimensions.
        name: the optimizer's name.
        freeze_step: steps after which `v`, and its correction, change no more (1-bit Adam); None: they always do.

    Raises:
        ValueError: an argument out of its range.

    >>> w = keras.Variable([[3.0, 4.0]])
    >>> Adam(learning_rate=0.5, weight_decay=0.5).apply([tf.constant([[2.0, -2.0]])], [w])
    >>> [round(float(x), 4) for x in w.numpy()[0]]  # 3 - 0.75 - 0.5, 4 - 1 + 0.5
    [1.75, 3.5]
    """

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
        given = {"weight_decay": weight_decay, "beta_1": beta_1, "beta_2": beta_2, "eps": eps, "exclude": exclude}
        super().__init__(learning_rate, AdamRule(make_options(AdamWConfig, "Adam", given), freeze_step), name)

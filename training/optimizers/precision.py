"""Mixed precision: the dtype that layers compute in, and the dynamic loss scale that float16 needs.

Variables, gradients after the reduction, and optimizer state stay float32 ("master weights"): Micikevicius et al.,
"Mixed Precision Training", arXiv 1710.03740, sections 3.1 and 3.2. bfloat16 has float32's range and needs no scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from .keras_doors import Tensor

_POLICIES = {"float32": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}


@contextmanager
def compute_dtype(precision: str) -> Iterator[None]:
    """Make layers that are built in the body compute in a precision, and keep their variables in float32.

    >>> with compute_dtype("bfloat16"):
    ...     layer = keras.layers.Dense(1)
    >>> layer.compute_dtype, layer.variable_dtype
    ('bfloat16', 'float32')
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[precision])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRule:
    """The rule of a dynamic loss scale.

    The defaults are as in Keras' LossScaleOptimizer and PyTorch's GradScaler (growth interval 2000, factor 2).

    Args:
        initial: first scale; a power of two, so that scaling loses no bits.
        growth_interval: finite steps before the scale doubles.
        smallest: least scale; an overflow at this scale is an error of the run.

    Raises:
        ValueError: an argument is out of its range.

    >>> ScaleRule(initial=1024.0)
    ScaleRule(initial=1024.0, growth_interval=2000, smallest=1.0)
    """

    initial: float = 2.0**15
    growth_interval: int = 2000
    smallest: float = 1.0

    def __post_init__(self) -> None:
        if self.initial < self.smallest or self.smallest <= 0:
            raise ValueError(
                f"loss scale: initial must be at least smallest, above 0, got {self.initial} and {self.smallest}"
            )
        if self.growth_interval < 1:
            raise ValueError(f"loss scale: growth_interval must be at least 1, got {self.growth_interval}")


def next_scale(scale: Tensor, good_steps: Tensor, is_finite: Tensor, rule: ScaleRule) -> tuple[Tensor, Tensor]:
    """Return the loss scale after a step: doubled after `growth_interval` finite steps in a row, halved at an overflow.

    `good_steps`, int64, also returned, are the finite steps since the scale last changed; `is_finite` is whether this
    step's gradients were finite on all ranks.

    >>> rule = ScaleRule(growth_interval=2)
    >>> [float(x) for x in next_scale(tf.constant(8.0), tf.constant(1, tf.int64), tf.constant(True), rule)]
    [16.0, 0.0]
    >>> [float(x) for x in next_scale(tf.constant(8.0), tf.constant(1, tf.int64), tf.constant(False), rule)]
    [4.0, 0.0]
    """
    grows = tf.logical_and(is_finite, good_steps + 1 >= rule.growth_interval)
    kept = tf.where(is_finite, scale, tf.maximum(scale / 2, rule.smallest))
    doubled = tf.minimum(scale * 2, tf.constant(2.0**126, scale.dtype))
    counted = tf.where(tf.logical_and(is_finite, tf.logical_not(grows)), good_steps + 1, tf.zeros_like(good_steps))
    return tf.where(grows, doubled, kept), counted


class LossScale:
    """The state of a dynamic loss scale: `scale` (float32) and `good_steps` (int64).

    Args:
        rule: rule of the scale; None: the fixed scale 1 of float32 and bfloat16.

    >>> from ringfeed.training import ScaleRule
    >>> import tensorflow as tf
    >>> float(LossScale(ScaleRule(initial=8.0)).scaled(tf.constant(0.5)))
    4.0
    """

    def __init__(self, rule: ScaleRule | None) -> None:
        self.rule = rule
        self.scale = tf.Variable(rule.initial if rule else 1.0, trainable=False, dtype=tf.float32, name="loss_scale")
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="loss_scale_good_steps")

    @classmethod
    def for_precision(cls, precision: str, rule: ScaleRule) -> LossScale:
        """Return a dynamic scale for float16, else the fixed scale 1."""
        return cls(rule if precision == "float16" else None)

    @property
    def variables(self) -> list[Any]:
        """The variables that a checkpoint holds."""
        return [self.scale, self.good_steps]

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to differentiate."""
        return loss * tf.cast(self.scale, loss.dtype) if self.rule else loss

    def unscaled(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the loss itself, from the scaled loss's."""
        return [g / tf.cast(self.scale, g.dtype) for g in gradients] if self.rule else list(gradients)

    def update(self, is_finite: Tensor) -> None:
        """Update the scale after a step."""
        if self.rule:
            scale, good_steps = next_scale(self.scale, self.good_steps, is_finite, self.rule)
            self.scale.assign(scale)
            self.good_steps.assign(good_steps)


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Return a bool scalar: whether no tensor has a NaN or an infinity.

    >>> bool(all_finite([tf.ones(2), tf.constant([1.0, float("inf")])])), bool(all_finite([]))
    (False, True)
    """
    checks = [tf.reduce_all(tf.math.is_finite(t)) for t in tensors]
    return tf.reduce_all(tf.stack(checks)) if checks else tf.constant(True)

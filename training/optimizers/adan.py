"""Adan: Nesterov's momentum for adaptive steps, from differences of gradients. Xie et al., arXiv 2208.06677."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from .keras_doors import Tensor
from .rule import Rule, RuleStep, Slots, correction


@dataclass(frozen=True)
class AdanRule(Rule):
    """Averages of gradients, of their differences, and of squares of gradients that look ahead by the differences.

    For each variable `w` with gradient `g`, at step `t`, counted from 1, with `d` the change of `g` since the step
    before, 0 in the first::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * d
        n = beta_3 * n + (1 - beta_3) * (g + beta_2 * d) ** 2
        u = (m / (1 - beta_1 ** t) + beta_2 * v / (1 - beta_2 ** t)) / (sqrt(n / (1 - beta_3 ** t)) + eps)
        w = (w - learning_rate(t) * u) / (1 + learning_rate(t) * weight_decay)               # left out: no decay

    Algorithm 1, whose betas are 1 minus these, with the corrections of the authors' code (github.com/sail-sg/Adan).

    >>> from ringfeed.training.config.optimizers import AdanConfig
    >>> rule, one = AdanRule(AdanConfig()), tf.constant([2.0])
    >>> step = RuleStep(rate=tf.constant(0.5), number=tf.constant(0, tf.int64))
    >>> round(float(rule.updated(one, one, [tf.zeros(1)] * 4, step)[0][0]), 4)  # the first step is by the rate
    1.5
    """

    keras_name: ClassVar[str] = "adan"
    slots: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "first_moment": (), "difference": (), "second_moment": (), "last_gradient": ()
    }  # fmt: skip

    def updated(self, weights: Tensor, gradient: Tensor, slots: Slots, step: RuleStep) -> tuple[Tensor, Slots]:
        options, (first, average, second, last) = self.options, slots
        beta_1, beta_2, beta_3 = options.beta_1, options.beta_2, options.beta_3
        difference = tf.where(step.number > 0, gradient - last, tf.zeros_like(gradient))
        first = beta_1 * first + (1 - beta_1) * gradient
        average = beta_2 * average + (1 - beta_2) * difference
        second = beta_3 * second + (1 - beta_3) * tf.square(gradient + beta_2 * difference)
        ahead = first / self._share(beta_1, step) + beta_2 * average / self._share(beta_2, step)
        update = ahead / (tf.sqrt(second / self._share(beta_3, step)) + options.epsilon)
        decay = options.weight_decay if step.decays else 0.0
        return (weights - step.rate * update) / (1 + step.rate * decay), [first, average, second, gradient]

    def _share(self, beta: float, step: RuleStep) -> Tensor:
        return step.once(f"share of {beta}", lambda: tf.cast(correction(beta, step.number), step.rate.dtype))

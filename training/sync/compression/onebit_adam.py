"""1-bit Adam: Adam's steps as signs, once its second moment is frozen. Tang et al., arXiv 2102.02888, Algorithm 1.

From then on Adam is SGD with momentum, with a fixed rate for each entry that all ranks know. So it sends the signs of
``m / (sqrt(v) + eps)``, where the paper sends the signs of ``m``, which move an entry with a small `v` by the mean
magnitude of its block over that small root: with them the network of docs/synchronisation.md did not learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.config.compression import OneBitConfig
from ringfeed.training.ring.ring import Ring
from ringfeed.training.sync.synchronizer import Exchange, SyncRun

from .base import Tensor, Variable
from .onebit import OneBit
from .sign_momentum import SignMomentum
from .two_stage import TwoStage

__all__ = ["OneBitAdam", "build"]


def build(run: SyncRun, options: OneBitConfig) -> TwoStage:
    optimizer: Any = run.config.optimizer
    if optimizer.name == "sgd":
        start, nesterov = run.start_step, optimizer.nesterov
        return SignMomentum(run.ring, momentum=optimizer.momentum, nesterov=nesterov, start_step=start)
    return OneBitAdam(run.ring, beta_1=optimizer.beta_1, eps=optimizer.epsilon, start_step=run.start_step)


class OneBitAdam(TwoStage):
    """The mean of the ranks' momenta, as signs and scales in both stages, with error feedback.

    It returns the gradient that takes the optimizer's momentum to that mean, ``(mean - beta_1 * m) / (1 - beta_1)``, as
    1-bit LAMB does (Li et al., arXiv 2104.06069, Algorithm 1). Entries whose `v` is 0, since they never had a gradient,
    do not move. The optimizer is one by the rule of Adam or LAMB with `freeze_step=start_step`.
    """

    def __init__(self, ring: Ring, *, beta_1: float, eps: float, start_step: int) -> None:
        super().__init__(ring, OneBit(), error_feedback=True, start_step=start_step)
        self._beta, self._eps = beta_1, eps

    def build(self, variables: Sequence[Variable], optimizer: Any = None) -> None:
        """Create the residuals of both stages; `optimizer`, which keeps the moments, is a `RuleOptimizer`."""
        super().build(variables)
        self._optimizer, self._matrices = optimizer, [variables[i] for i in self._places]

    def compressed_means(self, tensors: list[Tensor], others: Exchange, step: Tensor) -> tuple[list[Tensor], Exchange]:
        """The gradients that the mean momenta stand for."""
        momenta, scales = [], []
        for variable in self._matrices:
            first, second = self._optimizer.moments(variable)
            momenta.append(self._beta * first)
            scales.append(tf.where(second > 0, tf.sqrt(second) + self._eps, 0.0))
        sent = [
            tf.math.divide_no_nan(momentum + (1 - self._beta) * tensor, scale)
            for momentum, tensor, scale in zip(momenta, tensors, scales, strict=True)
        ]
        means, others = super().compressed_means(sent, others, step)
        gradients = [
            (mean * scale - momentum) / (1 - self._beta)
            for mean, momentum, scale in zip(means, momenta, scales, strict=True)
        ]
        return gradients, others

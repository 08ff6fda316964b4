"""Momentum on each rank, sent as signs: 1-bit SGD with momentum, by the stages of 1-bit Adam (arXiv 2102.02888).

Signs give each entry of a block the same size, so they suit momenta, which average the noise of batches, better than
gradients. With momentum after the average, the network of docs/synchronisation.md did not learn.
Tested in tests/training/sync/compression/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ringfeed.training.ring.ring import Ring
from ringfeed.training.sync.synchronizer import Array, EveryStep, Exchange

from .base import Tensor, Variable
from .dgc import DGCRule, accumulate
from .onebit import OneBit
from .two_stage import TwoStage

__all__ = ["SignMomentum"]


class SignMomentum(TwoStage):
    """The mean of the ranks' momenta, as signs and scales in both stages, with error feedback.

    The optimizer then has no momentum. Before `start_step`, and for vectors, it accumulates the mean gradient.
    """

    def __init__(self, ring: Ring, *, momentum: float, nesterov: bool = False, start_step: int = 0) -> None:
        super().__init__(ring, OneBit(), error_feedback=True, start_step=start_step)
        self._rule = DGCRule(momentum=momentum, nesterov=nesterov)

    def create(self, variables: Sequence[Variable]) -> None:
        """Create the residuals of both stages, and a momentum for each variable."""
        super().create(variables)
        self._momenta = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False, name="momentum") for v in variables]
        self.rank_variables = [*self.rank_variables, *self._momenta]

    def resize(self, stacked: Sequence[Array], rank: int, size: int) -> list[Array]:
        """The mean of the ranks' residuals and momenta; the residuals of parts are cut anew."""
        count = len(stacked) - len(self._momenta)
        return super().resize(stacked[:count], rank, size) + EveryStep.resize(self, stacked[count:], rank, size)

    def reduce(self, sent: Exchange, step: Tensor) -> Exchange:
        """The means of this step's momenta."""
        updates = []
        for gradient, momentum in zip(sent.gradients, self._momenta, strict=True):
            new, update = accumulate(gradient, momentum, tf.zeros_like(gradient), self._rule)
            momentum.assign(new)
            updates.append(update)
        return super().reduce(sent._replace(gradients=updates), step)

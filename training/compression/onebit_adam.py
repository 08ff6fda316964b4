"""1-bit Adam: Adam's steps as signs, once its second moment is frozen. Tang et al., arXiv 2102.02888, Algorithm 1.

From then on Adam is SGD with momentum, with a fixed rate for each entry that all ranks know. So the signs are those of
``m / (sqrt(v) + eps)``, where the paper's are those of ``m``, which move an entry with a small `v` by the mean
magnitude of its block over that small root: with them the network of docs/synchronisation.md did not learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ringfeed.training.ring.ring import Ring

from .base import Tensor, Variable
from .onebit import OneBit
from .two_stage import TwoStage

__all__ = ["OneBitAdam"]


class OneBitAdam(TwoStage):
    """The mean of the ranks' momenta, as signs and scales in both stages, with error feedback.

    It returns the gradient that takes the optimizer's momentum to that mean, ``(mean - beta_1 * m) / (1 - beta_1)``, as
    1-bit LAMB does (Li et al., arXiv 2104.06069, Algorithm 1). Entries whose `v` is 0, since they never had a gradient,
    do not move.

    Args:
        ring: the ranks.
        beta_1, eps: those of the optimizer, an `Adam` or `LAMB` with `freeze_step=start_step`.
        start_step: steps before this one are dense.
    """

    def __init__(self, ring: Ring, *, beta_1: float, eps: float, start_step: int) -> None:
        super().__init__(ring, OneBit(), error_feedback=True, start_step=start_step)
        self._beta, self._eps = beta_1, eps
        self._moments: list[Sequence[Variable]] = []

    def build(self, variables: Sequence[Variable], slots: Sequence[Variable] = ()) -> None:
        """Create the residuals of both stages, and note where the optimizer keeps its moments."""
        super().build(variables)
        ends = ("_moments",), ("_first_moment", "_second_moment")  # LAMB keeps both in one variable
        found = [[[slot for slot in slots if slot.name.endswith(end)] for end in kind] for kind in ends]
        moments = [kept for kind in found for kept in zip(*kind, strict=True)]
        self._moments = [moments[i] for i in self._places]

    def compressed_means(
        self, tensors: list[Tensor], dense: list[Tensor], step: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The gradients that the mean momenta stand for."""
        momenta, scales = [], []
        for kept in self._moments:
            held = [tf.convert_to_tensor(variable) for variable in kept]
            first, second = held if len(held) == 2 else tf.unstack(held[0])
            momenta.append(self._beta * first)
            scales.append(tf.where(second > 0, tf.sqrt(second) + self._eps, 0.0))
        sent = [
            tf.math.divide_no_nan(momentum + (1 - self._beta) * tensor, scale)
            for momentum, tensor, scale in zip(momenta, tensors, scales, strict=True)
        ]
        means, dense = super().compressed_means(sent, dense, step)
        gradients = [
            (mean * scale - momentum) / (1 - self._beta)
            for mean, momentum, scale in zip(means, momenta, scales, strict=True)
        ]
        return gradients, dense

"""Deep Gradient Compression: top-k of what momentum has accumulated. Lin et al., arXiv 1712.01887, Algorithms 1 to 4.

The largest entries are found exactly, where the authors' code samples a threshold, and among all matrices
together, where it goes by layer: with equal bytes that leaves the least, and does not starve small layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ringfeed.training.config.compression import DGCConfig
from ringfeed.training.optimizers.keras_doors import Tensor, Variable
from ringfeed.training.ring.ring import Ring
from ringfeed.training.sync.means import joined, parted
from ringfeed.training.sync.synchronizer import Exchange, SyncRun

from .base import Compressed, zeros_like
from .gathered import gathered_means
from .top_k import TopK, largest, sparse_payload


def build(run: SyncRun, options: DGCConfig) -> DGC:
    optimizer: Any = run.config.optimizer
    rule = DGCRule(
        ratio=options.sent_share,
        warmup_steps=options.warmup_steps(run.steps, run.steps_per_epoch),
        momentum=optimizer.momentum,
        nesterov=optimizer.nesterov,
        clip_norm=options.local_clip_norm,
    )
    return DGC(run.ring, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class DGCRule:
    ratio: float = 0.001  # share of entries that are sent after the warm-up
    warmup_steps: int = 0  # the ratio falls for so many, in `stages` stages
    stages: int = 4  # stages of the warm-up (the paper: one for each of 4 epochs)
    momentum: float = 0.9  # SGD's, which DGC applies before it selects; the optimizer then has none
    nesterov: bool = False  # whether the momentum is Nesterov's
    # Largest global norm of the mean gradient, for which each rank clips its own at ``clip_norm / sqrt(ranks)``; None:
    # no clipping
    clip_norm: float | None = None


def warm_up_ratio(step: Tensor, rule: DGCRule) -> Tensor:
    """Return the share of entries to send at a step, float64: ``ratio ** ((stage + 1) / (stages + 1))``.

    >>> rule = DGCRule(warmup_steps=8)
    >>> [round(float(warm_up_ratio(tf.constant(s, tf.int64), rule)), 3) for s in (0, 2, 4, 6, 8)]
    [0.251, 0.063, 0.016, 0.004, 0.001]
    """
    if not rule.warmup_steps:
        return tf.constant(rule.ratio, tf.float64)
    stage = tf.minimum(step * rule.stages // rule.warmup_steps, rule.stages)
    exponent = (tf.cast(stage, tf.float64) + 1) / (rule.stages + 1)
    return tf.where(stage >= rule.stages, tf.constant(rule.ratio, tf.float64), tf.exp(exponent * math.log(rule.ratio)))


def accumulate(gradient: Tensor, momentum: Tensor, total: Tensor, rule: DGCRule) -> tuple[Tensor, Tensor]:
    """Return momentum and accumulated velocity after a gradient: momentum correction, section 3.2.

    >>> m, v = accumulate(tf.constant(1.0), tf.constant(2.0), tf.constant(10.0), DGCRule(momentum=0.5))
    >>> float(m), float(v)
    (2.0, 12.0)
    """
    if rule.nesterov:
        momentum = rule.momentum * (momentum + gradient)
        return momentum, total + momentum + gradient
    momentum = rule.momentum * momentum + gradient
    return momentum, total + momentum


def after_momentum(gradients: Sequence[Tensor], momenta: Sequence[Variable], rule: DGCRule) -> list[Tensor]:
    """Return what SGD with momentum applies for gradients, and keep the momenta."""
    updates = []
    for gradient, variable in zip(gradients, momenta, strict=True):
        momentum, update = accumulate(gradient, variable, tf.zeros_like(gradient), rule)
        variable.assign(momentum)
        updates.append(update)
    return updates


class DGC(Compressed):
    """Momentum on each rank, and the largest entries of what it has accumulated; what is sent starts from zero again.

    Vectors are dense: their momentum accumulates the mean gradient.
    """

    def __init__(self, ring: Ring, rule: DGCRule) -> None:
        super().__init__(ring)
        self._rule = rule

    def create(self, variables: Sequence[Variable]) -> None:
        """Create momentum and velocity of each matrix, and the momentum of each vector."""
        self._momenta, self._totals = zeros_like(self._shapes, "momentum"), zeros_like(self._shapes, "velocity")
        self.rank_variables = self._momenta + self._totals
        others = [v for i, v in enumerate(variables) if i not in self._places]
        self.shared_variables = [tf.Variable(tf.zeros(v.shape, v.dtype), name="dense_momentum") for v in others]

    def _sent(self, gradients: list[Tensor], ratio: Tensor) -> list[Tensor]:
        """The means of the largest entries of all matrices together."""
        states = zip(gradients, self._momenta, self._totals, strict=True)
        momenta, totals = zip(*(accumulate(*state, self._rule) for state in states), strict=True)
        everything = joined(totals)
        indices = largest(everything, ratio)
        mask = tf.tensor_scatter_nd_update(tf.ones_like(everything), indices[:, None], tf.zeros(tf.shape(indices)))
        for i, kept in enumerate(parted(mask, self._shapes)):
            self._momenta[i].assign(tf.where(kept > 0, momenta[i], 0.0))  # factor masking, section 3.3
            self._totals[i].assign(tf.where(kept > 0, totals[i], 0.0))
        payload = sparse_payload(everything, indices)
        (mean,) = gathered_means(self._ring, TopK(ratio=1.0), [payload], [list(everything.shape)])
        return parted(mean, self._shapes)

    def compressed_means(self, tensors: list[Tensor], others: Exchange, step: Tensor) -> tuple[list[Tensor], Exchange]:
        """The means of what the ranks send, and the dense means, after momentum."""
        vectors = list(others.gradients)
        if self._rule.clip_norm is not None:
            limit = self._rule.clip_norm / math.sqrt(self._ring.size)
            clipped, _ = tf.clip_by_global_norm([*tensors, *vectors], limit)
            tensors, vectors = clipped[: len(tensors)], clipped[len(tensors) :]
        ratio = warm_up_ratio(step, self._rule)
        means = self._sent(tensors, ratio) if tensors else []
        others = self.dense_means(others._replace(gradients=vectors))
        return means, others._replace(gradients=after_momentum(others.gradients, self.shared_variables, self._rule))

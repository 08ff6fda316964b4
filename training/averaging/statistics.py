"""The average over ranks of what each rank estimates from its own samples: the statistics of batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.training.ring.replicas import copies, replicas_of
from ringfeed.training.ring.ring import Ring

__all__ = ["StatisticsAverage"]


class StatisticsAverage:
    """Averages the non-trainable floating-point weights of a network over ranks.

    Averaged is what changed since the last time: ``w = base + mean(w - base)``. So weights that no step updates, such
    as those of frozen layers, keep their bits, however often they are averaged; a mean of equal numbers need not be
    equal to them.

    Args:
        ring: the ranks, which hold the same weights now.
        network: the network.
        further: variables to average in the same way.
    """

    def __init__(self, ring: Ring, network: Any, further: Sequence[Any] = ()) -> None:
        trainable = {id(variable) for variable in network.trainable_weights}
        self._ring = ring
        own = [v.value for v in network.weights if id(v) not in trainable and "float" in str(v.dtype)]
        self._moving = [*own, *further]
        self._base = [tf.identity(v) for v in self._moving]

    def _average_replicas(self) -> None:
        for variable in self._moving:
            held = np.stack([np.asarray(copy) for copy in copies(variable)])
            if (held != held[0]).any():
                variable.assign(held.mean(0, dtype=np.float64).astype(held.dtype))

    def update(self, factor: float = 1.0) -> None:
        """Give all ranks the average (a collective).

        Args:
            factor: weight of this rank, whose mean over ranks is 1.
        """
        if replicas_of(self._ring):
            self._average_replicas()
        if not self._moving or self._ring.size == 1:
            return
        changes = [(v - base) * factor for v, base in zip(self._moving, self._base, strict=True)]
        means = self._ring.allreduce_mean(changes)
        self._base = [base + mean for base, mean in zip(self._base, means, strict=True)]
        for variable, value in zip(self._moving, self._base, strict=True):
            variable.assign(value)

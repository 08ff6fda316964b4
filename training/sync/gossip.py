"""Gossip: pairs of ranks average their weights, where others average over all. Lian et al., arXiv 1705.09056.

A round costs the bytes of the weights, on any number of ranks.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ringfeed.training.config.sync import GossipConfig
from ringfeed.training.optimizers.keras_doors import Tensor, Variable

from .means import joined, parted
from .periodic import Periodic
from .synchronizer import SyncRun


def partners(turn: int, ranks: int, *, topology: str, seed: int) -> list[int]:
    """Return the partner of each rank in a round; of an odd number one is its own.

    The topology is "ring", one neighbour and the other in turn, or "random", pairs drawn by (seed, turn).

    >>> [partners(turn, 4, topology="ring", seed=0) for turn in (0, 1)]
    [[1, 0, 3, 2], [3, 2, 1, 0]]
    """
    if topology == "ring":
        order = [(turn + i) % ranks for i in range(ranks)]
    else:
        order = np.random.default_rng([seed, turn]).permutation(ranks).tolist()
    found = list(range(ranks))
    for a, b in zip(order[::2], order[1::2], strict=False):
        found[a], found[b] = b, a
    return found


class Gossip(Periodic):
    """Rounds at whose end each rank takes the mean of its weights and its partner's: see `partners`.

    An evaluation, a checkpoint and the end of the run have the mean over all ranks.
    """

    def __init__(self, run: SyncRun, options: GossipConfig) -> None:
        super().__init__(run, options)
        self._topology, self._seed = options.topology, run.config.seed

    def agreed(self, step: int) -> list[tuple[Variable, Tensor]]:
        """The mean of all ranks' weights, which differ after a round, too."""
        return list(zip(self._variables, self._outcome(step)[0], strict=True))

    def end_round(self, step: int) -> None:
        partner = partners(step // self._every, self._ring.size, topology=self._topology, seed=self._seed)
        flat = joined([tf.cast(variable, tf.float32) for variable in self.apart_variables])
        mean = (flat + self._ring.sendrecv(flat, partner[self._ring.rank])) / 2
        parts = parted(mean, [variable.shape for variable in self.apart_variables])
        for variable, part in zip(self.apart_variables, parts, strict=True):
            variable.assign(tf.cast(part, variable.dtype))

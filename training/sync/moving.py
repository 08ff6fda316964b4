"""The moving average of a network's weights over steps, which generalises better than the last weights.

It is not an average over ranks: each rank keeps its own, from weights that are the same on all. Where ranks train alone
in rounds, `Agreement` updates it at the end of each round, as the server's average in federated learning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor, assign_all


class MovingAverage:
    """The exponential moving average of all floating-point weights of a network.

    After step `t`, counted from 1::

        d = min(decay, (1 + t) / (10 + t))     # without `warms_up`: d = decay
        average = d * average + (1 - d) * weights

    Polyak and Juditsky (1992); the rule for the first steps is as in `tf.train.ExponentialMovingAverage`. The
    statistics of batch normalisation are averaged, too, for they belong to the weights that they were taken with.

    The averages are the `variables`. Those of `statistics`, which the optimizer does not update, may differ between
    ranks, as the statistics themselves do.
    """

    def __init__(self, network: Any, decay: float, *, warms_up: bool) -> None:
        self._decay, self._warms_up = decay, warms_up
        self._averaged = [v for v in network.weights if "float" in str(v.dtype)]
        self._weights = [v.value for v in self._averaged]
        self.variables = [tf.Variable(w, trainable=False, name="average") for w in self._weights]
        trained = {id(v) for v in network.trainable_weights}
        pairs = zip(self._averaged, self.variables, strict=True)
        self.statistics = [average for weight, average in pairs if id(weight) not in trained]

    def update(self, steps: Tensor, since: int = 1) -> None:
        """Take in the weights after some updates, also in `tf.function`; the average keeps ``d ** since`` of itself."""
        share = tf.constant(1 - self._decay, tf.float64)
        if self._warms_up:
            share = tf.maximum(share, 9 / (10 + tf.cast(steps, tf.float64)))
        if since > 1:
            share = 1 - (1 - share) ** since
        for average, weight in zip(self.variables, self._weights, strict=True):
            average.assign_add((weight - average) * tf.cast(share, average.dtype))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the network its averages in the body; then its own weights again, bit for bit."""
        own = [tf.identity(weight) for weight in self._weights]
        assign_all(self._weights, self.variables)
        try:
            yield
        finally:
            assign_all(self._weights, own)

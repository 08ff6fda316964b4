"""FedAvg: means of the ranks' weights by samples, or robust ones. McMahan et al., arXiv 1602.05629, Algorithm 1.

Not private: weights reveal samples, and nothing here is encrypted or noised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.sync import FedAvgConfig
from ringfeed.training.optimizers.keras_doors import Tensor

from .means import joined, median, parted, trimmed_count, trimmed_mean, weighted_mean
from .periodic import Periodic
from .synchronizer import SyncRun


def _robust(options: FedAvgConfig, ranks: int) -> Callable[[Tensor], Tensor] | None:
    if options.aggregate != "trimmed":
        return median if options.aggregate == "median" else None
    count = trimmed_count(options.trim, ranks)
    if not count:
        raise ConfigError(
            f"sync.trim={options.trim} leaves out none of {ranks} ranks; raise it (below 0.5), start more ranks, or "
            "use sync.aggregate=mean"
        )
    return functools.partial(trimmed_mean, count=count)


class FedAvg(Periodic):
    """Rounds of steps on each rank's own samples.

    A rank's weight in the mean are the samples of its round, by `samples_before` a step since the run began. A robust
    mean makes one change for all, [n], of the ranks' changes, [ranks, n]. A ConfigError says that a trimmed mean would
    trim nothing.
    """

    def __init__(self, run: SyncRun, options: FedAvgConfig) -> None:
        super().__init__(run, options)
        self._samples_before, self._robust = run.samples_before, _robust(options, run.ring.size)

    def combine(self, changes: list[Tensor], step: int) -> tuple[list[Tensor], list[Tensor]]:
        """The mean by samples, ``sum(n_k * change_k) / sum(n_k)``, counted in the round; or the robust one."""
        if self._robust is None:
            begun = (step - 1) // self._every * self._every
            samples = self._samples_before(step) - self._samples_before(begun)
            return weighted_mean(self._ring, changes, samples), []
        rows = self._ring.gather(joined([tf.cast(change, tf.float32) for change in changes]))
        parts = parted(self._robust(rows), [change.shape for change in changes])
        return [tf.cast(part, change.dtype) for part, change in zip(parts, changes, strict=True)], []

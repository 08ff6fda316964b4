"""Shards that are not what was written, left out of the epochs; and the records that stand in for theirs.

Which records do is a pure function of the order and of which shards are bad, not of when that was found out, nor by
which rank: a rank that knows nothing of a bad shard, one that found it and one that was told of it serve the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ...sharding.common.fork_safe_locks import renew_lock_in_forks
from ...sharding.common.validation import choice
from ...sharding.compute.class_counts import ClassCounts, count_matrix
from ...sharding.compute.keyed_random import shuffled
from ...sharding.dataset.dataset import Dataset, repair_hint
from ...sharding.dataset.manifest import ShardInfo
from ...sharding.errors import ConfigError, CorruptionError
from ..metrics.stage_counters import Counters

__all__ = ["OnBadShard", "Quarantine", "replacement_rows"]

OnBadShard = Literal["raise", "quarantine"]
_CHOICES = ("raise", "quarantine")
_logger = logging.getLogger("ringfeed.pipeline.quarantine")  # documented in docs/faults.md
Counts = TypeVar("Counts", bound=np.integer)


class Quarantine:
    """The shards of a split that are not to be read any more. Any thread may ask, and add.

    Args:
        dataset: opened.
        split: of it.
        shards: of the split that epochs are made of, by whose positions shards are named here.
        on_bad_shard: whether a shard that is found to be bad joins them; else it stops the loader.
        paths: of those that are known to be bad.
        counters: of the loader.

    Attributes:
        accepts: whether a shard that is found to be bad joins them.

    Raises:
        ConfigError: there is no such choice, or no such shard.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        shards: Sequence[ShardInfo],
        on_bad_shard: OnBadShard,
        paths: Sequence[str],
        counters: Counters,
    ) -> None:
        choice("on_bad_shard", on_bad_shard, _CHOICES)
        unknown = set(paths) - {shard.path for shard in dataset.split_shards(split)} if paths else set()
        if unknown:
            raise ConfigError(
                f"quarantined: {dataset.storage.locate()} has no shard {min(unknown)!r} in the split {split!r}"
            )
        self._root = dataset.storage.locate()
        self._remedy = repair_hint(dataset.storage)
        self._shards = shards
        self.accepts = on_bad_shard == "quarantine"
        self._paths = set(paths)
        self._positions = (
            {number for number, shard in enumerate(shards) if shard.path in self._paths} if paths else set()
        )
        self._counters = counters
        self._lock = threading.RLock()  # a handler of a signal may ask for the state at any moment
        renew_lock_in_forks(self)

    @property
    def paths(self) -> tuple[str, ...]:
        """The shards, sorted."""
        with self._lock:
            return tuple(sorted(self._paths))

    def __contains__(self, shard: int) -> bool:
        return shard in self._positions

    def add(self, shard: int, error: CorruptionError) -> bool:
        """Whether a shard that was found to be bad is left out from now on; the first to find it says so.

        Args:
            shard: its position.
            error: that tells what is wrong with it.
        """
        with self._lock:
            if shard in self._positions:
                return True
            if not self.accepts:
                return False
            info = self._shards[shard]
            self._paths.add(info.path)
            self._positions.add(shard)
        self._counters.add("quarantine", items=1, size=info.bytes + info.index_bytes)
        _logger.warning("%s is quarantined, other records stand in for its %d: %s", info.path, info.records, error)
        return True

    def read_error(self, shard: int) -> CorruptionError:
        """For who wants a shard that is not to be read."""
        return CorruptionError(f"{self._root}/{self._shards[shard].path} is in quarantine; {self._remedy}")

    def readable_shards(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of some shards that are to be read."""
        with self._lock:
            positions = list(self._positions)
        return shards[~np.isin(shards, positions)] if positions else shards

    def readable_counts(self, counts: npt.NDArray[Counts]) -> npt.NDArray[Counts]:
        """Numbers for each shard, with 0 for those that are not to be read.

        Raises:
            CorruptionError: nothing is left.
        """
        with self._lock:
            positions = sorted(self._positions)
        if not positions:
            return counts
        left = counts.copy()
        left[positions] = 0
        if not left.any():
            raise CorruptionError(
                f"{self._root}: all shards with records that are needed are in quarantine: "
                f"{', '.join(self._shards[position].path for position in positions[:4])}"
                f"{', ...' if len(positions) > 4 else ''}; {self._remedy}"
            )
        return left

    def plan_shards(self, weights: npt.NDArray[np.float64] | None) -> Sequence[ShardInfo]:
        """The shards, as they are to a plan: those that are not to be read have no bytes, and lend no class.

        Args:
            weights: of the classes in the epoch, [classes]; None for the natural mix.

        Raises:
            CorruptionError: of some class that is needed, or of all, nothing is left.
        """
        with self._lock:
            positions = sorted(self._positions)
        if not positions:
            return self._shards
        if weights is None:
            self.readable_counts(np.array([shard.records for shard in self._shards]))
        else:
            of_class = count_matrix([shard.class_counts for shard in self._shards])
            for class_id in np.flatnonzero(weights):
                self.readable_counts(of_class[:, class_id])
        planned = list(self._shards)
        for position in positions:
            counts = ClassCounts(np.zeros(len(planned[position].class_counts), np.int64))
            planned[position] = replace(planned[position], bytes=0, index_bytes=0, class_counts=counts)
        return planned


def replacement_rows(lengths: Sequence[int], bad: Sequence[bool], lent: int, key: int) -> npt.NDArray[np.int64]:
    """Which record serves in the place of each record of a window.

    Args:
        lengths: records of each segment of the window.
        bad: whether the segment cannot be read.
        lent: records at hand beside the window.
        key: of the window.

    Returns:
        int64 [sum(lengths)]: numbers of records, counted through the segments that can be read and then through what
        was lent. Each record that can be read stays in its place. The others' places are shared evenly by all that is
        at hand, in random order.

    >>> replacement_rows([2, 3, 2], [False, True, False], 0, key=1).tolist()
    [0, 1, 3, 0, 1, 2, 3]
    """
    missing = np.repeat(np.asarray(bad, np.bool_), lengths)
    serving = np.cumsum(~missing) - 1
    at_hand = len(missing) - int(missing.sum()) + lent
    serving[missing] = np.resize(shuffled(key, at_hand), int(missing.sum()))
    return serving.astype(np.int64)

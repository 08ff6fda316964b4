"""Leave damaged shards out of epochs, and replace their records with others.

The replacements are a pure function of the order and the set of damaged shards. They do not depend on when or by which
rank the damage was found, so all ranks with the same set serve the same records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.sharding.common.fork_safe_locks import renew_lock_in_forks
from ringfeed.sharding.common.validation import choice
from ringfeed.sharding.compute.class_counts import ClassCounts, count_matrix
from ringfeed.sharding.compute.keyed_random import shuffled
from ringfeed.sharding.dataset.dataset import Dataset, repair_hint
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.errors import ConfigError, CorruptionError

OnBadShard = Literal["raise", "quarantine"]
_CHOICES = ("raise", "quarantine")
_logger = logging.getLogger("ringfeed.pipeline.quarantine")  # public: see docs/faults.md
Counts = TypeVar("Counts", bound=np.integer)


class Quarantine:
    """The damaged shards of a split, which are no longer read. Any thread may call it.

    Args:
        dataset: opened dataset.
        split: name of the split.
        shards: shards that epochs read; methods refer to a shard by its position among these.
        on_bad_shard: whether a damaged shard goes into quarantine or stops the loader.
        paths: paths of shards that are known to be damaged.
        counters: counters of the loader.

    Attributes:
        accepts: whether damaged shards go into quarantine.

    Raises:
        ConfigError: the choice or a path is unknown.
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
        self._lock = threading.RLock()  # reentrant: a signal handler may ask for the state at any moment
        renew_lock_in_forks(self)

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the shards in quarantine, sorted."""
        with self._lock:
            return tuple(sorted(self._paths))

    def __contains__(self, shard: int) -> bool:
        return shard in self._positions

    def add(self, shard: int, error: CorruptionError) -> bool:
        """Put a damaged shard into quarantine, and log it once; return False if damage stops the loader.

        Args:
            shard: position of the shard.
            error: error that describes the damage.
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
        _logger.warning("%s is quarantined; other records replace its %d: %s", info.path, info.records, error)
        return True

    def read_error(self, shard: int) -> CorruptionError:
        """Return the error for reading a shard in quarantine."""
        return CorruptionError(f"{self._root}/{self._shards[shard].path} is in quarantine; {self._remedy}")

    def readable_shards(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of some shards that are not in quarantine."""
        with self._lock:
            positions = list(self._positions)
        return shards[~np.isin(shards, positions)] if positions else shards

    def readable_counts(self, counts: npt.NDArray[Counts]) -> npt.NDArray[Counts]:
        """Return counts by shard, with 0 for shards in quarantine.

        Raises:
            CorruptionError: all counts are 0 then.
        """
        with self._lock:
            positions = sorted(self._positions)
        if not positions:
            return counts
        readable = counts.copy()
        readable[positions] = 0
        if not readable.any():
            raise CorruptionError(
                f"{self._root}: all shards with needed records are in quarantine: "
                f"{', '.join(self._shards[position].path for position in positions[:4])}"
                f"{', ...' if len(positions) > 4 else ''}; {self._remedy}"
            )
        return readable

    def plan_shards(self, weights: npt.NDArray[np.float64] | None) -> Sequence[ShardInfo]:
        """Return the shards for planning an epoch: those in quarantine have no bytes and lend no class.

        Args:
            weights: share of each class in the epoch, [classes]; None for the natural mix.

        Raises:
            CorruptionError: all shards with records of a needed class are in quarantine.
        """
        with self._lock:
            positions = sorted(self._positions)
        if not positions:
            return self._shards
        if weights is None:
            self.readable_counts(np.array([shard.records for shard in self._shards]))
        else:
            counts = count_matrix([shard.class_counts for shard in self._shards])
            for class_id in np.flatnonzero(weights):
                self.readable_counts(counts[:, class_id])
        planned = list(self._shards)
        for position in positions:
            none = ClassCounts(np.zeros(len(planned[position].class_counts), np.int64))
            planned[position] = replace(planned[position], bytes=0, index_bytes=0, class_counts=none)
        return planned


def replacement_rows(lengths: Sequence[int], bad: Sequence[bool], spare: int, key: int) -> npt.NDArray[np.int64]:
    """Return the record that serves in the place of each record of a window.

    Args:
        lengths: records of each segment of the window.
        bad: whether each segment is unreadable.
        spare: records available in addition to the window.
        key: random key of the window.

    Returns:
        Numbers of records, counted through the readable segments and then the spare records, int64 [sum(lengths)].
        Readable records keep their places; all available records share the other places evenly, in random order.

    >>> replacement_rows([2, 3, 2], [False, True, False], 0, key=1).tolist()
    [0, 1, 3, 0, 1, 2, 3]
    """
    missing = np.repeat(np.asarray(bad, np.bool_), lengths)
    serving = np.cumsum(~missing) - 1
    available = len(missing) - int(missing.sum()) + spare
    serving[missing] = np.resize(shuffled(key, available), int(missing.sum()))
    return serving.astype(np.int64)

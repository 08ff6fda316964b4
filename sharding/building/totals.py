"""Merge the results of the tasks that wrote shards into the totals that a manifest records.

Tested in tests/sharding/building/test_build.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringfeed.sharding.assignment.assignment import Assignment
from ringfeed.sharding.dataset.manifest import ShardInfo, SplitInfo
from ringfeed.sharding.dataset.statistics import FeatureStatistics, merge_statistics
from ringfeed.sharding.destination.journal import ShardResult
from ringfeed.sharding.storage.file_contents import FileInfo


class BuildTotals:
    """Shard results, merged in the order of the shards whatever order they arrive in."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._infos: dict[int, ShardInfo] = {}
        self._files: dict[int, dict[str, FileInfo]] = {}
        self._waiting: dict[int, ShardResult] = {}
        self._next = 0
        self._statistics: dict[str, dict[str, FeatureStatistics]] = {split.name: {} for split in assignment.splits}

    def add(self, results: Iterable[ShardResult]) -> None:
        """Add results; each shard is added once."""
        for result in results:
            self._infos[result.number] = result.info
            self._files[result.number] = result.files
            self._waiting[result.number] = result
        while (ready := self._waiting.pop(self._next, None)) is not None:
            merged = self._statistics[ready.info.split]
            for name, more in ready.statistics.items():
                merged[name] = merge_statistics(merged[name], more) if name in merged else more
            self._next += 1

    def infos(self) -> list[ShardInfo]:
        """All shards in order."""
        return [self._infos[number] for number in range(self._assignment.shards)]

    def files(self) -> dict[str, FileInfo]:
        """The shards' files for other programs by path, in the order of the shards."""
        return {path: info for _, files in sorted(self._files.items()) for path, info in files.items()}

    def splits(self) -> dict[str, SplitInfo]:
        """Totals and statistics of each split."""
        return {
            split.name: SplitInfo(
                records=split.records,
                shards=split.shards,
                class_counts=split.class_counts,
                statistics=self._statistics[split.name],
            )
            for split in self._assignment.splits
        }

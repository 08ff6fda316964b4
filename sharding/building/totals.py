"""What tasks say of the shards that they wrote, gathered into what a dataset says of itself."""

from __future__ import annotations

from ..assignment.assignment import Assignment
from ..dataset.manifest import FileInfo, ShardInfo, SplitInfo
from ..dataset.statistics import FeatureStatistics, merge_statistics
from ..destination.journal import ShardResult

__all__ = ["BuildTotals"]


class BuildTotals:
    """Results of shards, merged in the order of the shards, whatever the order they come in."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._infos: dict[int, ShardInfo] = {}
        self._files: dict[int, dict[str, FileInfo]] = {}
        self._waiting: dict[int, ShardResult] = {}
        self._next = 0
        self._statistics: dict[str, dict[str, FeatureStatistics]] = {split.name: {} for split in assignment.splits}

    def add(self, result: ShardResult) -> None:
        """Take the result of a shard; each is taken once."""
        self._infos[result.number] = result.info
        self._files[result.number] = result.files
        self._waiting[result.number] = result
        while (ready := self._waiting.pop(self._next, None)) is not None:
            known = self._statistics[ready.info.split]
            for name, more in ready.statistics.items():
                known[name] = merge_statistics(known[name], more) if name in known else more
            self._next += 1

    def infos(self) -> list[ShardInfo]:
        """All shards, in their order."""
        return [self._infos[number] for number in range(self._assignment.shards)]

    def files(self) -> dict[str, FileInfo]:
        """Those for other programs, by path, in the order of the shards."""
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

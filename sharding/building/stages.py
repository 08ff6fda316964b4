"""The second and third round of a build: partition the records of the source, assemble the shards, add them up.

Tested in tests/sharding/building/test_build.py and tests/sharding/building/test_resume.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ringfeed.sharding.assignment.assignment import Assignment
from ringfeed.sharding.compute.grouping import group
from ringfeed.sharding.dataset.manifest import ShardInfo, SplitInfo
from ringfeed.sharding.dataset.statistics import FeatureStatistics, merge_statistics
from ringfeed.sharding.destination.journal import ShardResult
from ringfeed.sharding.destination.spill import PartSpill, Spill
from ringfeed.sharding.engines.executors import Job, stream_tasks
from ringfeed.sharding.formats import RecordLayout, plan_layout
from ringfeed.sharding.progress import StageProgress
from ringfeed.sharding.sources import select_part
from ringfeed.sharding.storage.file_contents import FileInfo

from .assembling import BucketInput, assemble_bucket
from .build_context import BuildContext
from .build_plan import BuildPlan
from .partitioning import Bucketing, PartitionTarget, partition_part, widen_range
from .shard_writer import ShardTarget

_LEAST_BUCKETS = 64  # enough for the workers to share, and for a killed build to lose little


def plan_buckets(plan: BuildPlan, context: BuildContext) -> Bucketing:
    """Buckets of as many shards as one task may hold in memory; a ConfigError if that is not even one."""
    by_size = context.memory_share(plan).bucket_records(plan.record, plan.block_rows) // plan.shard_records
    together = max(1, min(by_size, plan.assignment.shards // _LEAST_BUCKETS))
    _assemble_limit(plan, context, together)
    return Bucketing(assignment=plan.assignment, shards_per_bucket=together)


def _assemble_limit(plan: BuildPlan, context: BuildContext, shards_per_bucket: int) -> int | Callable[[], int]:
    """How many tasks of the third round to keep submitted."""
    records = plan.shard_records * shards_per_bucket
    fitting = context.memory_share(plan).assemble_tasks(plan.record, records, plan.block_rows)
    return context.memory_task_limit(fitting)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStages:
    """The rounds after planning."""

    plan: BuildPlan
    context: BuildContext  # what all rounds share
    bucketing: Bucketing  # buckets of the shards
    finished: Collection[int]  # shards that are not written, such as those that an earlier build finished
    spill: Spill  # spill folder

    def partition(self) -> list[PartSpill]:
        """Read all parts and spill the records of all shards that are not finished."""
        parts = self.plan.source.parts
        wanted = np.array([bool(shards) for shards in self._unfinished()])
        done = self.spill.finished(wanted)
        records = sum(part.records for part in done.values())
        progress = StageProgress(self.context.report, "partition", len(parts), len(done), records)
        remaining = [number for number in range(len(parts)) if number not in done]
        memory = self.context.memory_share(self.plan)
        target = PartitionTarget(bucketing=self.bucketing, wanted=wanted, spill=self.spill, run_bytes=memory.run_bytes)
        jobs: Iterator[Job[PartSpill]] = (
            (partition_part, (select_part(self.plan.source, n), parts[n], n, placement, target))
            for n, placement in enumerate(self.plan.placements)
            if n not in done
        )
        limit = self.context.memory_task_limit(memory.partition_tasks())
        with stream_tasks(self.context.pool, jobs, limit) as ended:
            for number, part in ended:
                done[remaining[number]] = part
                progress(1, part.records)
        return [done[number] for number in range(len(parts))]

    def _unfinished(self) -> list[list[int]]:
        """The shards of each bucket that are yet to be written."""
        buckets = map(self.bucketing.shards, range(self.bucketing.buckets))
        return [[shard for shard in shards if shard not in self.finished] for shards in buckets]

    def assemble(self, target: ShardTarget, parts: Sequence[PartSpill]) -> Generator[list[ShardResult], None, None]:
        """Write all shards that are not finished; yields those of one bucket after the other."""
        batches: list[list[tuple[int, list[int]]]] = [[] for _ in range(self.bucketing.buckets)]
        for number, part in enumerate(parts):
            for bucket, in_part in group(part.buckets):
                batches[bucket].append((number, in_part.tolist()))
        source, assignment = select_part(self.plan.source), self.plan.assignment
        buckets = (
            BucketInput(number=number, shards=shards, batches=batches[number])
            for number, shards in enumerate(self._unfinished())
            if shards
        )
        jobs: Iterator[Job[list[ShardResult]]] = (
            (assemble_bucket, (source, target, self.bucketing, self.spill, bucket)) for bucket in buckets
        )
        records = sum(assignment.shard_records(number) for number in self.finished)
        progress = StageProgress(self.context.report, "write", assignment.shards, len(self.finished), records)
        limit = _assemble_limit(self.plan, self.context, self.bucketing.shards_per_bucket)
        with stream_tasks(self.context.pool, jobs, limit) as ended:
            for _, results in ended:
                yield results
                progress(len(results), sum(result.info.records for result in results))


def common_layout(plan: BuildPlan, parts: Sequence[PartSpill]) -> RecordLayout | None:
    """The layout that all records can share, those of the dataset that is appended to included; None if none."""
    if plan.options.shard_format != "tfrecord" or any(part.has_nulls for part in parts):
        return None
    ranges: dict[str, tuple[int, int]] = {}
    for part in parts:
        for name, (low, high) in part.int_ranges.items():
            widen_range(ranges, name, low, high)
    layout = plan_layout(plan.source.schema, ranges)
    if plan.base is None:
        return layout
    shared = plan.base.layout  # one layout for all records of a dataset, or none
    return shared if shared is not None and layout is not None and shared.holds(layout) else None


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

"""The second round of a build, in which the source is read and spilled, and the third, in which shards are written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Executor

import numpy as np

from ..compute.grouping import group
from ..destination.journal import ShardResult
from ..destination.spill import PartSpill, Spill
from ..engines.executors import Job, stream_tasks
from ..engines.memory import MemoryShare
from ..formats import RecordLayout, plan_layout
from ..progress import Report, Teller
from ..sources import select_part
from .build_plan import BuildPlan
from .capacity import memory_share, memory_task_limit
from .options import BuildOptions
from .shard_writer import ShardTarget
from .tasks import Bucketing, assemble_bucket, partition_part

__all__ = ["assemble", "assemble_tasks", "common_layout", "partition", "shards_per_bucket"]

_LEAST_BUCKETS = 64  # enough for the workers to share, and for a killed build to lose little


def shards_per_bucket(plan: BuildPlan, memory: MemoryShare) -> int:
    """How many shards are assembled together, by one task."""
    by_size = memory.bucket_records(plan.record, plan.block_rows) // plan.shard_records
    return max(1, min(by_size, plan.assignment.shards // _LEAST_BUCKETS))


def partition(
    plan: BuildPlan,
    options: BuildOptions,
    bucketing: Bucketing,
    finished: Collection[int],
    spill: Spill,
    pool: Executor,
    report: Report,
) -> list[PartSpill]:
    """The second round: every part is read, and the records of all shards but the `finished` ones are spilled."""
    wanted = np.array([any(s not in finished for s in bucketing.shards(b)) for b in range(bucketing.buckets)])
    done = spill.finished(wanted)
    parts = plan.source.parts
    tell = Teller(report, "partition", len(parts), len(done), sum(part.records for part in done.values()))
    todo = [number for number in range(len(parts)) if number not in done]
    memory = memory_share(pool, options, plan)
    jobs: Iterator[Job[PartSpill]] = (
        (
            partition_part,
            (select_part(plan.source, n), parts[n], n, bucketing, wanted, placement, spill, memory.run_bytes),
        )
        for n, placement in enumerate(plan.placements)
        if n not in done
    )
    with stream_tasks(pool, jobs, memory_task_limit(pool, options, memory.partition_tasks())) as ended:
        for number, part in ended:
            done[todo[number]] = part
            tell(1, part.records)
    return [done[number] for number in range(len(parts))]


def common_layout(plan: BuildPlan, options: BuildOptions, parts: Sequence[PartSpill]) -> RecordLayout | None:
    """That which all records can share, those of the dataset that is appended to included; None if there is none."""
    if options.shard_format != "tfrecord" or any(part.has_nulls for part in parts):
        return None
    ranges: dict[str, tuple[int, int]] = {}
    for part in parts:
        for name, (low, high) in part.int_ranges.items():
            seen = ranges.get(name, (low, high))
            ranges[name] = (min(low, seen[0]), max(high, seen[1]))
    layout = plan_layout(plan.source.schema, ranges)
    if plan.base is None:
        return layout
    shared = plan.base.layout  # one layout for all of a dataset's records, or none
    return shared if shared is not None and layout is not None and shared.holds(layout) else None


def assemble(
    plan: BuildPlan,
    options: BuildOptions,
    target: ShardTarget,
    bucketing: Bucketing,
    finished: Collection[int],
    parts: Sequence[PartSpill],
    spill: Spill,
    pool: Executor,
    report: Report,
) -> Generator[list[ShardResult], None, None]:
    """The third round: all shards but the `finished` ones are written; what is yielded are those of a bucket."""
    inputs: list[list[tuple[int, list[int]]]] = [[] for _ in range(bucketing.buckets)]
    for number, part in enumerate(parts):
        for bucket, batches in group(part.buckets):
            inputs[bucket].append((number, batches.tolist()))
    source = select_part(plan.source)
    wanted = [[s for s in bucketing.shards(b) if s not in finished] for b in range(bucketing.buckets)]
    jobs: Iterator[Job[list[ShardResult]]] = (
        (assemble_bucket, (source, target, bucketing, bucket, shards, spill, inputs[bucket]))
        for bucket, shards in enumerate(wanted)
        if shards
    )
    records = sum(plan.assignment.shard_records(number) for number in finished)
    tell = Teller(report, "write", plan.assignment.shards, len(finished), records)
    with stream_tasks(pool, jobs, assemble_tasks(plan, options, bucketing, pool)) as ended:
        for _, results in ended:
            yield results
            tell(len(results), sum(result.info.records for result in results))


def assemble_tasks(
    plan: BuildPlan, options: BuildOptions, bucketing: Bucketing, pool: Executor
) -> int | Callable[[], int]:
    """How many tasks of the third round to have submitted and not ended.

    Raises:
        ConfigError: not even one fits into the memory.
    """
    records = plan.shard_records * bucketing.shards_per_bucket
    fitting = memory_share(pool, options, plan).assemble_tasks(plan.record, records, plan.block_rows)
    return memory_task_limit(pool, options, fitting)

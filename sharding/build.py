"""Build a dataset: three rounds of tasks over the source, then one atomic commit."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .assign import Assignment
from .destination import check_apart, draft_dataset
from .execute import local_executor, run_tasks
from .formats import encode_shard, plan_layout
from .grouping import group
from .interop.tfds import tfds_files
from .manifest import FileInfo, Manifest, SplitInfo, checksum, encode_shards
from .plan import BuildOptions, check_label, plan_assignment, sort_classes
from .sources import Source, open_source
from .statistics import FeatureStatistics, merge_statistics
from .storage import Storage, public_url
from .tasks import PartSpill, ShardResult, ShardTarget, assemble_shard, count_classes, partition_part

__all__ = ["BuildPlan", "Progress", "build", "plan_build"]

_SAMPLE_RECORDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a build is.

    Attributes:
        stage: ``count``, ``partition`` or ``write``.
        done: tasks of the stage that are finished.
        total: tasks of the stage.
        records: records in the finished tasks.
    """

    stage: str
    done: int
    total: int
    records: int


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What a build will write, known after the first pass over the labels.

    Attributes:
        source: opened.
        classes: values of the label, sorted.
        part_counts: records by class, one mapping a part.
        assignment: of records to shards.
        record_bytes: estimated mean size of a record on storage.
    """

    source: Source
    classes: tuple[Any, ...]
    part_counts: tuple[Mapping[Any, int], ...]
    assignment: Assignment
    record_bytes: float

    @property
    def first_ordinals(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Records of each class before each part, int64 [parts, classes]."""
        counts = np.array([[part.get(value, 0) for value in self.classes] for part in self.part_counts], np.int64)
        return np.cumsum(counts, axis=0) - counts


def _ignore(_: Progress) -> None:
    pass


def plan_build(options: BuildOptions, *, executor: Executor | None = None, report: Report = _ignore) -> BuildPlan:
    """Read the labels and decide everything; writes nothing.

    Raises:
        SourceError: the source cannot be read, or its classes cannot be balanced and split as asked.
        ConfigError: the options do not fit the data.
    """
    return _plan(_open_source(options), options, executor, report)


def _open_source(options: BuildOptions) -> Source:
    check_apart(options.source, options.destination)
    source = open_source(options.source, options.label, options.source_kind)
    check_label(source.schema)
    return source


def _plan(source: Source, options: BuildOptions, pool: Executor | None, report: Report) -> BuildPlan:
    jobs = [(count_classes, (source, part)) for part in source.parts]
    part_counts = run_tasks(pool, jobs, _reporter(report, "count", len(jobs), lambda counts: sum(counts.values())))
    totals: Counter[Any] = Counter()
    for counts in part_counts:
        totals.update(counts)
    classes = sort_classes(totals, options.source, options.min_class_records)
    record_bytes = _sample_record_bytes(source, options)
    return BuildPlan(
        source=source,
        classes=tuple(classes),
        part_counts=tuple(part_counts),
        assignment=plan_assignment(options, classes, [totals[value] for value in classes], record_bytes),
        record_bytes=record_bytes,
    )


def build(options: BuildOptions, *, executor: Executor | None = None, report: Report = _ignore) -> Manifest:
    """Write a source as balanced shards.

    Args:
        options: what to build.
        executor: to run the tasks on; by default `options.workers` processes of this machine.
        report: called after every task.

    Returns:
        The manifest that was committed.

    Raises:
        RingfeedError: something is wrong with the source, the options or the destination. Nothing is left behind,
            and a dataset that was to be replaced is untouched, unless it is the last step, the replacing, that fails.
    """
    source = _open_source(options)
    about = {"source": public_url(options.source), "writer": _writer()}
    with (
        draft_dataset(Storage(options.destination), overwrite=options.overwrite, about=about) as draft,
        local_executor(options.workers) if executor is None else nullcontext(executor) as pool,
        _spill_folder() as spill,
    ):
        plan = _plan(source, options, pool, report)
        manifest, shards = _write(plan, options, draft.storage, pool, report, spill)
        draft.commit(manifest, shards)
    return manifest


def _writer() -> str:
    return f"ringfeed {version('ringfeed')}"


def _reporter(report: Report, stage: str, total: int, size: Callable[[Any], int]) -> Callable[[int, Any], None]:
    records = 0

    def tell(done: int, result: Any) -> None:
        nonlocal records
        records += 0 if result is None else size(result)
        report(Progress(stage=stage, done=done, total=total, records=records))

    return tell


@contextmanager
def _spill_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ringfeed-spill-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(
    plan: BuildPlan, options: BuildOptions, target: Storage, pool: Executor | None, report: Report, spill: Path
) -> tuple[Manifest, bytes]:
    spills = _partition(plan, pool, report, spill)
    ranges: dict[str, tuple[int, int]] = {}
    for part in spills:
        for name, (low, high) in part.int_ranges.items():
            seen = ranges.get(name, (low, high))
            ranges[name] = (min(low, seen[0]), max(high, seen[1]))
    fixed = options.shard_format == "tfrecord" and not any(part.has_nulls for part in spills)
    shard_target = ShardTarget(
        storage=target,
        assignment=plan.assignment,
        shard_format=options.shard_format,
        compression=options.codec,
        layout=plan_layout(plan.source.schema, ranges) if fixed else None,
        dali_index=options.dali_index,
    )
    results = _assemble(plan, shard_target, spills, pool, report)
    infos = tuple(result.info for result in results)
    shards = encode_shards(infos)
    manifest = Manifest(
        shard_format=options.shard_format,
        compression=options.codec,
        schema=plan.source.schema,
        classes=plan.classes,
        splits=_summarise(plan.assignment, results),
        layout=shard_target.layout,
        seed=options.seed,
        source={"url": public_url(options.source), "fingerprint": plan.source.fingerprint},
        options=options.recorded(),
        writer=_writer(),
        shards_checksum=checksum(shards),
        shards_bytes=len(shards),
        files={path: info for result in results for path, info in result.files.items()},
    )
    if metadata := tfds_files(manifest, infos):
        target.write_all(metadata)
    files = {path: FileInfo(bytes=len(data), checksum=checksum(data)) for path, data in metadata.items()}
    return replace(manifest, files={**manifest.files, **files}), shards


def _partition(plan: BuildPlan, pool: Executor | None, report: Report, spill: Path) -> list[PartSpill]:
    values = None if plan.source.schema.label is None else plan.source.schema[plan.source.schema.label].primitive
    classes = pa.array(plan.classes, values)
    ordinals = plan.first_ordinals
    jobs = [
        (partition_part, (plan.source, part, plan.assignment, classes, ordinals[i], str(spill / f"{i:06d}.arrow")))
        for i, part in enumerate(plan.source.parts)
    ]
    return run_tasks(pool, jobs, _reporter(report, "partition", len(jobs), lambda part: part.records))


def _assemble(
    plan: BuildPlan, target: ShardTarget, spills: Sequence[PartSpill], pool: Executor | None, report: Report
) -> list[ShardResult]:
    inputs: list[list[tuple[str, list[int]]]] = [[] for _ in range(plan.assignment.shards)]
    for part in spills:
        for shard, batches in group(part.batch_shards):
            inputs[shard].append((part.path, batches.tolist()))
    jobs = [(assemble_shard, (plan.source, target, shard, batches)) for shard, batches in enumerate(inputs)]
    return run_tasks(pool, jobs, _reporter(report, "write", len(jobs), lambda result: result.info.records))


def _summarise(assignment: Assignment, results: Sequence[ShardResult]) -> dict[str, SplitInfo]:
    splits = {}
    for split in assignment.splits:
        members = [result for result in results if result.info.split == split.name]
        statistics: dict[str, FeatureStatistics] = {
            name: reduce(merge_statistics, (member.statistics[name] for member in members))
            for name in members[0].statistics
        }
        splits[split.name] = SplitInfo(
            records=split.records, shards=split.shards, class_counts=split.class_counts, statistics=statistics
        )
    return splits


def _sample_record_bytes(source: Source, options: BuildOptions) -> float:
    """Mean size on storage of the first records of a few parts spread over the source."""
    data_bytes = records = 0
    for part in list(source.parts)[:: max(1, len(source.parts) // 4)]:
        batch = source.sample(part, _SAMPLE_RECORDS)
        if not batch.num_rows:
            continue
        encoded = encode_shard(
            source.complete(batch),
            source.schema,
            np.zeros(batch.num_rows, np.int32),
            shard_format=options.shard_format,
            compression=options.codec,
            layout=None,
        )
        data_bytes += encoded.data.size
        records += batch.num_rows
    return data_bytes / max(records, 1)

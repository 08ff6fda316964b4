"""Build a dataset: three rounds of tasks over the source, then one atomic commit. What was killed is gone on with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .assign import Assignment
from .census import Census, take_census
from .dedup import drop_duplicates
from .destination import Draft, check_apart, draft_dataset
from .division import Division, divide, open_census
from .engine import open_engine
from .errors import RingfeedError
from .execute import Job, stream_tasks
from .formats import encode_shard, plan_layout
from .grouping import group
from .interop.tfds import tfds_files
from .journal import ShardResult
from .keyed import derive_key
from .manifest import FileInfo, Manifest, ShardInfo, SplitInfo, describe
from .memory import BLOCK_BYTES, RecordBytes
from .placement import Placement
from .plan import BuildOptions, check_label, plan_assignment, share_out, sort_classes
from .prepare import open_carrying
from .schema import Schema
from .sized import Dealt, deal_records
from .sources import Source, light
from .sources.base import BadRecord
from .spill import PartSpill, Spill, open_scratch, open_spill, remove_spill, spill_root
from .statistics import FeatureStatistics, merge_statistics
from .storage import Storage, public_url
from .table import seal
from .tasks import Bucketing, ShardTarget, assemble_bucket, count_classes, partition_part
from .tolerance import REJECTED_NAME, encode_rejected, open_policy, without_bad_records

__all__ = ["BuildPlan", "Progress", "Report", "assemble", "build", "partition", "plan_build"]

_SAMPLE_RECORDS = 256
_BLOCK_ROWS = 1 << 16
_LEAST_BUCKETS = 64  # enough for the workers to share, and for a killed build to lose little


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a build is.

    Attributes:
        stage: ``dedup``, ``count``, ``partition`` or ``write``; of an export, ``export``.
        done: tasks of the stage that are finished (in ``write`` and ``export``: shards).
        total: tasks, or shards, of the stage.
        records: records in what is finished.
        resumed: of `done`, what an earlier build had finished.
    """

    stage: str
    done: int
    total: int
    records: int
    resumed: int = 0


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What a build will write, known after the first pass over the labels.

    Attributes:
        source: opened.
        classes: values of the label, sorted.
        counts: records of each stratum (see `Assignment`) in each part, int64 [parts, strata].
        assignment: of records to shards.
        record: estimated mean size of one.
        rejected: records that are passed over, for they cannot be read.
        census: where more than the class decides the places of records; its files last as long as the build.
        groups: how many groups each split has, where there are groups.
        dealt: what came of dealing by size, if that was asked for.
        digest: of what the column that decides the splits says, if there is one.
    """

    source: Source
    classes: tuple[Any, ...]
    counts: npt.NDArray[np.int64]
    assignment: Assignment
    record: RecordBytes
    rejected: tuple[BadRecord, ...] = ()
    census: Census | None = None
    groups: Mapping[str, int] = field(default_factory=dict)
    dealt: Dealt | None = None
    digest: str = ""

    @property
    def placements(self) -> Iterator[Placement]:
        """For each part, what decides the places of its records."""
        schema = self.source.schema
        for first in np.cumsum(self.counts, axis=0) - self.counts:
            yield Placement(
                assignment=self.assignment,
                label=schema.label,
                classes=_class_array(schema, self.classes),
                first_ordinals=first,
                census=self.census,
            )

    @property
    def record_bytes(self) -> float:
        """Estimated mean size of a record on storage."""
        return self.record.stored

    @property
    def shard_records(self) -> int:
        """Records in the largest shard."""
        return max(split.shard_records(0) for split in self.assignment.splits)

    @property
    def block_rows(self) -> int:
        """Rows that are assembled at a time: a function of the source and the format alone, as it shapes Parquet."""
        return int(np.clip(BLOCK_BYTES / max(self.record_bytes, 1), 1, _BLOCK_ROWS))

    def fingerprint(self, options: BuildOptions) -> str:
        """A hash of all that shapes what is written: builds of one fingerprint write the same bytes."""
        facts = [
            self.source.fingerprint,
            self.source.schema.to_json(),
            options.recorded(),
            [options.shard_format, options.codec, options.seed],
            [[split.name, split.shards, split.class_counts] for split in self.assignment.splits],
            [str(value) for value in self.classes],
            self.block_rows,
            _writer(),
            *([self.digest] if self.digest else []),
            *([self.dealt.digest] if self.dealt else []),
        ]
        return f"{derive_key(json.dumps(facts)):016x}"


def _ignore(_: Progress) -> None:
    pass


def plan_build(options: BuildOptions, *, executor: Executor | None = None, report: Report = _ignore) -> BuildPlan:
    """Read the labels and decide everything; writes nothing.

    Raises:
        SourceError: the source cannot be read, or its classes cannot be balanced and split as asked.
        ConfigError: the options do not fit the data.
    """
    source = _open_source(options)
    root = spill_root(options.spill, options.destination)
    with (
        open_engine(options.engine, options.workers) if executor is None else nullcontext(executor) as pool,
        _scratch(options, root) as scratch,
    ):
        return _plan(source, options, scratch, pool, report)


@contextmanager
def _scratch(options: BuildOptions, root: Storage) -> Iterator[Storage | None]:
    """A folder for what the plan is made of, if it needs one."""
    if not options.needs_census:
        yield None
        return
    scratch = open_scratch(root)
    try:
        yield scratch
    finally:
        remove_spill(scratch)
        root.prune("")


def _open_source(options: BuildOptions) -> Source:
    check_apart(options.source, options.destination)
    reject = open_policy(options.bad_records)
    source = open_carrying(
        options.source, options.label, options.source_kind, options.prepare, options.divided_by, reject
    )
    check_apart(source.url, options.destination)  # the folder alone, where the options name a split in it
    check_label(source.schema)
    return source


def _plan(source: Source, options: BuildOptions, scratch: Storage | None, pool: Executor, report: Report) -> BuildPlan:
    rejected: list[BadRecord] = []
    if options.bad_records is not None:
        source, rejected = without_bad_records(source, options.bad_records, pool, options.memory.ahead)
    if options.prepare.dedup is not None:
        source = drop_duplicates(source, options.prepare.dedup, pool, _stage(report, "dedup"))
    census = None if scratch is None else open_census(source, options, scratch)
    part_counts = _count_parts(source, census, options, pool, report)
    totals: Counter[Any] = Counter()
    for counts in part_counts:
        totals.update(counts)
    classes = sort_classes(totals, options.prepare.described(options.source), options.min_class_records)
    values = _class_array(source.schema, classes)
    record = _sample_record_bytes(source, options)
    division: Division | None = None
    per_split: Mapping[str, tuple[int, ...]]
    if census is None or census.by is None:
        strata = np.array([[part.get(value, 0) for value in classes] for part in part_counts], np.int64)
        per_split = share_out(classes, [totals[value] for value in classes], options.splits)
    else:
        division = divide(census, len(source.parts), values, options)
        strata, per_split = division.counts, division.class_counts
    assignment = plan_assignment(options, per_split, record.stored, divided=division is not None)
    dealt = None
    if census is not None and census.sizes:
        dealt = deal_records(census, values, assignment, np.cumsum(strata, axis=0) - strata)
    return BuildPlan(
        source=source,
        classes=tuple(classes),
        counts=strata,
        assignment=assignment,
        record=record,
        census=census,
        groups=division.values if division is not None and options.group_by is not None else {},
        dealt=dealt,
        digest="" if division is None else division.digest,
        rejected=tuple(rejected),
    )


def _count_parts(
    source: Source, census: Census | None, options: BuildOptions, pool: Executor, report: Report
) -> list[dict[Any, int]]:
    """Records of each class in each part, and the notes of the census, if one is taken."""
    tell = _Teller(report, "count", len(source.parts))
    part_counts: list[dict[Any, int]] = [{}] * len(source.parts)
    jobs: Iterator[Job[dict[Any, int]]] = (
        (count_classes, (light(source, n), part))
        if census is None
        else (take_census, (light(source, n), part, n, census))
        for n, part in enumerate(source.parts)
    )
    for number, counts in stream_tasks(pool, jobs, options.memory.ahead):
        part_counts[number] = counts
        tell(1, sum(counts.values()))
    return part_counts


def _class_array(schema: Schema, classes: Sequence[Any]) -> pa.Array:
    return pa.array(classes, None if schema.label is None else schema[schema.label].primitive)


def build(options: BuildOptions, *, executor: Executor | None = None, report: Report = _ignore) -> Manifest:
    """Write a source as balanced shards.

    A build that was killed, interrupted, or left by its store is gone on with: shards that it finished are kept, and
    the dataset ends with the same bytes.

    Args:
        options: what to build.
        executor: to run the tasks on; by default those of `options.engine`.
        report: called after every task.

    Returns:
        The manifest that was committed.

    Raises:
        RingfeedError: something is wrong with the source, the options or the destination. Nothing is left behind,
            unless starting again may help (`RingfeedError.may_pass`), and a dataset that was to be replaced is
            untouched, unless it is the last step, the replacing, that fails.
    """
    source = _open_source(options)
    about = {"source": public_url(options.source), "writer": _writer()}
    root = spill_root(options.spill, options.destination)
    with (
        draft_dataset(Storage(options.destination), overwrite=options.overwrite, about=about) as draft,
        open_engine(options.engine, options.workers) if executor is None else nullcontext(executor) as pool,
    ):
        try:
            scratch = open_scratch(root) if options.needs_census else None
            plan = _plan(source, options, scratch, pool, report)
            fingerprint = plan.fingerprint(options)
            committed = draft.committed(fingerprint)
            if committed is None:
                manifest, infos = _write(plan, options, draft, fingerprint, root, pool, report)
                committed, table = seal(manifest, infos)
                draft.commit(committed, table)
        except BaseException as error:
            if not (draft.finished and draft.may_resume(error)):
                remove_spill(root)
            elif isinstance(error, (RingfeedError, KeyboardInterrupt)):
                raise type(error)(f"{error}; {draft.how_to_resume}".removeprefix("; ")) from error
            raise
        remove_spill(root)
    return committed


def _writer() -> str:
    return f"ringfeed {version('ringfeed')}"


def _stage(report: Report, stage: str) -> Callable[[int, int, int], None]:
    return lambda done, total, records: report(Progress(stage=stage, done=done, total=total, records=records))


class _Teller:
    """Reports the progress of one stage."""

    def __init__(self, report: Report, stage: str, total: int, resumed: int = 0, records: int = 0) -> None:
        self._report = report
        self._progress = Progress(stage=stage, done=resumed, total=total, records=records, resumed=resumed)
        self(0, 0)

    def __call__(self, done: int, records: int) -> None:
        now = self._progress
        self._progress = replace(now, done=now.done + done, records=now.records + records)
        self._report(self._progress)


def _write(
    plan: BuildPlan,
    options: BuildOptions,
    draft: Draft,
    fingerprint: str,
    root: Storage,
    pool: Executor,
    report: Report,
) -> tuple[Manifest, list[ShardInfo]]:
    finished = draft.resume(fingerprint)
    draft.total = plan.assignment.shards
    bucketing = Bucketing(assignment=plan.assignment, shards_per_bucket=_shards_per_bucket(plan, options))
    scratch = None if plan.census is None else plan.census.folder
    _assemble_tasks(plan, options, bucketing)  # what does not fit is refused before anything is spilled
    spill = open_spill(root, f"{fingerprint}-{bucketing.shards_per_bucket}", scratch)
    parts = partition(plan, options, bucketing, finished, spill, pool, report)
    layout = _layout(plan, options, parts)
    target = ShardTarget(
        storage=draft.storage,
        plan=fingerprint,
        shard_format=options.shard_format,
        compression=options.codec,
        layout=layout,
        block_rows=plan.block_rows,
        dali_index=options.dali_index,
    )
    gathered = _Gathered(plan.assignment)
    for result in finished.values():
        gathered.add(result)
    for results in assemble(plan, options, target, bucketing, finished, parts, spill, pool, report):
        draft.finished += len(results)
        for result in results:
            gathered.add(result)
    manifest = Manifest(
        shard_format=options.shard_format,
        compression=options.codec,
        schema=plan.source.schema,
        classes=plan.classes,
        splits=gathered.splits(),
        layout=layout,
        seed=options.seed,
        source={"url": public_url(options.source), "fingerprint": plan.source.fingerprint},
        options=options.recorded(),
        writer=_writer(),
        plan=fingerprint,
    )
    infos = gathered.infos()
    beside = tfds_files(manifest, infos)
    if plan.rejected:
        beside |= {REJECTED_NAME: encode_rejected(plan.rejected)}
    if beside:
        draft.storage.write_all(beside)
    files = gathered.files() | {path: describe(data) for path, data in beside.items()}
    return replace(manifest, files=files), infos


def _shards_per_bucket(plan: BuildPlan, options: BuildOptions) -> int:
    by_size = options.memory.bucket_records(plan.record, plan.block_rows) // plan.shard_records
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
    done = spill.finished()
    parts = plan.source.parts
    tell = _Teller(report, "partition", len(parts), len(done), sum(part.records for part in done.values()))
    todo = [number for number in range(len(parts)) if number not in done]
    run_bytes = options.memory.run_bytes
    jobs: Iterator[Job[PartSpill]] = (
        (partition_part, (light(plan.source, n), parts[n], n, bucketing, wanted, placement, spill, run_bytes))
        for n, placement in enumerate(plan.placements)
        if n not in done
    )
    for number, part in stream_tasks(pool, jobs, options.memory.partition_tasks()):
        done[todo[number]] = part
        tell(1, part.records)
    return [done[number] for number in range(len(parts))]


def _layout(plan: BuildPlan, options: BuildOptions, parts: Sequence[PartSpill]) -> Any:
    if options.shard_format != "tfrecord" or any(part.has_nulls for part in parts):
        return None
    ranges: dict[str, tuple[int, int]] = {}
    for part in parts:
        for name, (low, high) in part.int_ranges.items():
            seen = ranges.get(name, (low, high))
            ranges[name] = (min(low, seen[0]), max(high, seen[1]))
    return plan_layout(plan.source.schema, ranges)


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
) -> Iterator[list[ShardResult]]:
    """The third round: all shards but the `finished` ones are written; what is yielded are those of a bucket."""
    inputs: list[list[tuple[int, list[int]]]] = [[] for _ in range(bucketing.buckets)]
    for number, part in enumerate(parts):
        for bucket, batches in group(part.buckets):
            inputs[bucket].append((number, batches.tolist()))
    source = light(plan.source)
    wanted = [[s for s in bucketing.shards(b) if s not in finished] for b in range(bucketing.buckets)]
    jobs: Iterator[Job[list[ShardResult]]] = (
        (assemble_bucket, (source, target, bucketing, bucket, shards, spill, inputs[bucket]))
        for bucket, shards in enumerate(wanted)
        if shards
    )
    records = sum(plan.assignment.shard_records(number) for number in finished)
    tell = _Teller(report, "write", plan.assignment.shards, len(finished), records)
    for _, results in stream_tasks(pool, jobs, _assemble_tasks(plan, options, bucketing)):
        yield results
        tell(len(results), sum(result.info.records for result in results))


def _assemble_tasks(plan: BuildPlan, options: BuildOptions, bucketing: Bucketing) -> int:
    records = plan.shard_records * bucketing.shards_per_bucket
    return options.memory.assemble_tasks(plan.record, records, plan.block_rows)


class _Gathered:
    """Results of shards, merged in the order of the shards, whatever the order they come in."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._infos: dict[int, ShardInfo] = {}
        self._files: dict[int, dict[str, FileInfo]] = {}
        self._waiting: dict[int, ShardResult] = {}
        self._next = 0
        self._statistics: dict[str, dict[str, FeatureStatistics]] = {split.name: {} for split in assignment.splits}

    def add(self, result: ShardResult) -> None:
        self._infos[result.number] = result.info
        self._files[result.number] = result.files
        self._waiting[result.number] = result
        while (ready := self._waiting.pop(self._next, None)) is not None:
            known = self._statistics[ready.info.split]
            for name, more in ready.statistics.items():
                known[name] = merge_statistics(known[name], more) if name in known else more
            self._next += 1

    def infos(self) -> list[ShardInfo]:
        return [self._infos[number] for number in range(self._assignment.shards)]

    def files(self) -> dict[str, FileInfo]:
        return {path: info for _, files in sorted(self._files.items()) for path, info in files.items()}

    def splits(self) -> dict[str, SplitInfo]:
        return {
            split.name: SplitInfo(
                records=split.records,
                shards=split.shards,
                class_counts=split.class_counts,
                statistics=self._statistics[split.name],
            )
            for split in self._assignment.splits
        }


def _sample_record_bytes(source: Source, options: BuildOptions) -> RecordBytes:
    """Mean sizes of the first records of a few parts spread over the source."""
    stored = draft = whole = records = 0
    for part in list(source.parts)[:: max(1, len(source.parts) // 4)]:
        batch = source.sample(part, _SAMPLE_RECORDS)
        if not batch.num_rows:
            continue
        complete = source.complete(batch)
        data, _ = encode_shard(
            complete,
            source.schema,
            np.zeros(batch.num_rows, np.int32),
            shard_format=options.shard_format,
            compression=options.codec,
            layout=None,
        )
        stored += data.size
        draft += batch.nbytes
        whole += complete.nbytes
        records += batch.num_rows
    records = max(records, 1)
    return RecordBytes(stored=stored / records, draft=draft / records, whole=whole / records)

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
from .destination import Draft, Purpose, check_apart, draft_dataset
from .division import Division, divide, open_census
from .engine import open_engine
from .errors import ConfigError, RingfeedError
from .execute import Job, stream_tasks
from .formats import encode_shard, plan_layout
from .grouping import group
from .interop.tfds import tfds_files
from .journal import ShardResult
from .keyed import derive_key
from .manifest import FileInfo, Manifest, ShardInfo, SplitInfo, describe
from .merge import merge_generation
from .placement import Placement
from .plan import BuildOptions, check_label, plan_assignment, share_out, sort_classes
from .prepare import open_carrying
from .schema import Feature, Schema
from .sized import Dealt, deal_records
from .sources import Source, light
from .sources.base import NO_FEATURES, BadRecord
from .spill import PartSpill, Spill, open_scratch, open_spill, remove_spill, spill_root
from .statistics import FeatureStatistics, merge_statistics
from .storage import Storage, public_url
from .table import seal
from .tasks import Bucketing, ShardTarget, assemble_bucket, count_classes, partition_part
from .tolerance import encode_rejected, open_policy, rejected_name, without_bad_records

__all__ = [
    "BuildPlan",
    "Progress",
    "Report",
    "about_build",
    "assemble",
    "build",
    "open_build_source",
    "partition",
    "plan_build",
    "plan_source",
    "write_dataset",
]

_SAMPLE_RECORDS = 256
_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 32 << 20  # read, encoded and written at a time
_BLOCK_COPIES = 6  # of a block, at the worst: drafts, records, messages, frames, what is compressed, what is sent
_BUCKET_BYTES = 128 << 20  # of shards assembled together, if they are small
_LEAST_BUCKETS = 64  # enough for the workers to share, and for a killed build to lose little
_AHEAD = 4  # tasks submitted and not ended, per worker: enough to keep each busy
_PROCESS_BYTES = 200 << 20  # of a process that has loaded Arrow, before any data


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
        classes: values of the label: those of `base`, then the others, sorted.
        counts: records of each stratum (see `Assignment`) in each part, int64 [parts, strata].
        assignment: of records to shards.
        record_bytes: estimated mean size of a record on storage.
        rejected: records that are passed over, for they cannot be read.
        census: where more than the class decides the places of records; its files last as long as the build.
        groups: how many groups each split has, where there are groups.
        dealt: what came of dealing by size, if that was asked for.
        digest: of what the column that decides the splits says, if there is one.
        base: what the dataset that is appended to says of itself; None in a build.
    """

    source: Source
    classes: tuple[Any, ...]
    counts: npt.NDArray[np.int64]
    assignment: Assignment
    record_bytes: float
    rejected: tuple[BadRecord, ...] = ()
    census: Census | None = None
    groups: Mapping[str, int] = field(default_factory=dict)
    dealt: Dealt | None = None
    digest: str = ""
    base: Manifest | None = None

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
    def shard_bytes(self) -> float:
        """Estimated size of the largest shard."""
        return max(split.shard_records(0) for split in self.assignment.splits) * self.record_bytes

    @property
    def block_rows(self) -> int:
        """Rows that are assembled at a time: a function of the source and the format alone, as it shapes Parquet."""
        return int(np.clip(_BLOCK_BYTES / max(self.record_bytes, 1), 1, _BLOCK_ROWS))

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
        if self.base is not None:
            facts.append([self.assignment.generation, self.base.layout and self.base.layout.to_json()])
        return f"{derive_key(json.dumps(facts)):016x}"


def _ignore(_: Progress) -> None:
    pass


def plan_build(options: BuildOptions, *, executor: Executor | None = None, report: Report = _ignore) -> BuildPlan:
    """Read the labels and decide everything; writes nothing.

    Raises:
        SourceError: the source cannot be read, or its classes cannot be balanced and split as asked.
        ConfigError: the options do not fit the data.
    """
    return plan_source(open_build_source(options), options, executor=executor, report=report)


def plan_source(
    source: Source,
    options: BuildOptions,
    base: Manifest | None = None,
    *,
    executor: Executor | None = None,
    report: Report = _ignore,
) -> BuildPlan:
    """`plan_build` of a source that was opened, or of an append to a dataset."""
    root = spill_root(options.spill, options.destination)
    with (
        open_engine(options.engine, options.workers) if executor is None else nullcontext(executor) as pool,
        _scratch(options, root) as scratch,
    ):
        return _plan(source, options, base, scratch, pool, report)


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


def open_build_source(options: BuildOptions, types: Mapping[str, Feature] = NO_FEATURES) -> Source:
    """The source that the options name, prepared.

    Args:
        options: of the build.
        types: that the columns are to have in the end; see `open_prepared`.

    Raises:
        SourceError: it cannot be read, or its label makes no classes.
        ConfigError: the options do not fit it.
        DestinationError: source and destination lie in each other.
    """
    check_apart(options.source, options.destination)
    reject = open_policy(options.bad_records)
    source = open_carrying(
        options.source, options.label, options.source_kind, options.prepare, options.divided_by, reject, types
    )
    check_apart(source.url, options.destination)  # the folder alone, where the options name a split in it
    check_label(source.schema)
    return source


def _plan(
    source: Source,
    options: BuildOptions,
    base: Manifest | None,
    scratch: Storage | None,
    pool: Executor,
    report: Report,
) -> BuildPlan:
    rejected: list[BadRecord] = []
    if options.bad_records is not None:
        source, rejected = without_bad_records(source, options.bad_records, pool, _AHEAD * options.workers)
    if options.prepare.dedup is not None:
        source = drop_duplicates(source, options.prepare.dedup, pool, _stage(report, "dedup"))
    census = None if scratch is None else open_census(source, options, scratch)
    part_counts = _count_parts(source, census, options, pool, report)
    totals: Counter[Any] = Counter()
    for counts in part_counts:
        totals.update(counts)
    known = () if base is None else base.classes
    fresh = {value: count for value, count in totals.items() if value not in known}
    classes = list(known)
    if fresh or not sum(totals.values()):
        classes += sort_classes(fresh, options.prepare.described(options.source), options.min_class_records)
    values = _class_array(source.schema, classes)
    record_bytes = _sample_record_bytes(source, options)
    division: Division | None = None
    per_split: Mapping[str, tuple[int, ...]]
    if census is None or census.by is None:
        strata = np.array([[part.get(value, 0) for value in classes] for part in part_counts], np.int64)
        per_split = share_out(
            classes,
            [totals[value] for value in classes],
            options.splits,
            there={} if base is None else {name: split.records for name, split in base.splits.items()},
            known_classes=len(known),
        )
    else:
        division = divide(census, len(source.parts), values, options)
        strata, per_split = division.counts, division.class_counts
    generation = 0 if base is None else len(base.all_generations)
    assignment = plan_assignment(options, per_split, record_bytes, divided=division is not None, generation=generation)
    dealt = None
    if census is not None and census.sizes:
        dealt = deal_records(census, values, assignment, np.cumsum(strata, axis=0) - strata)
    return BuildPlan(
        source=source,
        classes=tuple(classes),
        counts=strata,
        assignment=assignment,
        record_bytes=record_bytes,
        census=census,
        groups=division.values if division is not None and options.group_by is not None else {},
        dealt=dealt,
        digest="" if division is None else division.digest,
        rejected=tuple(rejected),
        base=base,
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
    for number, counts in stream_tasks(pool, jobs, _AHEAD * options.workers):
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
    source = open_build_source(options)
    purpose: Purpose = "replace" if options.overwrite else "new"
    with draft_dataset(Storage(options.destination), purpose, about_build(options.source)) as draft:

        def committed(plan: BuildPlan) -> Manifest | None:
            return draft.committed(plan.fingerprint(options))

        return write_dataset(source, options, draft, committed, executor=executor, report=report)


def about_build(source: str, task: str = "build") -> dict[str, str]:
    """What a build, or another `task`, leaves in the folder while it is at work, for whoever finds it."""
    return {"task": task, "source": public_url(source), "writer": _writer()}


def write_dataset(
    source: Source,
    options: BuildOptions,
    draft: Draft,
    committed: Callable[[BuildPlan], Manifest | None],
    *,
    executor: Executor | None = None,
    report: Report = _ignore,
) -> Manifest:
    """Write a source into a draft and commit it: a dataset, or a generation of the dataset that the draft appends to.

    Args:
        source: opened.
        options: of the build; those that the dataset decides are as it says.
        draft: to write to.
        committed: the manifest, if what is planned was committed before. It may refuse the plan, too.
        executor: to run the tasks on; by default those of `options.engine`.
        report: called after every task.

    Returns:
        The manifest that was committed.
    """
    root = spill_root(options.spill, options.destination)
    base = None if draft.base is None else draft.base.manifest
    with open_engine(options.engine, options.workers) if executor is None else nullcontext(executor) as pool:
        try:
            scratch = open_scratch(root) if options.needs_census else None
            plan = _plan(source, options, base, scratch, pool, report)
            result = committed(plan)
            if result is None:
                manifest, infos = _write(plan, options, draft, plan.fingerprint(options), root, pool, report)
                if draft.base is not None:
                    manifest, infos = merge_generation(draft.base, manifest, infos)
                result, table = seal(manifest, infos)
                draft.commit(result, table)
        except BaseException as error:
            if not (draft.finished and draft.may_resume(error)):
                remove_spill(root)
            elif isinstance(error, (RingfeedError, KeyboardInterrupt)):
                raise type(error)(f"{error}; {draft.how_to_resume}".removeprefix("; ")) from error
            raise
        remove_spill(root)
    return result


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
    bucketing = Bucketing(assignment=plan.assignment, shards_per_bucket=_shards_per_bucket(plan))
    scratch = None if plan.census is None else plan.census.folder
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
    beside = tfds_files(manifest, infos) if plan.base is None else {}
    if plan.rejected:
        beside |= {rejected_name(plan.assignment.generation): encode_rejected(plan.rejected)}
    if beside:
        draft.storage.write_all(beside)
    files = gathered.files() | {path: describe(data) for path, data in beside.items()}
    return replace(manifest, files=files), infos


def _shards_per_bucket(plan: BuildPlan) -> int:
    by_size = int(_BUCKET_BYTES / max(plan.shard_bytes, 1))
    return max(1, min(by_size, plan.assignment.shards // _LEAST_BUCKETS))


def _tasks_within(options: BuildOptions, need: float, what: str) -> int:
    """How many tasks to have submitted at a time, if each that runs needs so many bytes.

    Raises:
        ConfigError: not even one fits into memory.
    """
    free = options.memory_budget - (options.workers + 1) * _PROCESS_BYTES
    fitting = int(free / need)
    if fitting < 1:
        needed = options.memory_budget - free + need
        raise ConfigError(
            f"{what} needs about {needed / (1 << 20):,.0f} MiB of memory with {options.workers} workers, and --memory "
            f"allows {options.memory_budget >> 20:,} MiB; allow more, or ask for smaller shards or fewer --workers"
        )
    return fitting if fitting < max(options.workers, 2) else _AHEAD * options.workers


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
    jobs: Iterator[Job[PartSpill]] = (
        (partition_part, (light(plan.source, n), parts[n], n, bucketing, wanted, placement, spill))
        for n, placement in enumerate(plan.placements)
        if n not in done
    )
    for number, part in stream_tasks(pool, jobs, _AHEAD * options.workers):
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
    need = max(plan.shard_bytes * bucketing.shards_per_bucket, _BLOCK_BYTES) + _BLOCK_COPIES * _BLOCK_BYTES
    for _, results in stream_tasks(pool, jobs, _tasks_within(options, need, "assembling a shard")):
        yield results
        tell(len(results), sum(result.info.records for result in results))


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


def _sample_record_bytes(source: Source, options: BuildOptions) -> float:
    """Mean size on storage of the first records of a few parts spread over the source."""
    data_bytes = records = 0
    for part in list(source.parts)[:: max(1, len(source.parts) // 4)]:
        batch = source.sample(part, _SAMPLE_RECORDS)
        if not batch.num_rows:
            continue
        data, _ = encode_shard(
            source.complete(batch),
            source.schema,
            np.zeros(batch.num_rows, np.int32),
            shard_format=options.shard_format,
            compression=options.codec,
            layout=None,
        )
        data_bytes += data.size
        records += batch.num_rows
    return data_bytes / max(records, 1)

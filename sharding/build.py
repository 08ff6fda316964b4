"""Build a dataset: three rounds of tasks over the source, then one atomic commit. What was killed is gone on with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .build_plan import BuildPlan, writer
from .census import Census, take_census
from .counting import LabelCounts, StratumCounts, Tally, class_array
from .dedup import drop_duplicates, records_there
from .destination import Draft, Purpose, check_apart, draft_dataset
from .division import Division, divide, open_census
from .dropping import DroppingSource
from .engine import open_engine
from .errors import RingfeedError
from .execute import ClusterExecutor, Job, stream_tasks
from .formats import encode_shard, plan_layout
from .gathered import Gathered
from .grouping import group
from .groups_there import read_groups
from .interop.tfds import tfds_files
from .journal import ShardResult
from .manifest import Manifest, ShardInfo, describe
from .memory import AHEAD, MemoryShare, RecordBytes
from .merge import merge_generation
from .plan import BuildOptions, check_label, plan_assignment, share_out, sort_classes
from .prepare import open_carrying
from .progress import Report, Teller, ignore, tell_stage
from .schema import Feature, Schema
from .sized import deal_records
from .sources import Source, light
from .sources.base import NO_FEATURES, BadRecord
from .spill import PartSpill, Spill, open_scratch, open_spill, remove_spill, side_folder, spill_root
from .storage import Storage, public_url
from .table import seal
from .tasks import Bucketing, ShardTarget, assemble_bucket, count_classes, partition_part
from .tolerance import encode_rejected, open_policy, rejected_name, without_bad_records

__all__ = [
    "about_build",
    "assemble",
    "build",
    "open_build_source",
    "open_plan",
    "partition",
    "plan_build",
    "plan_source",
    "write_dataset",
]

_SAMPLE_RECORDS = 256
_LEAST_BUCKETS = 64  # enough for the workers to share, and for a killed build to lose little
_TASK_BYTES = 1 << 30  # that a task on a cluster may use, unless it is told


def plan_build(options: BuildOptions, *, executor: Executor | None = None, report: Report = ignore) -> BuildPlan:
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
    report: Report = ignore,
) -> BuildPlan:
    """`plan_build` of a source that was opened, or of an append to a dataset."""
    with open_plan(source, options, base, executor=executor, report=report) as plan:
        return plan


@contextmanager
def open_plan(
    source: Source,
    options: BuildOptions,
    base: Manifest | None = None,
    *,
    executor: Executor | None = None,
    report: Report = ignore,
) -> Iterator[BuildPlan]:
    """`plan_source`, with the files of its census until the body ends."""
    root = spill_root(options.spill, options.destination)
    with (
        _engine(options) if executor is None else nullcontext(executor) as pool,
        side_folder(root) if options.needs_census else nullcontext() as scratch,
    ):
        yield _plan(source, options, base, root, scratch, pool, report)


def _engine(options: BuildOptions, holds: str | None = None) -> AbstractContextManager[Executor]:
    return open_engine(options.engine, options.workers, spills_here=options.spill is None, holds=holds)


def _at_once(pool: Executor, options: BuildOptions) -> Callable[[], int]:
    """How many tasks to have submitted and not ended, where memory sets no limit."""
    return lambda: AHEAD * (pool.workers() if isinstance(pool, ClusterExecutor) else options.workers)


def _memory(pool: Executor, options: BuildOptions, plan: BuildPlan) -> MemoryShare:
    """What this machine's processes may hold together; of a cluster, which spreads tasks as it likes, each task."""
    share = options.memory
    if isinstance(pool, ClusterExecutor):
        share = MemoryShare(budget=options.memory_bytes or _TASK_BYTES, workers=1, alone=True)
    return replace(share, classes=plan.class_bytes)


def _tasks(pool: Executor, options: BuildOptions, fitting: int) -> int | Callable[[], int]:
    """How many tasks to have submitted and not ended, if so many fit into the memory of this machine."""
    return _at_once(pool, options) if isinstance(pool, ClusterExecutor) else fitting


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
    root: Storage,
    scratch: Storage | None,
    pool: Executor,
    report: Report,
) -> BuildPlan:
    rejected: list[BadRecord] = []
    if options.bad_records is not None:
        source, rejected = without_bad_records(source, options.bad_records, pool, _at_once(pool, options))
    if options.prepare.dedup is not None:
        source = drop_duplicates(
            source,
            options.prepare.dedup,
            pool,
            root,
            tell_stage(report, "dedup"),
            None if base is None else records_there(options.destination, base),
            [] if base is None else [generation.source["fingerprint"] for generation in base.all_generations],
        )
    census = None if scratch is None else open_census(source, options, scratch)
    counted = _count_parts(source, census, options, pool, report)
    values = _classes(counted.totals, source.schema, options, base)
    classes = (None,) if source.schema.label is None else tuple(values.to_pylist())
    record = _sample_record_bytes(source, options)
    division: Division | None = None
    per_split: Mapping[str, Sequence[int]]
    strata: tuple[StratumCounts, ...]
    if census is None or census.by is None:
        strata = counted.by_part(values)
        per_split = share_out(
            classes,
            _in_all(strata, len(values)),
            options.splits,
            there={} if base is None else {name: split.records for name, split in base.splits.items()},
            known_classes=0 if base is None else len(base.classes),
        )
    else:
        there = None
        if base is not None and options.group_by is not None:
            there = read_groups(options.destination, base, options.group_by, list(options.splits), pool)
        division = divide(census, len(source.parts), values, options, there)
        strata, per_split = division.counts, division.class_counts
    generation = 0 if base is None else len(base.all_generations)
    assignment = plan_assignment(options, per_split, record.stored, divided=division is not None, generation=generation)
    dealt = None
    if census is not None and census.sizes:
        dealt = deal_records(census, values, assignment, strata)
    return BuildPlan(
        source=source,
        classes=classes,
        counts=strata,
        assignment=assignment,
        record=record,
        census=census,
        groups=division.values if division is not None and options.group_by is not None else {},
        dealt=dealt,
        digest=("" if division is None else division.digest) + _dropped_there(source),
        rejected=tuple(rejected),
        base=base,
    )


def _count_parts(
    source: Source, census: Census | None, options: BuildOptions, pool: Executor, report: Report
) -> LabelCounts:
    """Records of each class in each part, and the notes of the census, if one is taken."""
    tell = Teller(report, "count", len(source.parts))
    counted = LabelCounts(source.schema, len(source.parts))
    jobs: Iterator[Job[Tally]] = (
        (count_classes, (light(source, n), part))
        if census is None
        else (take_census, (light(source, n), part, n, census))
        for n, part in enumerate(source.parts)
    )
    for number, tally in stream_tasks(pool, jobs, _at_once(pool, options)):
        counted.add(number, tally)
        tell(1, tally.records)
    return counted


def _classes(found: Tally, schema: Schema, options: BuildOptions, base: Manifest | None) -> pa.Array:
    """All classes: those of the dataset that is appended to, then the others, sorted."""
    known = class_array(schema, () if base is None else base.classes)
    fresh = pc.is_null(pc.index_in(found.values, value_set=known)).to_numpy(zero_copy_only=False)
    if found.records and not fresh.any():
        return known
    new = Tally(values=found.values.filter(pa.array(fresh)), counts=found.counts[fresh])
    return pa.concat_arrays(
        [known, sort_classes(new, options.prepare.described(options.source), options.min_class_records)]
    )


def _dropped_there(source: Source) -> str:
    """A digest of the records that are passed over since the dataset has them already; empty if none are."""
    return source.dropped_digest if isinstance(source, DroppingSource) and source.known_as else ""


def _in_all(parts: Sequence[StratumCounts], strata: int) -> list[int]:
    """Records of each stratum in all parts."""
    totals = np.zeros(strata, np.int64)
    for part in parts:
        totals[part.strata] += part.counts
    return totals.tolist()


def build(options: BuildOptions, *, executor: Executor | None = None, report: Report = ignore) -> Manifest:
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
    return {"task": task, "source": public_url(source), "writer": writer()}


def write_dataset(
    source: Source,
    options: BuildOptions,
    draft: Draft,
    committed: Callable[[BuildPlan], Manifest | None],
    *,
    executor: Executor | None = None,
    report: Report = ignore,
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
    with ExitStack() as workers:
        pool = workers.enter_context(_engine(options, options.destination)) if executor is None else executor
        try:
            scratch = open_scratch(root) if options.needs_census else None
            plan = _plan(source, options, base, root, scratch, pool, report)
            result = committed(plan)
            if result is None:
                manifest, infos = _write(plan, options, draft, plan.fingerprint(options), root, pool, report)
                workers.close()  # what they hold is needed where there are very many classes
                if draft.base is not None:
                    manifest, infos = merge_generation(draft.base, manifest, infos)
                    beside = tfds_files(manifest, infos)
                    draft.storage.write_all(beside)
                    about = {path: describe(data) for path, data in beside.items()}
                    manifest = replace(manifest, files=dict(manifest.files) | about)
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
    shards_per_bucket = _shards_per_bucket(plan, _memory(pool, options, plan))
    bucketing = Bucketing(assignment=plan.assignment, shards_per_bucket=shards_per_bucket)
    scratch = None if plan.census is None else plan.census.folder
    _assemble_tasks(plan, options, bucketing, pool)  # what does not fit is refused before anything is spilled
    spill = open_spill(root, f"{fingerprint}-{shards_per_bucket}", scratch)
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
    gathered = Gathered(plan.assignment)
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
        writer=writer(),
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


def _shards_per_bucket(plan: BuildPlan, memory: MemoryShare) -> int:
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
    done = spill.finished()
    parts = plan.source.parts
    tell = Teller(report, "partition", len(parts), len(done), sum(part.records for part in done.values()))
    todo = [number for number in range(len(parts)) if number not in done]
    memory = _memory(pool, options, plan)
    jobs: Iterator[Job[PartSpill]] = (
        (partition_part, (light(plan.source, n), parts[n], n, bucketing, wanted, placement, spill, memory.run_bytes))
        for n, placement in enumerate(plan.placements)
        if n not in done
    )
    for number, part in stream_tasks(pool, jobs, _tasks(pool, options, memory.partition_tasks())):
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
    tell = Teller(report, "write", plan.assignment.shards, len(finished), records)
    for _, results in stream_tasks(pool, jobs, _assemble_tasks(plan, options, bucketing, pool)):
        yield results
        tell(len(results), sum(result.info.records for result in results))


def _assemble_tasks(
    plan: BuildPlan, options: BuildOptions, bucketing: Bucketing, pool: Executor
) -> int | Callable[[], int]:
    records = plan.shard_records * bucketing.shards_per_bucket
    fitting = _memory(pool, options, plan).assemble_tasks(plan.record, records, plan.block_rows)
    return _tasks(pool, options, fitting)


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
